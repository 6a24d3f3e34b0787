"""Gradients of single completions, and the inner products between them, computed once for thousands of draws."""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dppo.rng import Purpose, torch_generator
from dppo.verification.subject import EXACT_COORDINATES, log_probs, trained_parameters

FOLDED_COORDINATES = 2**17
"""Length of folded gradients. Inner products are right to about 1 / sqrt(this), 0.3%."""


class Folding:
    """Makes gradients short enough to store: above ``EXACT_COORDINATES`` they are folded to ``FOLDED_COORDINATES``.

    Folding adds pieces of that length with random signs. It is linear, so an unbiased estimate stays unbiased and a
    biased one biased; inner products are right on average over the signs.

    Source: Charikar, Chen, Farach-Colton, Finding frequent items in data streams (2002), with signs per piece.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], seed: int = 0) -> None:
        total = sum(parameter.numel() for parameter in parameters)
        self.exact = total <= EXACT_COORDINATES
        self.length = total if self.exact else FOLDED_COORDINATES
        signs = torch_generator(seed, Purpose.CHECK, 1)
        self._places: list[tuple[int, Tensor]] = []
        used = 0
        for parameter in parameters:
            start = used % self.length
            pieces = max(1, math.ceil((start + parameter.numel()) / self.length))
            sign = torch.randint(2, (pieces,), generator=signs).mul(2).sub(1).float()
            self._places.append((start, torch.ones(1) if self.exact else sign))
            used += parameter.numel()

    def __call__(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """(length,) float32 on the CPU: the parameters' gradients, concatenated and folded."""
        folded = torch.zeros(self.length)
        for parameter, (start, signs) in zip(parameters, self._places, strict=True):
            if parameter.grad is None:
                continue
            rest = parameter.grad.detach().flatten().float().cpu()
            for sign in signs:
                piece, rest = rest[: self.length - start], rest[self.length - start :]
                folded[start : start + len(piece)].add_(piece, alpha=float(sign))
                start = 0
        return folded


def score_gradients(
    model: PreTrainedModel,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    temperature: float = 1.0,
    group: int = 1,
    limit_seconds: float = math.inf,
) -> tuple[Tensor, list[Tensor]]:
    """(n, K) gradients of the log-probability of each completion, ``grad sum_t log p_t``, and n log-probabilities (T,).

    Gradients are float32, folded if there are too many parameters; the model is left without gradients. ``pairs`` are
    token ids of (prompt, completion), ``group`` completions of each prompt. The logits are divided by ``temperature``.
    No further group begins after ``limit_seconds``; at least two are done.
    """
    parameters = trained_parameters(model)
    folding, start = Folding(parameters), time.perf_counter()
    gradient_NK = torch.zeros(len(pairs), folding.length)
    logp_N: list[Tensor] = []
    for index, (prompt, completion) in enumerate(pairs):
        if index % group == 0 and index >= 2 * group and time.perf_counter() - start > limit_seconds:
            break
        model.zero_grad()
        logp_T = log_probs(model, prompt, completion, temperature)
        logp_T.sum().backward()
        gradient_NK[index] = folding(parameters)
        logp_N.append(logp_T.detach().cpu())
    model.zero_grad()
    return gradient_NK[: len(logp_N)], logp_N


def gram(gradient_NK: Tensor) -> Tensor:
    """(N, N) float64 inner products of the rows of ``gradient_NK``."""
    parts = gradient_NK.split(2**16, dim=1)  # a copy of all in float64 would be too large
    return sum((part.double() @ part.double().T for part in parts), torch.zeros((), dtype=torch.float64))
