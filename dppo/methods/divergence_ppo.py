"""Divergence PPO, arXiv:2602.04879, which TRL, verl and prime-rl call DPPO: a trust region by divergence."""

from dataclasses import replace
from functools import partial

from dppo.methods.method import Objective
from dppo.objective import DAPO_TOKENS, binary_kl, binary_tv, divergence_ppo

DIVERGENCE_PPO_TV = Objective(
    name="divergence_ppo_tv",
    paper="arXiv:2602.04879, Rethinking the Trust Region in LLM Reinforcement Learning",
    token_loss=partial(divergence_ppo, divergence=binary_tv, delta_low=0.15, delta_high=0.15),
    normaliser=DAPO_TOKENS,
    open=frozenset({"normaliser"}),
    deviations=(
        "masks by the sampled token alone: those over the sampler's 20 most likely tokens need what no trainer records",
        "the advantages are GRPO's unless TRL's fields say otherwise",
    ),
)
DIVERGENCE_PPO_KL = replace(
    DIVERGENCE_PPO_TV,
    name="divergence_ppo_kl",
    token_loss=partial(divergence_ppo, divergence=binary_kl, delta_low=0.05, delta_high=0.05),
)
