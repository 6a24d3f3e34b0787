"""The loop: the same gradient as the formula, unbiased when pruned; and races are fair."""

import copy
from dataclasses import replace

import pytest
import torch

from dppo.methods import METHODS
from dppo.pruning import UNWEIGHTED
from dppo.rng import Purpose, step_streams, torch_generator
from dppo_lab.demo.decode import sample
from dppo_lab.demo.loop import GENERATIONS, PROMPTS, everything
from dppo_lab.demo.race import RaceSetting, contestants, race
from dppo_lab.demo.run import seconds_to

GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]


def coin(row_Q, step):
    return torch.randint(2, (len(row_Q), GENERATIONS), generator=torch_generator(1, Purpose.CHECK, step)).float()


@pytest.fixture
def gradient_of_step(still, monkeypatch):
    """The gradient and report of one step; ``draw_seed`` chooses other completions from the same rollouts."""
    rolled_out = []

    def once(*given, **named):
        rolled_out[:] = rolled_out or [sample(*given, **named)]
        return rolled_out[0]

    def found(method, draw_seed=0, live=None):
        monkeypatch.setattr("dppo_lab.demo.loop.step_streams", lambda seed, step: step_streams(draw_seed, step))
        loop, gradients = still(method, coin, prompts=4, live=live, decoder=once)
        report = loop.step(1e-3)
        return gradients[0], report

    return found


def test_dropping_completions_without_gradient_is_exact(gradient_of_step):
    """Plain GRPO forwards everything; leaving out zero advantages, over the same denominator, changes nothing."""
    full, everything_kept = gradient_of_step(GRPO, live=everything)
    less, report = gradient_of_step(GRPO)
    assert everything_kept.completions_trained == 4 * GENERATIONS >= report.completions_trained
    torch.testing.assert_close(less, full, rtol=1e-4, atol=1e-7)


def test_pruned_gradient_is_right_on_average(gradient_of_step):
    full, _ = gradient_of_step(GRPO)

    def error(method):
        draws = torch.stack([gradient_of_step(method, draw_seed=seed)[0] for seed in range(1, 25)])
        return (draws.mean(0) - full).square().sum() / (draws - full).square().sum(1).mean()

    pruned = DPPO.with_rates(completion=0.5, prompt=0.0)
    assert error(pruned) < 4 / 24  # 1 / draws is expected; 4 times that has probability below 1e-3
    forgotten = replace(pruned, completions=replace(pruned.completions, weighting=UNWEIGHTED))
    assert error(forgotten) > 8 / 24


def test_a_race_starts_equal_and_stops_at_equal_seconds(start, monkeypatch):
    for module in ("loop", "evaluate"):
        monkeypatch.setattr(f"dppo_lab.demo.{module}.MAX_NEW_TOKENS", 12)
    model, tokenizer, split = start
    before = copy.deepcopy(model.state_dict())
    seen = []
    runners = race(
        model,
        tokenizer,
        split,
        contestants(),
        RaceSetting(steps=3, evaluations=3, samples=1),
        seed=0,
        on_turn=lambda runner, share: seen.append((runner.name, share)),
    )
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    grpo, dppo = runners
    assert grpo.curve[0] == dppo.curve[0] and grpo.loop.steps == 3
    assert dppo.seconds >= grpo.seconds and dppo.loop.steps >= 1
    assert [len(r.curve) for r in runners] == [4, 4]
    assert seen[:2] == [("grpo", 1 / 3), ("dppo", 1 / 3)]
    assert grpo.total("completions_trained") == grpo.total("rollouts") == 3 * PROMPTS * GENERATIONS


def test_time_to_target_interpolates():
    curve = [{"seconds": s, "accuracy": a} for s, a in ((0, 0.2), (10, 0.4), (20, 0.3), (30, 0.6))]
    assert seconds_to(curve, 0.1) == 0 and seconds_to(curve, 0.3) == pytest.approx(5.0)
    assert seconds_to(curve, 0.5) == pytest.approx(20 + 10 * 2 / 3) and seconds_to(curve, 0.7) is None
