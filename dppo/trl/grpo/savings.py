"""What tokens cost in the first generations of a run, and what was saved so far.

Costs are measured on one process, told to all, then constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dppo.errors import CheckpointError, duration
from dppo.evidence import MEASURED, TokenCosts
from dppo.methods import Method
from dppo.pruning import Pruning
from dppo.step import StepPlan
from dppo.trl.metrics import RECORD, PhaseClock

GENERATING, SCORING, TRAINING = ("rollout", "reward"), ("log_probs",), ("forward_backward",)


class CostMeter:
    """Reads the clock of the phases while a run's costs are not fixed, and never again.

    ``costs`` is equal on all processes after every call; a checkpoint keeps it.
    """

    def __init__(self, clock: PhaseClock, accelerator: Any) -> None:
        self._clock, self._accelerator = clock, accelerator
        self._before, self._counted = self._seconds(), 0.0
        self.costs = TokenCosts()

    def since(self) -> float:
        """Seconds of all phases on this process since ``spent`` was last asked."""
        return sum(seconds for phase, seconds in self._clock.total.items() if phase != RECORD) - self._counted

    def spent(self) -> float:
        """Seconds of all phases on this process since this was last asked."""
        spent = self.since()
        self._counted += spent
        return spent

    def generation(self, plan: StepPlan) -> None:
        """A generation was trained on: add what it took. All processes call together."""
        if self.costs.fixed:
            return
        scored, trained = forwarded(plan)
        now, before = self._seconds(), self._before
        spent = torch.tensor([[a - b for a, b in zip(now, before, strict=True)]], device=self._accelerator.device)
        first = self._accelerator.gather(spent)[0].tolist()
        self._before = now
        self.costs = self.costs.after(first, (float(plan.completions.tokens_N.sum()), scored, trained))

    def _seconds(self) -> list[float]:
        total = self._clock.total
        return [sum(total[phase] for phase in phases) for phases in (GENERATING, SCORING, TRAINING)]


def at_cost(method: Method, costs: TokenCosts) -> Method:
    """The method that chooses by measured costs, where it chooses and they are known."""
    cost = costs.rollout_cost
    if cost is None:
        return method
    level, tokens = method.completions, method.tokens
    if isinstance(level, Pruning) and level.auto is not None:
        method = replace(method, completions=replace(level, auto=replace(level.auto, rollout_cost=cost)))
    if tokens.auto is not None:
        method = replace(method, tokens=replace(tokens, auto=replace(tokens.auto, rollout_cost=cost)))
    return method


def forwarded(plan: StepPlan) -> tuple[float, float]:
    """Completion tokens that a pass over everything that some draw keeps forwards, and that all draws do."""
    kept_UN = (plan.weight_UN > 0).double()
    tokens_UN = kept_UN * plan.completions.tokens_N
    if plan.token_draws:
        tokens_UN = torch.stack([draw.length_N for draw in plan.token_draws]).double()
    return float(tokens_UN.amax(0).sum()), float(tokens_UN.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Sums over the generations of a run that were trained on.

    Tokens are completion tokens: generated, scored by other policies and trained on, as in ``TokenCosts``. Those of
    prompts that were not rolled out are estimated by one over the probability of those that were.
    """

    whole: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Tokens of steps that prune nothing, >= 0."""
    done: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Tokens that were paid for, >= 0."""
    completions: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Completions rolled out, with a gradient, and trained on."""
    prompts: tuple[float, ...] = (0.0, 0.0)
    """Candidate prompts, and those rolled out."""
    live_tokens: tuple[float, ...] = (0.0, 0.0)
    """Of completions with a gradient the tokens, and those forwarded, where cuts are drawn; else 0."""
    seconds: float = 0.0
    """Of the phases of training, of the first process."""

    def after(self, plan: StepPlan, forwarded: tuple[float, float], seconds: float) -> "Savings":
        """This and then one more generation; ``forwarded`` as the function of that name says."""
        found, rolled = plan.completions, plan.method.rounds is not None
        weight_N = torch.ones(len(found.tokens_N)) if rolled else plan.prompts.weight_Q[found.group_N]
        tokens = float((weight_N * found.tokens_N).sum())
        kept_N = (plan.weight_UN > 0).any(0)
        live = span = 0.0
        if plan.token_draws and plan.sampled is not None:
            live = sum(float(plan.sampled.span_NT[found.live_N & row].sum()) for row in plan.share_UN)
            span = sum(float(draw.length_N.sum()) for draw in plan.token_draws)
        keep_P = plan.prompts.draw.keep_N
        added = {
            "whole": (tokens, tokens, float(plan.tokens_U.sum()) if not rolled else forwarded[1]),
            "done": (float(found.tokens_N.sum()), *forwarded),
            "completions": tuple(float(each.sum()) for each in (torch.ones_like(kept_N), found.live_N, kept_N)),
            "prompts": (float(len(keep_P)), float(keep_P.sum())),
            "live_tokens": (live, span),
        }
        sums = {
            name: tuple(a + b for a, b in zip(getattr(self, name), more, strict=True)) for name, more in added.items()
        }
        return replace(self, seconds=self.seconds + seconds, **sums)

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "Savings":
        """What ``dataclasses.asdict`` gave."""
        try:
            values: Any = {name: value if name == "seconds" else tuple(value) for name, value in saved.items()}
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(f"what was saved is damaged ({error}). Resume from an earlier checkpoint.") from error

    def saved_seconds(self, costs: TokenCosts) -> float | None:
        """Seconds not spent, by what tokens cost in the run's first generations; None before that is known."""
        if not costs.fixed or not any(costs.seconds):
            return None
        pairs = zip(costs.each, self.whole, self.done, strict=True)
        return sum(each * (whole - done) for each, whole, done in pairs if each)

    def figures(self, costs: TokenCosts) -> dict[str, float]:
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
        found = self.figures(costs)
        if found:
            saved, whole = found["saved/seconds"], found["saved/seconds"] + self.seconds
            return (
                f"{found['saved/share']:.0%}, about {duration(max(saved, 0.0))} of the {duration(whole)} of steps that "
                "prune nothing, by what tokens cost in the first generations"
            )
        if costs.fixed:
            return (
                "in seconds not known: the first checkpoint, or the end, came before generation 2 had ended. In a "
                "longer run raise save_steps"
            )
        return (
            f"in seconds not known: what tokens cost is measured in generations 2 to {MEASURED + 1}, and this run "
            "has not come to their end"
        )
