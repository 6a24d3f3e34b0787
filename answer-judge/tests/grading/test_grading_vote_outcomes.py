"""What votes reward on average: enumerated twice, against real gradients, and as the page prints it."""

from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

import pytest
import torch
from dppo.context import NOTHING_KNOWN
from dppo.objective import CENTRED
from dppo.types import Rewards
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.grading.vote import Stopping, majority, vote_rewards
from judge_benchmarks.votes import estimand, outcomes, table

ROOT = Path(__file__).parents[2]
PROB = (0.5, 0.3, 0.2)
SOON = Stopping(confidence=0.9, vote_odds=3.0, fewest=2, most=7)
RULES = {
    "settled": SOON,
    "in rounds": Stopping(confidence=0.9, vote_odds=3.0, fewest=3, most=7, at_once=2),
    "sure": Stopping(confidence=1.0, fewest=1, most=6),
    "fixed": Stopping(fewest=5, most=5),
}


def sequences(prob, rule):
    """Every sequence of answers that the rule ends, with its chance: one by one, no two of them merged."""
    ways = [*enumerate(prob), *([(None, 1 - sum(prob))] if sum(prob) < 1 - 1e-9 else [])]

    def follow(answers, chance):
        more = rule.more(Counter(a for a in answers if a is not None).values(), len(answers))
        if not more:
            yield answers, chance
        for added in product(ways, repeat=more) if more else ():
            part = chance
            for _, probability in added:
                part *= probability
            yield from follow((*answers, *(answer for answer, _ in added)), part)

    return follow((), 1.0)


@pytest.mark.parametrize("prob", [PROB, (0.4, 0.3), (1.0,)], ids=str)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_outcomes_are_those_of_all_sequences(prob, rule):
    expected = defaultdict(float)
    for answers, chance in sequences(prob, rule):
        votes = tuple(answers.count(answer) for answer in range(len(prob)))
        expected[votes, answers.count(None), majority(answers).winner] += chance
    found = {(end.votes, end.silent, end.winner): end.chance for end in outcomes(prob, rule)}
    assert found == pytest.approx(dict(expected), abs=1e-14) and sum(found.values()) == pytest.approx(1)
    for end in outcomes(prob, rule):
        assert end.drawn == sum(end.votes) + end.silent <= rule.most
        assert end.rewards == tuple(float(a == end.winner) for a in range(len(prob)))


def real_gradient(prob, rule, *, weight):
    """Mean gradient of the logits by autograd, over all sequences, with the library's advantages of each group.

    ``weight`` of a group of that many completions, each of which counts 1 within it.
    """
    silence = 1 - sum(prob)
    logits = torch.tensor([*prob, *([silence] if silence > 1e-9 else [])], dtype=torch.float64).log().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for answers, chance in sequences(prob, rule):
        rewards = Rewards.of_groups(torch.tensor([vote_rewards(answers)], dtype=torch.float64))
        advantage_N = CENTRED(rewards, NOTHING_KNOWN)
        place = [len(prob) if answer is None else answer for answer in answers]
        total = total + chance * weight(len(answers)) * (advantage_N * logits.log_softmax(0)[place]).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient.tolist()[: len(prob)]


@pytest.mark.parametrize("prob", [PROB, (0.4, 0.3)], ids=str)
@pytest.mark.parametrize("rule", [SOON, RULES["fixed"]], ids=["settled", "fixed"])
def test_gradients_are_those_of_autograd(prob, rule):
    of = estimand(prob, rule)
    assert of.gradient == pytest.approx(real_gradient(prob, rule, weight=lambda n: 1 / n), abs=1e-12)
    assert of.pooled == pytest.approx(real_gradient(prob, rule, weight=lambda n: 1 / of.drawn), abs=1e-12)
    if rule is SOON:  # wrong: divided as if every group had as many
        cap = real_gradient(prob, rule, weight=lambda n: 1 / rule.most)
        assert min(abs(cap[0] - of.gradient[0]), abs(cap[0] - of.pooled[0])) > 0.01


@given(st.integers(1, 3), st.integers(3, 6), st.sampled_from([0.7, 0.9, 1.0]), st.integers(1, 2))
@settings(max_examples=15)
def test_stopping_does_not_change_how_often_an_answer_is_sampled(fewest, most, confidence, at_once):
    """Wald's identity: E[votes of an answer] = E[completions] * its probability, for any stopping rule."""
    ends = outcomes(PROB, Stopping(confidence=confidence, fewest=fewest, most=most, at_once=at_once))
    drawn = sum(end.chance * end.drawn for end in ends)
    for answer, probability in enumerate(PROB):
        assert sum(end.chance * end.votes[answer] for end in ends) == pytest.approx(probability * drawn)


def test_walds_identity_tells_a_completion_that_is_not_counted():
    """The wrong twin: the completion that settled the vote is left out."""
    ends = [(answers[:-1], chance) for answers, chance in sequences(PROB, SOON)]
    drawn = sum(chance * len(answers) for answers, chance in ends)
    assert abs(sum(chance * answers.count(0) for answers, chance in ends) - 0.5 * drawn) > 0.02


def test_figures_that_the_page_quotes():
    """Stopping changes the estimand: fewer labels of the mode, more agreement, shorter gradients."""
    whole, stopped = (estimand(PROB, rule) for rule in (Stopping(fewest=16, most=16), Stopping()))
    assert (round(whole.label[0], 3), round(stopped.label[0], 3)) == (0.789, 0.771)
    assert (round(whole.reward[1], 3), round(stopped.reward[1], 3)) == (0.263, 0.350)
    assert (round(whole.agreement, 3), round(stopped.agreement, 3)) == (0.525, 0.621)
    assert round(stopped.gradient[0] / whole.gradient[0], 2) == 0.82 and round(stopped.drawn, 2) == 9.95


@pytest.mark.parametrize("prob", [[], [0.0, 1.0], [0.7, 0.4], [-0.1, 0.5]])
def test_probabilities_that_are_none(prob):
    with refused(ConfigError, f"prob={prob}"):
        outcomes(prob, SOON)


def test_the_pages_rows_are_what_the_command_prints():
    page = (ROOT / "docs" / "votes.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 10 and set(rows) <= set(table().splitlines()) and "python -m judge_benchmarks.votes" in page
