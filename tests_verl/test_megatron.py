"""``strategy=megatron``: weights reach verl's loss on its Megatron engine as they do on its FSDP engine."""

import pytest
import toy as task
from megatron_cpu import ACTOR, MEGATRON, PER_TOKEN
from steps import ALL_TERMS, CUTS, bias, stock_and_ours

PADDED, PACKED = (f"actor_rollout_ref.model.use_remove_padding={packed}" for packed in (False, True))
CASES = {
    "padded, policy": (PADDED,),
    "packed, KL and entropy": (PACKED, *ALL_TERMS),
    "packed, gradients divided by tokens, KL and entropy": (PACKED, PER_TOKEN, *ALL_TERMS),
}


def full_and_ours(toy, *options, ours=()):
    """verl's own gradient, and our step; a model of the toy samples."""
    options = (*MEGATRON, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", *options)
    (full,), step = stock_and_ours(toy, *options, ours=ours, policy=task.model())
    return full, step


@pytest.mark.parametrize("case", CASES)
def test_the_mean_over_every_draw_is_the_gradient_of_verls_megatron_engine(toy, case):
    full, step = full_and_ours(toy, *CASES[case])
    found = [bias(step.mean_of_draws(weighted=weighted), full) for weighted in (True, False)]
    print(case, *(f"{each:.1e}" for each in found))
    assert found[0] < 1e-6 and found[1] > 0.02 and full.norm() > 0
    assert {name for name, _ in step.made.actor_rollout_wg.passes} >= {"old", "update"}


def test_the_mean_over_every_cut_is_the_gradient_of_verls_megatron_engine(toy):
    full, step = full_and_ours(toy, PACKED, *ALL_TERMS, ours=(CUTS,))
    found = [bias(step.mean_of_cuts(weighted=weighted), full) for weighted in (True, False)]
    assert found[0] < 1e-6 and found[1] > 0.02
