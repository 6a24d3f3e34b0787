"""Dr. GRPO, arXiv:2503.20783: no division by the group's deviation, nor by the length of a completion."""

from dppo.methods.method import Objective
from dppo.objective import CENTRED
from dppo.objective import DR_GRPO as CONSTANT

DR_GRPO = Objective(
    name="dr_grpo",
    paper="arXiv:2503.20783, Understanding R1-Zero-Like Training: A Critical Perspective",
    advantages=CENTRED,
    normaliser=CONSTANT,
)
