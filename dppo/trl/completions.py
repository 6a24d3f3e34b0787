"""What is trained on of a generation: all ranks' completions gathered, the draws, and the full batch's size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.methods import PER_TOKEN_SCORES, Method
from dppo.pruning import advantage_with_confidence
from dppo.trl.draws import Schedule, deal, draw_shares
from dppo.trl.metrics import draw_metrics
from dppo.trl.prompts import Selection
from dppo.types import Completions

CONFIDENCE_SCORES = (advantage_with_confidence, PER_TOKEN_SCORES[advantage_with_confidence])


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The draws of one generation and what its sums are divided by."""

    weight_SN: Tensor
    """(passes * shares, N) float64, 0 where a completion is not trained on."""
    prob_SN: Tensor
    """(passes * shares, N) float64 probability of each in each draw; 0 in other shares and without a gradient."""
    advantage_N: Tensor
    """(N,) float64, what completions are trained with."""
    sequences: int
    """Completions of the full batch, those of prompts that were not rolled out included."""
    tokens: float
    """Tokens of the full batch: exact where every candidate was rolled out, estimated by prompt weights otherwise."""
    figures: dict[str, float]
    """Metrics of the generation."""
    draw_figures: list[dict[str, float]]
    """Metrics of each draw."""
    signal: bool
    """Whether any group's rewards differ."""


@dataclass(frozen=True, kw_only=True)
class CompletionSelector:
    """Draws the completions of each generation: the same draw on every rank, from the run's seed."""

    method: Method
    schedule: Schedule
    seed: int
    group: int
    """G, completions per prompt."""
    processes: int
    gather: Callable[[Tensor], Tensor]
    """Concatenates a tensor over ranks, in rank order."""
    equal_is_zero: bool = True
    """Whether a group of equal rewards has advantage 0: not where each reward function is normalised by itself."""

    def collect(self, output: dict[str, Any], loss_mask: Tensor, reward_N: Tensor) -> Completions:
        """All ranks' completions of a generation.

        A group whose rewards are all equal gets advantage 0: what TRL leaves there is rounding of its mean.

        Args:
            output: what TRL returned for this rank.
            loss_mask: (B, T) tokens of this rank that carry loss.
            reward_N: (N,) rewards of all ranks, NaN where there is none.
        """
        advantage_N = self.method.advantages.transform(self.gather(output["advantages"]).cpu().double())
        tokens_N = self.gather(loss_mask.sum(1)).cpu()
        if self.equal_is_zero:
            reward_QG = reward_N.view(-1, self.group)
            low_Q, high_Q = reward_QG.nan_to_num(torch.inf).amin(1), reward_QG.nan_to_num(-torch.inf).amax(1)
            advantage_N[(low_Q >= high_Q).repeat_interleave(self.group)] = 0.0
        confidence_N = None
        wants_confidence = self.method.completions.score in CONFIDENCE_SCORES
        if wants_confidence and "sampling_per_token_logps" not in output:
            raise ConfigError(
                "the completion score is confidence, but these rollouts came without log-probabilities. "
                "Set completion_score: length."
            )
        if "sampling_per_token_logps" in output:
            unsure_BT = 1 - torch.nan_to_num(output["sampling_per_token_logps"], nan=0.0).exp()
            confidence_N = self.gather((unsure_BT.square() * loss_mask).sum(1).sqrt()).cpu().double()
        return Completions(
            advantage_N=advantage_N,
            tokens_N=tokens_N,
            group_N=torch.arange(len(advantage_N)) // self.group,
            live_N=self.method.live(advantage_N) & (tokens_N > 0),
            confidence_N=confidence_N,
            process_N=torch.arange(len(advantage_N)) // (len(advantage_N) // self.processes),
        )

    def signal(self, completions: Completions) -> Tensor:
        """(Q,) size of each group's gradient as far as scores tell: the root of the sum of its squared scores."""
        score_N = self.method.completions.score(completions) * completions.live_N
        return score_N.view(-1, self.group).double().square().sum(1).sqrt()

    def draw(
        self,
        completions: Completions,
        reward_N: Tensor,
        selection: Selection | None,
        generation: int,
        done: float = 0.0,
    ) -> Drawn:
        """Every draw of a generation.

        Args:
            completions: from ``collect``.
            reward_N: (N,) rewards.
            selection: the prompts rolled out; None where all were.
            generation: its number, which with the seed is the key of the draws.
            done: share of training done, in [0, 1], for schedules.
        """
        method = self.method.at(done)
        groups = len(completions.advantage_N) // self.group
        weight_Q = torch.ones(groups, dtype=torch.float64) if selection is None else selection.weight_Q
        candidates = groups if selection is None else selection.candidates
        estimate_Q = weight_Q if selection is None or selection.estimate_Q is None else selection.estimate_Q
        prompt_weight_N = weight_Q.repeat_interleave(self.group)
        key = (self.seed, generation)
        share_N = deal(len(prompt_weight_N) // self.processes, self.processes, self.schedule.shares, *key)
        weight_SN, prob_SN = draw_shares(method, completions, prompt_weight_N, share_N, self.schedule, key)
        advantage_N = self._trained(method, completions, reward_N, (weight_SN > 0).any(0))
        weight_SN = weight_SN * (method.live(advantage_N) & (completions.tokens_N > 0))
        score_N = method.completions.score(completions)
        records = []
        for index, (weight_N, prob_N) in enumerate(zip(weight_SN, prob_SN, strict=True)):
            rows = share_N == index % self.schedule.shares
            records.append(draw_metrics(weight_N[rows], prob_N[rows], score_N[rows], completions.tokens_N[rows]))
        signal_Q = (completions.advantage_N != 0).view(groups, -1).any(1)
        reward_Q = reward_N.view(groups, -1).nanmean(1)
        return Drawn(
            weight_SN=weight_SN,
            prob_SN=prob_SN,
            advantage_N=advantage_N,
            sequences=candidates * self.group,
            tokens=float((prompt_weight_N * completions.tokens_N).sum()),
            figures={
                "candidates/reward": float((estimate_Q * reward_Q).nansum() / estimate_Q[~reward_Q.isnan()].sum()),
                "candidates/zero_signal_groups": float((estimate_Q * ~signal_Q).sum() / estimate_Q.sum()),
                "rollout/zero_signal_groups": 1.0 - signal_Q.double().mean().item(),
                "prune/prompts_kept_share": 1.0 if selection is None else selection.kept_share,
                "prune/largest_prompt_weight": weight_Q.max().item(),
                "prune/prompts_with_history": 0.0 if selection is None else selection.seen_share,
            },
            draw_figures=records,
            signal=bool(signal_Q.any()),
        )

    def _trained(self, method: Method, completions: Completions, reward_N: Tensor, keep_N: Tensor) -> Tensor:
        """(N,) advantages that kept completions are trained with; ``keep_N`` (N,) says which some draw keeps."""
        parts = (reward_N, completions.advantage_N, keep_N)
        return method.trained_advantages(*(part.view(-1, self.group) for part in parts)).flatten()
