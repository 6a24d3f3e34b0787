"""The regression behind the predictor: its maximum, and why Newton's steps are shortened."""

import numpy as np
import pytest
import torch

from dppo.pruning.logistic import expansion, posterior_mode
from dppo.rng import Purpose, generator


def objective(x, linear, precision, design, target, count):
    """The objective in torch, written anew."""
    logit = design @ x
    likelihood = count * (
        target * torch.nn.functional.logsigmoid(logit) + (1 - target) * torch.nn.functional.logsigmoid(-logit)
    )
    return linear @ x - x @ precision @ x / 2 + likelihood.sum()


def far_start():
    """A prior far from what the data say: Newton's method from there overshoots."""
    design = np.stack([np.ones(6), np.array([-1.0, -0.5, 0, 0.2, 0.7, 1])], 1)
    return np.array([0.3, 0.2]), np.eye(2) * 0.01, design, np.zeros(6), np.full(6, 50.0)


def random_problem(seed):
    rng = generator(seed, Purpose.CHECK)
    root = rng.normal(size=(4, 4))
    return (
        rng.normal(size=4),
        root @ root.T + 0.1 * np.eye(4),
        rng.normal(size=(9, 4)),
        rng.random(9),
        rng.integers(0, 9, 9),
    )


@pytest.mark.parametrize("problem", [far_start(), random_problem(1), random_problem(2)], ids=["far", "one", "two"])
def test_the_mode_is_where_the_gradient_is_zero(problem):
    tensors = [torch.from_numpy(np.asarray(value, np.float64)) for value in problem]
    mode = torch.from_numpy(posterior_mode(*problem)).requires_grad_()
    objective(mode, *tensors).backward()
    assert mode.grad.abs().max() < 1e-7
    slope, bend = expansion(mode.detach().numpy(), *problem[2:])
    nothing = [torch.zeros(len(mode), dtype=torch.float64), torch.zeros(len(mode), len(mode), dtype=torch.float64)]
    hessian = torch.autograd.functional.hessian(lambda x: objective(x, *nothing, *tensors[2:]), mode.detach())
    np.testing.assert_allclose(bend, -hessian.numpy(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slope, (tensors[1] @ mode - tensors[0]).detach().numpy(), atol=1e-6)


def test_whole_newton_steps_alone_would_not_get_there():
    """The wrong twin: steps that overshoot are taken all the same."""
    linear, precision, *seen = far_start()
    x = np.linalg.solve(precision, linear)
    for _ in range(50):
        slope, bend = expansion(x, *seen)
        x = x + np.linalg.solve(precision + bend, slope + linear - precision @ x)
    assert np.abs(expansion(x, *seen)[0] + linear - precision @ x).max() > 0.1
