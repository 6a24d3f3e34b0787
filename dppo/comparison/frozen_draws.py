"""Draws of any method on rollouts that stand still: what a trainer would have trained on, thousands of times over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.pruning import BIASED_RULES, Exploration, Pruning, Skipping, keep_probability, learn
from dppo.rng import Purpose, generator
from dppo.trl.draws import take
from dppo.types import Completions
from dppo.verification.estimate import coefficients, full_batch
from dppo.verification.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """M independent draws of a method; one where nothing is left to chance, which is then all there is to know."""

    gradient_MN: Tensor
    """(M, N) float64 what each completion's ``grad sum_t log p_t`` is multiplied by in a draw's gradient."""
    weight_MN: Tensor
    """(M, N) float64 weights, 0 where a completion is not trained on."""
    full_N: Tensor
    """(N,) float64 the same as ``gradient_MN`` for the full batch."""
    prompts_kept_M: Tensor
    """(M,) float64 share of the block's prompts that are used, in [0, 1]."""
    rows: int
    """Completions of the full batch with a gradient."""
    exact: bool
    """Whether nothing is left to chance."""


class ChanceNeeded(Exception):
    """A draw asked for a random number."""


class NoChance:
    """Stands in for a random generator where there should be nothing to draw.

    Raises:
        ChanceNeeded: at any use.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise ChanceNeeded(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One draw, in the order of the subject's completions."""

    weight_N: Tensor
    """(N,) float64."""
    advantage_N: Tensor
    """(N,) float64 what completions are trained with."""
    denominator: float
    prompts: int
    """Of the block that are used: rolled out, and for rounds with rewards that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A subject with what is the same in every draw of a method. Made by ``block``."""

    subject: Subject
    method: Method
    everything: Completions
    """All N completions, with the advantages that whole groups give where every prompt is rolled out."""
    reward_PG: Tensor
    rolled_out_P: Tensor | None
    """(P,) chance of being rolled out where prompts are skipped by their past; None where they are not."""

    def draw(self, prompt_rng: np.random.Generator, completion_rng: np.random.Generator) -> Drawn:
        """One draw of prompts, then one of the completions of those that are rolled out.

        Args:
            prompt_rng: for the prompts.
            completion_rng: for the completions.
        """
        keep_P, weight_P, counted = self._prompts(prompt_rng)
        count, normaliser = self.reward_PG.shape[1], self.method.normaliser
        row_R = keep_P.repeat_interleave(count).nonzero().squeeze(1)
        weight_N, advantage_N = torch.zeros(2, len(self.everything.advantage_N), dtype=torch.float64)
        if not len(row_R):
            return Drawn(weight_N=weight_N, advantage_N=advantage_N, denominator=1.0, prompts=0)
        part, reward_QG = self._rolled_out(row_R, keep_P), self.reward_PG[keep_P]
        draw = self.method.completions.draw_completions(part, completion_rng)
        prompt_weight_R = weight_P[keep_P].repeat_interleave(count)
        weight_R = draw.weight_N * prompt_weight_R
        trained_R = self.method.trained_advantages(
            reward_QG, part.advantage_N.view_as(reward_QG), (weight_R > 0).view_as(reward_QG)
        ).flatten()
        weight_N[row_R] = weight_R * (self.method.live(trained_R) & (part.tokens_N > 0))
        advantage_N[row_R] = trained_R
        tokens = float((prompt_weight_R * part.tokens_N).sum())
        return Drawn(
            weight_N=weight_N,
            advantage_N=advantage_N,
            denominator=normaliser.denominator(counted * count, tokens, self.subject.max_tokens),
            prompts=int(keep_P.sum()),
        )

    def _prompts(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, int]:
        """(P,) prompts whose groups are used, (P,) their weights, and the prompts that a denominator counts."""
        size = len(self.reward_PG)
        if self.method.rounds is not None:
            used_P = self.method.rounds.counts(self.reward_PG)
            if self.rolled_out_P is not None:
                used_P &= torch.from_numpy(rng.random(size) < self.rolled_out_P.numpy())
            return used_P, used_P.double(), int(used_P.sum())
        if not self.method.prompts.rate:
            return torch.ones(size, dtype=torch.bool), torch.ones(size, dtype=torch.float64), size
        draw = self.method.prompts.draw_prompts(self.subject.candidates, rng)
        return draw.keep_N, draw.weight_N, size

    def _rolled_out(self, row_R: Tensor, keep_P: Tensor) -> Completions:
        """What completion pruning sees of the prompts rolled out."""
        if len(row_R) == len(self.everything.advantage_N):
            return self.everything
        if not self.method.advantages.prompt_exact:
            return self.subject.completions(self.method, keep_P)
        return take(self.everything, row_R)


