"""What a run saved, and what it tells others: sums that a pencil can check, trackers, last lines, and a card."""

import json
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from arrays import candidates_of
from refusals import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import logged
from trl_recorder_runs import make

from dppo.costs import PassCosts, Passes, Spent, TokenCosts
from dppo.errors import CheckpointError
from dppo.methods import METHODS
from dppo.moment_samples import MomentSamples
from dppo.pruning import COMPLETION_AUTO
from dppo.rng import Purpose, step_streams
from dppo.step import RolledOut, drawn_block, plan_step, whole_block
from dppo.trl.grpo.lines import closing_lines
from dppo.trl.grpo.savings import CostMeter, Savings, trained_tokens, unpruned_rows
from dppo.types import Block, Rewards, Work

PROMPTS, GROUP = 6, 4
SCORING, TRAINING = (PassCosts().after(seconds, Passes(1, 50, 1, 50, 1)) for seconds in (5.0, 20.0))
COSTS = TokenCosts(seconds=10.0, generated=100.0, trained=100.0, scoring=SCORING, training=TRAINING, fixed=True)
"""By which a generated, a scored and a trained token take a tenth, a tenth and four tenths of a second."""
TOKENS = torch.arange(10, 10 + PROMPTS * GROUP)
REWARDS = torch.tensor([[1.0, 0, 0, 1]] * 4 + [[1.0] * 4] * 2).flatten()


def step_of(method, *, rate=0.0, index=0):
    """A step over prompts of known signal, of which some are rolled out."""
    candidates = candidates_of([1.0, 2, 3, 4, 0.1, 0.1], tokens=[20.0] * PROMPTS)
    streams = step_streams(0, index)
    prompts = whole_block(PROMPTS, PROMPTS * GROUP)
    if rate:
        method = method.with_rates(prompt=rate)
        drawn = method.prompts.draw(candidates, streams(Purpose.PROMPT_DRAW))
        prompts = drawn_block(Block(candidates=candidates, draw=drawn), GROUP)
    keep_N = prompts.draw.keep_N.repeat_interleave(GROUP)
    found = RolledOut(rewards=Rewards.of_groups(REWARDS[keep_N].view(-1, GROUP)), tokens_N=TOKENS[keep_N])
    return plan_step(method, found, prompts, streams=streams, max_tokens=50)


def test_a_step_that_leaves_out_flat_groups_saves_their_scoring_and_training():
    plan = step_of(METHODS["dr_grpo"])
    live, whole = float(TOKENS[:16].sum()), float(TOKENS.sum())
    row_UN, times_U = unpruned_rows(plan)
    assert trained_tokens(plan) == live and row_UN.all() and times_U == [1.0]
    found, passes = Savings(), Passes(1, live, 1, whole, 1)
    for _ in range(2):
        found = found.after(Spent(total=30.0, scored=passes, trained=passes)).planned(plan)
    flat = 2 * (whole - live)
    assert found.saved_seconds(COSTS) == pytest.approx(flat * (0.1 + 0.4)), "nothing of the rollout"
    assert found.metrics(COSTS)["saved/share"] == pytest.approx(flat * 0.5 / (60 + flat * 0.5))
    assert found.completions == (48.0, 32.0, 32.0) and found.prompts == (12.0, 12.0)
    pruned, _ = found.lines(COSTS)
    assert "33% of 48 completions were not trained on (33% had no gradient" in pruned and "prompts" not in pruned
    early = replace(COSTS, fixed=False)
    assert found.metrics(early) == {} and "not yet known" in found.lines(early)[1], "no guess before it is known"
    never = TokenCosts(fixed=True)  # of a checkpoint before anything was measured
    assert found.metrics(never) == {} and "save_steps" in found.lines(never)[1]
    assert Savings().lines(COSTS) == []

    assert Savings.of_saved(json.loads(json.dumps(asdict(found)))) == found and Savings.of_saved({}) == Savings()
    for wrong in ({"whole": 3}, {"scored": [1.0] * 6}):
        with refused(CheckpointError, "damaged"):
            Savings.of_saved(wrong)


def test_seconds_are_the_first_processs_and_passes_those_of_the_busiest():
    """Fifteen different numbers are gathered in one tensor, and each comes back in its place."""
    seconds = Counter(rollout=1.0, reward=2.0, log_probs=4.0, forward_backward=5.0, step=9.0, loading=3.0, check=1.0)
    other = torch.tensor([[90.0] * 4 + [0.0] * 4 + [7.0] + [0.0] * 5])
    gathered = SimpleNamespace(device="cpu", gather=lambda here: torch.cat([here, other]))
    forwards, clock = SimpleNamespace(run=(Work(), Work())), SimpleNamespace(total=Counter())
    meter = CostMeter(clock, gathered, forwards)
    clock.total, forwards.run = seconds, (Work(passes=13, tokens=14), Work(passes=15, tokens=16))
    meter.plan(scored=[Work(passes=8, tokens=9), Work(passes=9, tokens=9)], trained=[Work(passes=19, tokens=20)])
    assert meter.spent() == Spent(3, 4, 5, 11, Passes(13, 14, 17, 18, 7), Passes(15, 16, 19, 20, 1))
    assert meter.spent().trained == Passes(), "what was spent since: the same totals"


