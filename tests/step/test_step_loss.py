"""The loss of micro-batches: parts of a whole that no cut can change."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.objective import NORMALISERS, Tokens
from dppo.step import StepSizes, micro_batch_loss
from dppo.types import each_tensor

ROWS, LONGEST = 6, 5
METHOD = replace(METHODS["grpo"], beta=0.2, entropy_coef=0.1)
SIZES = StepSizes(denominator=6.0, tokens=20.0)


def batch():
    """Tokens of six completions, one of them empty, the entropy of each token, and weights, one of them 0."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    tokens = Tokens(
        logp_BT=normal(ROWS, LONGEST) - 2,
        old_logp_BT=normal(ROWS, LONGEST) - 2,
        advantage_B=normal(ROWS),
        mask_BT=torch.arange(LONGEST) < torch.tensor([5, 1, 3, 0, 4, 5])[:, None],
        ref_logp_BT=normal(ROWS, LONGEST) - 2,
    )
    return tokens, normal(ROWS, LONGEST).abs(), torch.tensor([1.0, 2.5, 0, 1, 4, 1.5], dtype=torch.float64)


def loss(method, rows=slice(None), *, sizes=SIZES, **settings):
    tokens, entropy_BT, weight_B = batch()
    part = each_tensor(tokens, lambda value: value[rows])
    return micro_batch_loss(method, part, weight_B[rows], sizes, entropy_BT=entropy_BT[rows], **settings).item()


@pytest.mark.parametrize("cuts", [[[0, 1, 2], [3, 4, 5]], [[5, 0], [1], [4, 2, 3]], [[i] for i in range(6)]])
@pytest.mark.parametrize("name", NORMALISERS)
def test_the_parts_of_all_micro_batches_add_up_to_the_whole(name, cuts):
    method = replace(METHOD, normaliser=NORMALISERS[name])
    assert sum(loss(method, rows) for rows in cuts) == pytest.approx(loss(method), abs=1e-12)


def test_a_denominator_of_each_micro_batch_would_make_the_cut_matter():
    cuts = [[0, 1, 2, 3], [4, 5]]
    wrong = sum(loss(METHOD, rows, sizes=SIZES._replace(denominator=float(len(rows)))) for rows in cuts) / len(cuts)
    assert abs(wrong - loss(METHOD)) > 1e-2


def test_a_router_loss_is_a_mean_over_the_tokens_of_the_full_batch_prompts_included():
    method, settings = replace(METHOD, router_coef=0.01), {"sizes": SIZES._replace(attended=50.0)}
    given = [torch.tensor(value, dtype=torch.float64) for value in (30.0, 12.0, 42.0)]
    first, second, both = (loss(method, router_loss=value, **settings) - loss(METHOD) for value in given)
    assert both == pytest.approx(0.01 * 42 / 50, abs=1e-12) and first + second == pytest.approx(both, abs=1e-12)
    assert loss(METHOD, router_loss=given[0], **settings) == loss(METHOD), "a method without one has none"


@pytest.mark.parametrize("term", ["entropy_coef", "router_coef"])
def test_a_term_that_the_method_has_is_never_left_out_in_silence(term):
    tokens, entropy_BT, weight_B = batch()
    given = {"entropy_coef": {"entropy_BT": entropy_BT}, "router_coef": {"router_loss": torch.tensor(1.0)}}[term]
    method = replace(METHODS["grpo"], **{term: 0.1})
    without = micro_batch_loss(METHODS["grpo"], tokens, weight_B, SIZES)
    assert micro_batch_loss(method, tokens, weight_B, SIZES, **given) != without
    with refused(ConfigError, f"{term}=0.1 needs"):
        micro_batch_loss(method, tokens, weight_B, SIZES)
