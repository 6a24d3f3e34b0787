"""Every preset takes steps in the loop, and biased ones do what their papers say."""

import pytest
import torch

from dppo.methods import METHODS
from dppo.rng import Purpose, torch_generator
from dppo_lab.demo.loop import GENERATIONS

GRPO, PODS = METHODS["grpo"], METHODS["pods"]
PROMPTS = 4


def coin(row_Q, step):
    flips = torch.randint(2, (len(row_Q), GENERATIONS), generator=torch_generator(1, Purpose.CHECK, step)).float()
    flips[:, 0] = torch.tensor([0.5, 2.0, 0.0, 1.0] * len(row_Q))[: len(row_Q)]
    return flips


@pytest.fixture
def steps(still):
    """Gradients of some steps at given points of a run, and their reports."""

    def taken(method, dones=(0.0,), rewards=coin):
        loop, gradients = still(method, rewards, prompts=PROMPTS)
        return gradients, [loop.step(1e-3, done) for done in dones]

    return taken


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.needs_reference])
def test_every_preset_takes_steps(name, steps):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    gradients, reports = steps(method, dones=(0.0, 0.5))
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)
