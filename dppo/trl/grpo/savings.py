"""Costs of a run's generations, and what was saved so far.

Costs are measured on one process, told to all, then constant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dppo.costs import MEASURED_GENERATIONS, Spent, TokenCosts
from dppo.errors import CheckpointError, duration
from dppo.step import StepPlan
from dppo.trl.forwards import ForwardPasses
from dppo.trl.metrics import CHECK, LOADING, RECORD, STEP, PhaseClock
from dppo.types import Work

GENERATING, SCORING, TRAINING = ("rollout", "reward"), ("log_probs",), ("forward_backward",)


class CostMeter:
    """Reads the clock of the phases, and counts forward passes, between two generations.

    Every number that it returns is equal on all processes.
    """

    def __init__(self, clock: PhaseClock, accelerator: Any, forwards: ForwardPasses) -> None:
        self._clock, self._accelerator, self._forwards = clock, accelerator, forwards
        self._unpruned: tuple[list[Work], list[Work]] = [], []
        self._before = self._so_far()

    def plan(self, *, scored: Sequence[Work] = (), trained: Sequence[Work] = ()) -> None:
        """Add passes that would be run now if nothing were dropped, one entry for each layout of completions."""
        for found, more in zip(self._unpruned, (scored, trained), strict=True):
            found.extend(more)

    def spent(self) -> Spent:
        """Seconds and passes since the last call; all processes call together.

        Seconds are those of the first process. Passes are those of the process with most, because others wait for it.
        """
        now = self._so_far()
        scored, trained = self._unpruned
        works = [a - b for a, b in zip(now.run, self._before.run, strict=True)]
        here = Spent(
            seconds=tuple(a - b for a, b in zip(now.seconds, self._before.seconds, strict=True)),
            total=now.total - self._before.total,
            run=(works[0], works[1]),
            unpruned=(sum(scored, Work()), sum(trained, Work())),
            layouts=(float(len(scored)), float(len(trained))),
        )
        self._before, self._unpruned = now, ([], [])
        of_ranks = self._accelerator.gather(torch.tensor([here.values], device=self._accelerator.device))
        seconds = len(here.seconds) + 1
        return Spent.of_values(of_ranks[0, :seconds].tolist() + of_ranks[:, seconds:].amax(0).tolist())

    def _so_far(self) -> Spent:
        total = self._clock.total
        return Spent(
            seconds=tuple(sum(total[phase] for phase in phases) for phases in (GENERATING, SCORING, TRAINING)),
            total=total[STEP] + total[LOADING] - total[RECORD] - total[CHECK],
            run=self._forwards.run,
        )


def trained_tokens(plan: StepPlan) -> float:
    """Completion tokens that all draws of a generation keep, those of several optimizer steps counted in each."""
    if plan.token_draws:
        return sum(float(draw.length_N.sum()) for draw in plan.token_draws)
    return float(((plan.weight_UN > 0) * plan.completions.tokens_N).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Sums over a run, of what was done and of what steps that prune nothing would have done.

    Pairs of passes are those without and those with a gradient. Prompts that were not rolled out are estimated by one
    over the probability of those that were.
    """

    unpruned_tokens: float = 0.0
    """Completion tokens that steps without pruning would have generated, >= 0."""
    generated: float = 0.0
    """Completion tokens that were generated, >= 0."""
    unpruned: tuple[Work, Work] = (Work(), Work())
    """Passes of steps that prune nothing."""
    run: tuple[Work, Work] = (Work(), Work())
    """Passes that were run."""
    completions: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Completions rolled out, with a gradient, and trained on."""
    prompts: tuple[float, ...] = (0.0, 0.0)
    """Candidate prompts, and those rolled out."""
    live_tokens: tuple[float, ...] = (0.0, 0.0)
    """Of completions with a gradient the tokens, and those forwarded, where cuts are drawn; else 0."""
    seconds: float = 0.0
    """Seconds of whole optimizer steps, of the first process."""

    def after(self, spent: Spent) -> "Savings":
        """These sums and the seconds and passes of some more of the run."""
        unpruned = self.unpruned[0] + spent.unpruned[0], self.unpruned[1] + spent.unpruned[1]
        run = self.run[0] + spent.run[0], self.run[1] + spent.run[1]
        return replace(self, seconds=self.seconds + spent.total, unpruned=unpruned, run=run)

    def planned(self, plan: StepPlan) -> "Savings":
        """These sums and the completions of one more generation."""
        found, rolled = plan.completions, plan.method.rounds is not None
        weight_N = torch.ones(len(found.tokens_N)) if rolled else plan.prompts.weight_Q[found.group_N]
        kept_N = (plan.weight_UN > 0).any(0)
        live = span = 0.0
        if plan.token_draws and plan.sampled is not None:
            live = sum(float(plan.sampled.span_NT[found.live_N & row].sum()) for row in plan.share_UN)
            span = trained_tokens(plan)
        keep_P = plan.prompts.draw.keep_N
        added = {
            "completions": tuple(float(each.sum()) for each in (torch.ones_like(kept_N), found.live_N, kept_N)),
            "prompts": (float(len(keep_P)), float(keep_P.sum())),
            "live_tokens": (live, span),
        }
        sums = {
            name: tuple(a + b for a, b in zip(getattr(self, name), more, strict=True)) for name, more in added.items()
        }
        return replace(
            self,
            unpruned_tokens=self.unpruned_tokens + float((weight_N * found.tokens_N).sum()),
            generated=self.generated + float(found.tokens_N.sum()),
            **sums,
        )

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "Savings":
        """What ``dataclasses.asdict`` gave."""
        try:
            values: Any = {name: tuple(each) if isinstance(each, list) else each for name, each in saved.items()}
            for name in {"unpruned", "run"} & values.keys():
                scored, trained = (Work(**each) for each in values[name])
                values[name] = scored, trained
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"what was saved is damaged ({error}). Resume from an earlier checkpoint.") from error

    def saved_seconds(self, costs: TokenCosts) -> float | None:
        """Seconds not spent, by the costs of the run so far; None before these are known."""
        if not costs.known:
            return None
        passes = [whole - run for whole, run in zip(self.unpruned, self.run, strict=True)]
        return costs.saved(self.unpruned_tokens - self.generated, passes)

    def metrics(self, costs: TokenCosts) -> dict[str, float]:
        """``saved/*`` of docs/metrics.md; nothing before costs are known."""
        saved = self.saved_seconds(costs)
        whole = self.seconds + (saved or 0.0)
        return {} if saved is None or whole <= 0 else {"saved/seconds": saved, "saved/share": saved / whole}

    def lines(self, costs: TokenCosts) -> list[str]:
        """What was left out and what that saved, in sentences; none before anything was trained on."""
        rolled, live, kept = self.completions
        if not rolled:
            return []
        parts = [f"{1 - live / rolled:.0%} without a gradient, which is exact"] if live < rolled else []
        parts += [f"{(live - kept) / rolled:.0%} not drawn"] if kept < live else []
        said = [f"completions: {1 - kept / rolled:.0%} of {rolled:,.0f} not trained on ({', '.join(parts) or 'none'})"]
        candidates, asked = self.prompts
        if asked < candidates:
            said.append(f"prompts: {1 - asked / candidates:.0%} of {candidates:,.0f} not rolled out")
        tokens, forwarded = self.live_tokens
        if tokens:
            said.append(f"tokens: {1 - forwarded / tokens:.0%} of those of completions with a gradient not forwarded")
        return [f"pruned: {'; '.join(said)}", f"saved: {self._saved_line(costs)}"]

    def _saved_line(self, costs: TokenCosts) -> str:
        found = self.metrics(costs)
        if found:
            saved, whole = found["saved/seconds"], found["saved/seconds"] + self.seconds
            return (
                f"{found['saved/share']:.0%}, about {duration(max(saved, 0.0))} of the {duration(whole)} of steps that "
                "prune nothing, by the costs of passes and tokens in this run"
            )
        if costs.fixed:
            return (
                "in seconds not known: the first checkpoint, or the end, came before generation 2 had ended. In a "
                "longer run raise save_steps"
            )
        return (
            f"not yet known in seconds: costs are measured in generations 2 to {MEASURED_GENERATIONS + 1}, and the "
            "run ended before"
        )
