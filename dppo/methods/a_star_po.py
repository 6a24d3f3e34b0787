"""A*-PO, arXiv:2505.20686: regression on an advantage against a value that a reference gave before training."""

from dataclasses import replace

from torch import Tensor

from dppo.methods.pairs import Objective
from dppo.objective import LUSPO, VALUE_CENTRED, advantage_regression, squared_log_ratio
from dppo.types import Completions

BETA = 1e-3
"""The paper's beta2."""


def residual_bound(completions: Completions, *, drift: float = 0.1) -> Tensor:
    """(N,) float64 ``(|A| + beta * drift * tokens) * bound``: how large the gradient of a squared residual may be.

    The residual is ``beta L - A``, and ``L`` is not known before the forward pass that pruning saves. Where tokens have
    moved from the reference by ``drift`` nats on average, ``|L|`` is at most ``drift * tokens``. The gradient of ``L``
    goes with ``sqrt(sum_t (1 - p_t)^2)``, where the sampler recorded its probabilities, else with ``sqrt(tokens)``. A
    wrong ``drift`` costs variance, never bias.
    """
    tokens_N = completions.tokens_N.double()
    bound_N = tokens_N.sqrt() if completions.uncertainty_N is None else completions.uncertainty_N.double()
    return (completions.advantage_N.double().abs() + completions.beta * drift * tokens_N) * bound_N


SEQUENCE_SUMS = replace(LUSPO, name="sequence sums")
"""Under another name, since TRL's ``luspo`` is a loss as well."""
A_STAR_PO = Objective(
    name="a_star_po",
    paper="arXiv:2505.20686, Accelerating RL for LLM Reasoning with Optimal Advantage Regression",
    advantages=VALUE_CENTRED,
    token_loss=advantage_regression,
    kl=squared_log_ratio,
    beta=BETA,
    normaliser=SEQUENCE_SUMS,
    needs_reference=True,
    score=residual_bound,
    deviations=(
        "the squared loss is divided by 2 beta and its constant left out: its gradient in the unit of rewards",
        "prompts whose reference samples all failed stay, with a value of 0, where the paper may leave them out",
        "groups may have any size; the paper has one completion a prompt: num_generations=1",
    ),
)