def test_prompts_that_were_not_rolled_out_are_estimated_without_bias():
    method = METHODS["dppo"].with_rates(completion=0.5)
    total, each, generated = Savings(), [], 0.0
    for index in range(200):
        plan = step_of(method, rate=0.5, index=index)
        before, total = total, total.planned(plan)
        row_UN, (times,) = unpruned_rows(plan)
        planned = times * float((row_UN[0] * plan.completions.tokens_N).sum())
        each.append([total.unpruned_tokens - before.unpruned_tokens, planned])
        generated += float(plan.completions.tokens_N.sum())
    whole = float(TOKENS.sum())
    assert (abs(np.mean(each, 0) - whole) < 4 * np.std(each, 0, ddof=1) / 200**0.5).all()
    assert generated / 200 < 0.8 * whole, "the wrong twin: what was rolled out alone"
    assert total.prompts[1] / total.prompts[0] == pytest.approx(0.5, abs=0.05)
    assert total.saved_seconds(COSTS) > 0 and "not rolled out" in total.lines(COSTS)[0]


ALIKE = MomentSamples.known(torch.ones(64), torch.ones(64))
VARIED = MomentSamples.known((1 + torch.arange(64.0)).square(), torch.ones(64))


def savings_of(kept=32.0, rolled_out=12.0):
    """Savings of a run with 32 completions that have a gradient, and 12 candidates."""
    return Savings(completions=(48.0, 32.0, kept), prompts=(12.0, rolled_out))


@pytest.mark.parametrize(
    ("cost", "samples", "why"),
    [
        (1.0, ALIKE, "at most 1.00x"),
        (1e6, VARIED, "rollouts are paid for"),
        (9.0, VARIED, "once 1.05x is sure"),
    ],
)
def test_a_rate_that_was_left_at_0_is_not_said_to_be_in_use(cost, samples, why):
    completions = METHODS["dppo"].completions
    auto = replace(COMPLETION_AUTO, rollout_cost=cost)
    method = replace(METHODS["dppo"], completions=replace(completions.at_rate(auto.largest), auto=auto))
    samples = replace(samples, paid_N=samples.cost_N)
    assert method.completions.choice(samples).rate == 0
    (line,) = closing_lines(method, savings_of(), samples, None)
    assert "completion_prune_rate: auto dropped none" in line and why in line
    (line,) = closing_lines(method, savings_of(kept=24.0), samples, None)
    assert "auto dropped 25%" in line, "as in its line 'pruned'"


def test_a_line_at_the_end_says_what_was_dropped_or_what_to_set():
    method = METHODS["dppo"].with_rates(prompt=0.0, completion=0.0)
    assert closing_lines(method, savings_of(), ALIKE, ALIKE) == [], "nothing can be done"
    assert closing_lines(method, savings_of(), None, VARIED)[0].endswith("Try prompt_prune_rate: auto")
    given = METHODS["dppo"].with_rates(prompt=0.25, completion=0.5)
    first, second = closing_lines(given, savings_of(kept=16.0, rolled_out=9.0), VARIED, ALIKE)
    assert "completion_prune_rate: 0.5 dropped 50%" in first and second.endswith("Set prompt_prune_rate: 0")
    assert closing_lines(given, Savings(), VARIED, VARIED) == [], "nothing was trained on"
    assert closing_lines(METHODS["dapo"], savings_of(), None, VARIED) == [], "rounds have no draw of prompts"


def test_a_run_tells_trackers_its_last_lines_and_the_card_of_its_model(tiny_path, tmp_path, monkeypatch, capsys):
    """Other trackers as tensorboard: transformers gives each of them the same log."""
    monkeypatch.setattr("dppo.costs.MEASURED_GENERATIONS", 1)  # known after the second generation
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer, _ = make(tiny_path, tmp_path, recorded=False, report_to="tensorboard", max_steps=4, prompt_prune_rate=0.0)
    trainer.train()
    assert "saved/share" not in trainer.state.log_history[0], "not before it is known"
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for name in ("saved/seconds", "saved/share", "prune/kept_share", "prune/prompts_kept_share", "reward"):
        assert events.Scalars(f"train/{name}")[-1].value == pytest.approx(logged(trainer, name)[-1], rel=1e-5), name

    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("dppo | ")]
    pruned, saved, more = said[-3:]
    assert "completions were not trained on" in pruned and "not drawn" in pruned and "prompts" not in pruned
    assert saved.startswith(f"dppo | saved: {trainer.savings.metrics(trainer.session.costs)['saved/share']:.0%}, about")
    assert more.startswith("dppo | completions: completion_prune_rate: 0.5 ")
    assert 0 < logged(trainer, "saved/share")[-1] < 1

    trainer.save_model()
    card = (tmp_path / "README.md").read_text()
    assert card.count("## How it was trained: dppo") == 1 and "- dppo" in card
    assert f"| method | `{trainer.method.name}` |" in card and f"| paper | {trainer.method.paper} |" in card
    assert f"| completions pruned | {trainer.method.completions.rate:.0%} of those with a gradient |" in card
    trainer.save_model(str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere" / "README.md").exists()
