"""`examples/engine.py`: the same gradient as the formula, unbiased when pruned; every preset takes steps."""

from dataclasses import replace

import pytest
import torch
from mechanisms import one_of_each

from dppo.lab.demo.decode import sample
from dppo.methods import METHODS
from dppo.pruning import UNWEIGHTED
from dppo.rng import Purpose, step_streams, torch_generator
from examples.engine import GENERATIONS, everything

GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
SERVED = [name for name, method in METHODS.items() if not (method.needs_reference or method.tokens.active)]


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
        monkeypatch.setattr("dppo.session.step_streams", lambda seed, step: step_streams(draw_seed, step))
        monkeypatch.setattr("examples.engine.sample", once)
        loop, gradients = still(method, coin, prompts=4, live=live)
        report = loop.step(1e-3)
        return gradients[0], report

    return found


def test_dropping_completions_without_gradient_is_exact(gradient_of_step):
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


@pytest.mark.parametrize("name", one_of_each(SERVED))
def test_every_preset_takes_steps(name, still):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    loop, gradients = still(method, coin, prompts=4)
    reports = [loop.step(1e-3, done) for done in (0.0, 0.5)]
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)
