"""Muon in the arithmetic of its matrices: ``torch.optim.Muon`` iterates in bfloat16, which few CPUs have."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of ``a X + b (X X^T) X + c (X X^T)^2 X``, the steepest at singular values near 0."""
ITERATIONS, SMALLEST_NORM = 5, 1e-7


def orthogonalise(matrix: Tensor) -> Tensor:
    """The matrix with its singular values moved to between about 0.7 and 1.2, those near 0 less far.

    Args:
        matrix: (A, B) floating point; the result has its shape and dtype.

    Source: Jordan et al. (2024), Muon: the quintic Newton-Schulz iteration.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T  # so that X X^T is the smaller product
    x = wide / wide.norm().clamp_min(SMALLEST_NORM)  # the largest singular value is then at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: what ``torch.optim.Muon`` does with its defaults, without its bfloat16.

    Args:
        matrices: parameters of two dimensions.
        lr: learning rate, > 0; a matrix of A rows and B columns takes steps of ``lr * sqrt(max(1, A / B))``.
        momentum: of the running mean of gradients, in [0, 1); with a look ahead, as in Nesterov's method.
        weight_decay: share of ``lr`` by which matrices shrink with each step, >= 0.

    Source: Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks.
    """

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step along ``.grad``; matrices without one stay as they are. ``closure`` is not used."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - momentum)
                update = orthogonalise(matrix.grad.lerp(mean, momentum))
                matrix.mul_(1 - lr * group["weight_decay"])
                matrix.add_(update, alpha=-lr * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)
