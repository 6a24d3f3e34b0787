"""Tokens in a plan: what is kept is what the library draws, the head has its price, and what pays is proposed."""

from dataclasses import asdict, replace

import pytest
import torch
from planning_worlds import COSTS, MIXED, STEP, planned, sample_of, timed, tokens_of

from dppo.pruning import TokenPruning
from dppo.pruning.cuts import draw_tokens
from dppo.rng import Purpose, generator
from dppo_lab.planning.costs import fitted
from dppo_lab.planning.figures import Figures
from dppo_lab.planning.records import Option
from dppo_lab.planning.work import work_of
from dppo_lab.planning.written import as_json, findings, pasted

CUTS, BOTH = Option(name="cuts", token_rate=0.5), Option(name="cuts and head", token_rate=0.5, head_rate=0.85)


@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.3, 0.0), (0.0, 0.85), (0.5, 0.85)])
def test_what_is_kept_is_what_the_library_draws(rates):
    span_NT, moment_NT = tokens_of()
    level = TokenPruning().at_rate(*rates)
    reach_NT, head_NT = level.probabilities(moment_NT, span_NT)
    prob_NT = reach_NT if head_NT is None else reach_NT * head_NT
    found = sample_of(span_NT, moment_NT).kept(Option(name="x", token_rate=rates[0], head_rate=rates[1]), STEP)
    assert found.noise == pytest.approx(float((moment_NT / prob_NT)[span_NT].sum() / moment_NT[span_NT].sum()))
    assert found.scored == pytest.approx(float(prob_NT.sum() / span_NT.sum()))
    drawn = [draw_tokens(reach_NT, head_NT, generator(0, Purpose.CHECK, i)).length_N for i in range(300)]
    length_MN = torch.stack(drawn).double()
    assert found.forwarded == pytest.approx(float(length_MN.mean(0).sum() / span_NT.sum()), rel=0.04)
    assert found.reached == pytest.approx(float((length_MN > 0).double().mean()), rel=0.04)
    # Wrong twins: a floor that is forgotten, and tokens in an order that cuts do not see.
    blind = replace(STEP, token_floor=1e-6)
    if rates == (0.5, 0.0):
        assert sample_of(span_NT, moment_NT).kept(CUTS, blind).noise != pytest.approx(found.noise, rel=1e-3)
        turned = sample_of(*(each.flip(1) for each in (span_NT, moment_NT)))
        assert turned.kept(CUTS, STEP).noise - 1 > 1.5 * (found.noise - 1)


def test_a_resample_counts_completions_as_if_they_were_there_as_often():
    span_NT, moment_NT = tokens_of()
    times = {float(prompt): float(prompt % 3) for prompt in range(12)}
    repeats = torch.tensor([int(times[row // 8]) for row in range(96)])
    twice = sample_of(span_NT.repeat_interleave(repeats, 0), moment_NT.repeat_interleave(repeats, 0))
    counted = sample_of(span_NT, moment_NT).counted(times)
    for option in (CUTS, BOTH, Option(name="c", completion_rate=0.5)):
        assert asdict(counted.kept(option, STEP)) == pytest.approx(asdict(twice.kept(option, STEP)), rel=1e-6)
    for level in ("tokens", "head"):
        assert counted.ceiling(level) == pytest.approx(twice.ceiling(level))
    assert counted.ceiling("head") > 1.5


def test_the_head_has_its_price_where_some_steps_left_most_tokens_from_it():
    costs, tokens = replace(COSTS, head_token=3e-3), sample_of(*tokens_of())
    plain = [timed(Option(name="x"), prompts, costs, tokens) for prompts in (8, 16, 16)]
    sampled = [*plain, *(timed(Option(name="h", head_rate=0.85), prompts, costs, tokens) for prompts in (8, 16, 16))]
    found = fitted(sampled)
    assert found.head_token == pytest.approx(3e-3) and found.row_token == pytest.approx(COSTS.row_token)
    slow = [*sampled[:-1], replace(sampled[-1], update=0.5 * sampled[-1].update)]
    assert fitted(slow).head_token == pytest.approx(3e-3), "one step alone does not make the head dearer"
    without = fitted(plain)
    assert without.head_token is None and without.row_token > 1.5 * COSTS.row_token, "the head's part is in the token"


def plan_of(costs, tokens, rates=(None, None, None, None), rollout=1e-9):
    free = replace(costs, rollout_token=rollout, rollout_fixed=0.0, completion=0.0, rest=0.0, update_fixed=0.0)
    return planned(Figures(workload=MIXED, costs=free, tokens=tokens), rates=rates)


def test_tokens_are_proposed_where_they_pay_and_left_off_where_not():
    sure, doubt = sample_of(*tokens_of(0.05)), sample_of(*tokens_of(1.0))
    dear = plan_of(replace(COSTS, head_token=6e-3), sure)
    advice = {each.level: each for each in dear.advice}
    assert advice["tokens"].rate > 0 and advice["head"].rate >= 0.5 and advice["completions"].rate == 0
    lines = pasted(dear)
    assert f"token_prune_rate: {advice['tokens'].rate:g}" in lines and "completion_prune_rate: 0" in lines
    assert f"head_prune_rate: {advice['head'].rate:g}" in lines
    assert any(line.startswith("keep 0.") and "from the head" in line for line in findings(dear))
    rows = {row.option.name: row for row in dear.rows}
    assert rows["cuts 0.5"].noise.value > 1 > rows["cuts 0.5, head 0.85"].work.scored / rows["cuts 0.5"].work.scored
    assert "tokens" not in as_json(dear)["figures"] or as_json(dear)["figures"]["tokens"] is None

    unknown = plan_of(COSTS, sure)
    assert {each.level: each for each in unknown.advice}["head"].rate == 0, "nobody measured what the head costs"
    cheap = plan_of(replace(COSTS, row_token=1e-9, head_token=0.0), doubt, rollout=1e-3)
    assert {name.split(":")[0] for name in pasted(cheap)} == {"prompt_prune_rate", "completion_prune_rate"}
    own = plan_of(replace(COSTS, row_token=1e-9, head_token=0.0), doubt, (None, None, 0.5, None), 1e-3)
    assert "token_prune_rate: 0" in pasted(own), "a rate that the configuration has is taken back"
    assert len(plan_of(COSTS, None).advice) == 2 and len(plan_of(COSTS, None).rows) == 8


def test_other_groups_than_those_that_were_sampled_are_planned_by_lengths_alone():
    tokens, small = sample_of(*tokens_of()), replace(STEP, generations=4)
    for option in (Option(name="half", completion_rate=0.5), CUTS):
        assert work_of(MIXED, small, option, tokens) == work_of(MIXED, small, option)
    assert work_of(MIXED, STEP, CUTS, tokens) != work_of(MIXED, STEP, CUTS)