def block(subject: Subject, method: Method) -> Block:
    """A subject with what is the same in every draw of a method.

    Args:
        subject: the rollouts.
        method: at the rates to be drawn with.
    """
    method = replace(method, prompts=remembering(method.prompts), completions=remembering(method.completions))
    skipping = None if method.rounds is None else method.rounds.skipping
    return Block(
        subject=subject,
        method=method,
        everything=subject.completions(method),
        reward_PG=subject.reward_PG,
        rolled_out_P=None if skipping is None else _not_skipped(skipping, subject.earlier_reward_PG),
    )


def _not_skipped(skipping: Skipping, earlier_PG: Tensor) -> Tensor:
    """(P,) float64 chance of being rolled out at the start of a run, after one earlier group per prompt."""
    start = Exploration.at_start(skipping)
    kind_P, _ = learn(skipping, start, earlier_PG, epochs=0.0)
    easy_P = keep_probability(kind_P.clamp_min(0), start.easy, skipping.floor)
    return easy_P * keep_probability((-kind_P).clamp_min(0), start.hard, skipping.floor)


def remembering(pruning: Pruning) -> Pruning:
    """The same pruning, which works the probabilities of equal scores out only once.

    Rules that name themselves biased are known by their identity, so they are left as they are; they need one draw.

    Args:
        pruning: any.
    """
    if pruning.rule in BIASED_RULES:
        return pruning
    known: dict[tuple[object, ...], Tensor] = {}

    def rule(
        score_N: Tensor, *, rate: float, floor: float, cost_N: Tensor | None = None, group_N: Tensor | None = None
    ) -> Tensor:
        parts = (score_N, cost_N, group_N)
        key = (rate, floor, *(None if part is None else part.numpy().tobytes() for part in parts))
        if key not in known:
            known[key] = pruning.rule(score_N, rate=rate, floor=floor, cost_N=cost_N, group_N=group_N)
        return known[key]

    return replace(pruning, rule=rule)


def sample(subject: Subject, method: Method, draws: int, seed: int) -> Sample:
    """Independent draws of a method on a subject, or the only one there is.

    Args:
        subject: the rollouts, with the candidates that the method draws prompts from.
        method: at the rates to be drawn with.
        draws: M, >= 2.
        seed: of the draws.
    """
    prepared = block(subject, method)
    alone = _without_chance(prepared)
    streams = generator(seed, Purpose.PROMPT_DRAW), generator(seed, Purpose.COMPLETION_DRAW)
    drawn = [alone] if alone else [prepared.draw(*streams) for _ in range(draws)]
    return Sample(
        gradient_MN=gradients(subject, method, drawn),
        weight_MN=torch.stack([one.weight_N for one in drawn]),
        full_N=full_batch(subject, method),
        prompts_kept_M=torch.tensor([one.prompts for one in drawn]).double() / len(subject.reward_PG),
        rows=int(prepared.everything.live_N.sum()),
        exact=alone is not None,
    )


def gradients(subject: Subject, method: Method, drawn: Sequence[Drawn]) -> Tensor:
    """(M, N) what each completion's ``grad sum_t log p_t`` is multiplied by in the gradient of each draw.

    Args:
        subject: the rollouts.
        method: gives loss and normaliser.
        drawn: M draws.
    """
    weight_MN = torch.stack([one.weight_N for one in drawn])
    slope_MN = coefficients(subject, method, torch.stack([one.advantage_N for one in drawn]).flatten())
    denominator_M1 = torch.tensor([[one.denominator] for one in drawn], dtype=torch.float64)
    tokens_N = subject.tokens_N.double().clamp_min(1)
    per_token_N = tokens_N.reciprocal() if method.normaliser.per_sequence else torch.ones_like(tokens_N)
    return weight_MN * slope_MN.view_as(weight_MN) * per_token_N / denominator_M1


def _without_chance(prepared: Block) -> Drawn | None:
    """The only draw there is; None where there are several."""
    none = cast(np.random.Generator, NoChance())
    try:
        return prepared.draw(none, none)
    except ChanceNeeded:
        return None
