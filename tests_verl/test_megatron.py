"""``strategy=megatron``: weights reach verl's loss on its Megatron engine as they do on its FSDP engine."""

import pytest
import toy as task
from megatron_cpu import ACTOR, MEGATRON, PER_TOKEN
from steps import CUTS, POINTS, all_draws, bias, stock_and_ours

PADDED, PACKED = (f"actor_rollout_ref.model.use_remove_padding={packed}" for packed in (False, True))
TERMS = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.entropy_coeff=0.01")
CASES = {
    "padded, policy": (PADDED,),
    "packed, KL and entropy": (PACKED, *TERMS),
    "packed, gradients divided by tokens, KL and entropy": (PACKED, PER_TOKEN, *TERMS),
}


def gradients_of(toy, *options, ours=()):
    """verl's own gradient, our step, and where its gradients are put; a model of the toy samples."""
    (full,), step, gradients, _ = stock_and_ours(
        toy, *MEGATRON, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", *options, ours=ours, policy=task.model()
    )
    return full, step, gradients


@pytest.mark.parametrize("case", CASES)
def test_the_mean_over_every_draw_is_the_gradient_of_verls_megatron_engine(toy, case):
    full, step, gradients = gradients_of(toy, *CASES[case])
    found = []
    for weighted in (True, False):
        mean = 0.0
        for chance, keep_N in all_draws():
            step.drawn(keep_N, weighted=weighted)
            mean = mean + chance * gradients.pop().double()
        found.append(bias(mean, full))
    print(case, *(f"{each:.1e}" for each in found))
    assert found[0] < 1e-6 and found[1] > 0.02 and full.norm() > 0
    assert {name for name, _ in step.made.actor_rollout_wg.passes} >= {"old", "update"}


def test_the_mean_over_every_cut_is_the_gradient_of_verls_megatron_engine(toy):
    full, step, gradients = gradients_of(toy, PACKED, *TERMS, ours=(CUTS,))
    found = []
    for weighted in (True, False):
        mean = 0.0
        for point in range(POINTS):
            step.cut(point, weighted=weighted)
            mean = mean + gradients.pop().double() / POINTS
        found.append(bias(mean, full))
    assert found[0] < 1e-6 and found[1] > 0.02
