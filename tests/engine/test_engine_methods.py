"""Every preset takes steps in the loop."""

import pytest
import torch
from mechanisms import one_of_each

from dppo.methods import METHODS
from dppo.rng import Purpose, torch_generator
from examples.engine import GENERATIONS


def coin(row_Q, step):
    return torch.randint(2, (len(row_Q), GENERATIONS), generator=torch_generator(1, Purpose.CHECK, step)).float()


SERVED = [name for name, method in METHODS.items() if not (method.needs_reference or method.tokens.active)]


@pytest.mark.parametrize("name", one_of_each(SERVED))
def test_every_preset_takes_steps(name, still):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    loop, gradients = still(method, coin, prompts=4)
    reports = [loop.step(1e-3, done) for done in (0.0, 0.5)]
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)
