"""Gradient sizes of the KL term and the entropy bonus are measured on kept rows; later scores include them."""

import pytest
import torch
from in_process import ACTOR, PRUNING, train, trainer
from steps import KL, ONE_STEP, OffPolicy, all_draws, stock_and_ours

import dppo.verl.batch
from dppo.moment_samples import NO_OTHERS

ENTROPY = (f"{ACTOR}.entropy_coeff=0.01",)
ONE = torch.arange(8) == 3
"""A draw of one completion alone."""


@pytest.fixture
def found(monkeypatch):
    """The sums of each step, as they are found."""
    sums, term_sizes = [], dppo.verl.batch.term_sizes

    def noted(*given):
        sums.append(term_sizes(*given))
        return sums[-1]

    monkeypatch.setattr(dppo.verl.batch, "term_sizes", noted)
    return sums


def sums_of(step, found, keep_N, **options):
    step.drawn(keep_N, **options)
    return torch.tensor(found.pop())


def test_sums_over_what_is_kept_are_on_average_those_over_all(toy, found):
    _, step = stock_and_ours(toy, *KL, *ENTROPY, f"{ACTOR}.loss_agg_mode=token-mean")
    whole = sums_of(step, found, torch.ones(8, dtype=torch.bool), weighted=False)
    mean, wrong = (
        sum(chance * sums_of(step, found, keep_N, weighted=weighted) for chance, keep_N in all_draws())
        for weighted in (True, False)
    )
    assert torch.allclose(mean, whole, rtol=1e-5) and whole.min() > 0
    assert (wrong / whole).max() < 0.95  # wrong: without the weights


@pytest.mark.parametrize("terms", [KL, ENTROPY])
def test_of_one_completion_they_weigh_the_same_against_an_advantage_whatever_the_loss_is_a_mean_of(toy, terms, found):
    """Its own terms are all divided alike; a bonus that is a mean over tokens, as TRL's, would not be."""
    sizes = []
    for mode in ("token-sum", "seq-mean-token-mean"):
        _, step = stock_and_ours(toy, *terms, f"{ACTOR}.loss_agg_mode={mode}")
        square, unit = sums_of(step, found, ONE)
        sizes.append(float(square / unit))
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-5) and sizes[0] > 0


def seen_by_scores(toy, *options):
    """The sizes in the scores of each of three steps, and those that it logs."""
    made = trainer(toy, "dynamic_pruning", *ONE_STEP, f"{PRUNING}.completion_prune_rate=0.5", *options, group=OffPolicy)
    seen, plan = [], made._plan

    def told(returned):
        planned = plan(returned)
        seen.append(planned.completions.other)
        return planned

    made._plan = told
    logged = train(made, 3)
    return seen, [each.get("prune/other_terms") for each in logged], made.session.others


def test_scores_of_a_step_hold_what_the_steps_before_it_have_shown(toy):
    seen, logged, others = seen_by_scores(toy, *KL)
    assert seen == [None, *logged[:2]] and all(size > 0 for size in logged) and others.advantage == logged[2]
    assert seen_by_scores(toy)[:2] == ([0.0] * 3, [None] * 3)  # without such terms none weighs anything


@pytest.mark.parametrize(
    "options",
    [
        (*KL, f"{ACTOR}.policy_loss.loss_mode=dro", f"{ACTOR}.policy_loss.dro_beta=0.1"),  # its square is no KL term
        (*ENTROPY, f"{ACTOR}.policy_loss.loss_mode=bypass_mode", "algorithm.rollout_correction.bypass_mode=True"),
    ],
)
def test_what_is_not_known_stays_unknown(toy, options):
    seen, logged, others = seen_by_scores(toy, *options)
    assert seen == logged == [None] * 3 and others == NO_OTHERS
