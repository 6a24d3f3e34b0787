"""Every preset by its name: what ``method:`` in a configuration and ``dppo compare --methods`` accept."""

from dppo.methods.a_star_po import A_STAR_PO, DPPO_A_STAR_PO
from dppo.methods.cppo import CPPO, CPPO_TRL, CPPO_VERL
from dppo.methods.dapo import DAPO, DAPO_LOSS
from dppo.methods.divergence_ppo import (
    DIVERGENCE_PPO_KL,
    DIVERGENCE_PPO_TV,
    DPPO_DIVERGENCE_PPO_KL,
    DPPO_DIVERGENCE_PPO_TV,
)
from dppo.methods.dppo import (
    DPPO,
    DPPO_DAPO,
    DPPO_DETERMINISTIC,
    DPPO_GSPO,
    DPPO_THRESHOLD,
    DPPO_THRESHOLD_DAPO,
    DPPO_THRESHOLD_GSPO,
    DPPO_UNWEIGHTED,
)
from dppo.methods.dr_grpo import DR_GRPO
from dppo.methods.gdpo import DPPO_GDPO, GDPO
from dppo.methods.greso import GRESO, GRESO_COMPAT
from dppo.methods.grpo import GRPO
from dppo.methods.gspo import GSPO
from dppo.methods.history import DPPO_HISTORY, DPPO_HISTORY_SCALED, DPPO_HISTORY_SIZES, GRPO_HISTORY
from dppo.methods.infobatch import INFOBATCH, INFOBATCH_KEPT_ROWS, INFOBATCH_ROWS
from dppo.methods.nat import NAT_RPC, NAT_URS
from dppo.methods.pods import PODS
from dppo.methods.rows import DPPO_ROWS, UNIFORM_ROWS

METHODS = {
    method.name: method
    for method in (
        *(GRPO, DR_GRPO, DAPO, DAPO_LOSS, GSPO),
        *(CPPO, CPPO_TRL, CPPO_VERL, PODS, INFOBATCH),
        *(GRESO, GRESO_COMPAT),
        *(NAT_URS, NAT_RPC),
        *(DPPO_THRESHOLD, DPPO, DPPO_DETERMINISTIC, DPPO_UNWEIGHTED),
        *(DPPO_DAPO, DPPO_GSPO, DPPO_THRESHOLD_DAPO, DPPO_THRESHOLD_GSPO),
        *(GDPO, DPPO_GDPO),
        *(DIVERGENCE_PPO_TV, DIVERGENCE_PPO_KL, DPPO_DIVERGENCE_PPO_TV, DPPO_DIVERGENCE_PPO_KL),
        *(A_STAR_PO, DPPO_A_STAR_PO),
        *(GRPO_HISTORY, DPPO_HISTORY, DPPO_HISTORY_SCALED, DPPO_HISTORY_SIZES),
    )
}
"""Rates are starting points: ``METHODS["dppo"].with_rates(prompt=0.3, completion=0.5)``."""

ROW_METHODS = {method.name: method for method in (DPPO_ROWS, UNIFORM_ROWS, INFOBATCH_ROWS, INFOBATCH_KEPT_ROWS)}
"""For rows that are there before a step, of supervised training and of preferences: ``method`` of ``DPPOSFTConfig``."""
