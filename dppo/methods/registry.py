"""Every method by its name: what ``method:`` in a configuration and ``dppo compare --methods`` accept.

To add an objective, import it, and name it in ``_OBJECTIVES`` and in the pairs of ``PAIRS`` that use it.
"""

from dppo.methods.a_star_po import A_STAR_PO
from dppo.methods.cppo import CPPO, CPPO_TRL, CPPO_TRL_LOSS, CPPO_VERL, CPPO_VERL_LOSS
from dppo.methods.dapo import DAPO, DAPO_LOSS, DYNAMIC_SAMPLING
from dppo.methods.divergence_ppo import DIVERGENCE_PPO_KL, DIVERGENCE_PPO_TV
from dppo.methods.dppo import DPPO, DPPO_DETERMINISTIC, DPPO_SIZES, DPPO_THRESHOLD, DPPO_UNWEIGHTED
from dppo.methods.dr_grpo import DR_GRPO
from dppo.methods.gdpo import GDPO
from dppo.methods.greso import GRESO, GRESO_COMPAT
from dppo.methods.grpo import GRPO
from dppo.methods.gspo import GSPO
from dppo.methods.history import HISTORY, SCALED_HISTORY
from dppo.methods.infobatch import INFOBATCH, INFOBATCH_KEPT_ROWS, INFOBATCH_ROWS
from dppo.methods.method import UNPRUNED, Objective, Scheme, combined
from dppo.methods.nat import NAT_RPC, NAT_URS
from dppo.methods.pods import PODS
from dppo.methods.rows import DPPO_ROWS, UNIFORM_ROWS

_PLAIN = (GRPO, DR_GRPO, DAPO_LOSS, GSPO, GDPO)
_OBJECTIVES = (*_PLAIN, DIVERGENCE_PPO_TV, DIVERGENCE_PPO_KL, A_STAR_PO, HISTORY, SCALED_HISTORY)
_DPPO = (DPPO, DPPO_THRESHOLD, DPPO_DETERMINISTIC, DPPO_UNWEIGHTED, DPPO_SIZES)
_SCHEMES = (*_DPPO, CPPO, PODS, INFOBATCH, DYNAMIC_SAMPLING, GRESO, GRESO_COMPAT, NAT_URS, NAT_RPC)
OBJECTIVES: dict[str, Objective] = {each.name: each for each in _OBJECTIVES}
SCHEMES: dict[str, Scheme] = {each.name: each for each in _SCHEMES}
PAIRS: dict[str, tuple[Objective, Scheme]] = {
    "grpo": (GRPO, UNPRUNED),
    "dr_grpo": (DR_GRPO, UNPRUNED),
    "dapo": (DAPO, DYNAMIC_SAMPLING),
    "dapo_loss": (DAPO_LOSS, UNPRUNED),
    "gspo": (GSPO, UNPRUNED),
    "cppo": (GRPO, CPPO),
    "cppo_trl": (CPPO_TRL_LOSS, CPPO_TRL),
    "cppo_verl": (CPPO_VERL_LOSS, CPPO_VERL),
    "pods": (GRPO, PODS),
    "infobatch": (GRPO, INFOBATCH),
    "greso": (GRPO, GRESO),
    "greso_compat": (GRPO, GRESO_COMPAT),
    "nat_urs": (GRPO, NAT_URS),
    "nat_rpc": (GRPO, NAT_RPC),
    "dppo_threshold": (GRPO, DPPO_THRESHOLD),
    "dppo": (GRPO, DPPO),
    "dppo_deterministic": (GRPO, DPPO_DETERMINISTIC),
    "dppo_unweighted": (GRPO, DPPO_UNWEIGHTED),
    "dppo_dapo": (DAPO_LOSS, DPPO),
    "dppo_gspo": (GSPO, DPPO),
    "dppo_threshold_dapo": (DAPO_LOSS, DPPO_THRESHOLD),
    "dppo_threshold_gspo": (GSPO, DPPO_THRESHOLD),
    "gdpo": (GDPO, UNPRUNED),
    "dppo_gdpo": (GDPO, DPPO),
    "divergence_ppo_tv": (DIVERGENCE_PPO_TV, UNPRUNED),
    "divergence_ppo_kl": (DIVERGENCE_PPO_KL, UNPRUNED),
    "dppo_divergence_ppo_tv": (DIVERGENCE_PPO_TV, DPPO),
    "dppo_divergence_ppo_kl": (DIVERGENCE_PPO_KL, DPPO),
    "a_star_po": (A_STAR_PO, UNPRUNED),
    "dppo_a_star_po": (A_STAR_PO, DPPO),
    "grpo_history": (HISTORY, UNPRUNED),
    "dppo_history": (HISTORY, DPPO),
    "dppo_history_scaled": (SCALED_HISTORY, DPPO),
    "dppo_history_sizes": (HISTORY, DPPO_SIZES),
}
METHODS = {name: combined(*pair, name) for name, pair in PAIRS.items()}
"""Rates are starting points: ``METHODS["dppo"].with_rates(prompt=0.3, completion=0.5)``."""

ROW_METHODS = {method.name: method for method in (DPPO_ROWS, UNIFORM_ROWS, INFOBATCH_ROWS, INFOBATCH_KEPT_ROWS)}
"""For rows that are there before a step, of supervised training and of preferences: ``method`` of ``DPPOSFTConfig``."""
