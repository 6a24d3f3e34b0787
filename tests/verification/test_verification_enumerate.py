"""Every outcome of a draw: the distribution is exact, and a draw that breaks its promise is seen."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from dppo.errors import DesignError
from dppo.pruning import DESIGNS, DETERMINISTIC, PIVOTAL, POISSON, SYSTEMATIC, Pruning
from dppo.verification.enumerate import Tape, enumerated, every_way, outcomes

PROB = torch.tensor([0.2, 0.5, 0.9, 0.65, 0.75], dtype=torch.float64)


def mean_kept(found):
    return sum(chance * keep.double() for keep, chance in found)


def test_a_tape_takes_every_way_with_its_chance():
    def two_choices(tape):
        first = tape.choose([0.5, 0.5])
        return first, tape.choose([0.25, 0.75, 0.0]) if first else None

    assert sorted(every_way(two_choices), key=str) == [((0, None), 0.5), ((1, 0), 0.125), ((1, 1), 0.375)]


@pytest.mark.parametrize("design", [d for d in DESIGNS.values() if d.unbiased], ids=lambda d: d.name)
def test_random_designs_keep_each_row_with_its_probability(design):
    found = outcomes(design, PROB)
    assert sum(chance for _, chance in found) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(mean_kept(found), PROB, rtol=0, atol=1e-12)
    sizes = {int(keep.sum()) for keep, _ in found}
    assert sizes == ({3} if design.fixed_size else {0, 1, 2, 3, 4, 5})


def test_independent_draws_have_the_product_distribution_and_a_deterministic_one_a_single_outcome():
    for keep, chance in outcomes(POISSON, PROB):
        assert chance == pytest.approx(torch.where(keep, PROB, 1 - PROB).prod().item())
    ((keep, chance),) = outcomes(DETERMINISTIC, PROB)
    assert chance == 1.0 and keep.tolist() == [False, False, True, True, True]


def test_a_draw_with_other_probabilities_than_it_was_given_is_seen():
    squared = replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob.square(), score, rng))
    assert (mean_kept(outcomes(squared, PROB)) - PROB).abs().max() > 0.05


def test_what_cannot_be_enumerated_says_so():
    with refused(DesignError, "'urn'"):
        outcomes(replace(PIVOTAL, name="urn"), PROB)
    with refused(DesignError, "rng.permutation", "rng.random(n) < prob_N.numpy()"):
        list(every_way(lambda tape: tape.permutation(3)))


def test_long_designs_are_stood_in_for_by_independent_draws_and_others_run_themselves():
    def sizes(design):
        pruning = enumerated(Pruning(rate=0.5, design=design))
        prob = torch.full((4,), 0.5, dtype=torch.float64)
        return {int(keep.sum()) for keep, _ in every_way(lambda tape: pruning.design.draw(prob, prob, tape))}

    assert sizes(PIVOTAL) == {2}
    assert sizes(SYSTEMATIC) == {0, 1, 2, 3, 4}
    assert sizes(DETERMINISTIC) == {2}, "a biased design is never replaced"
    assert isinstance(Tape().random(3).tolist(), list)
