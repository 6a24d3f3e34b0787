"""Costs of a run's generations, their forward passes if nothing were dropped, and the work and seconds saved so far."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dppo.costs import MEASURED_GENERATIONS, NO_PASSES, Passes, Spent, TokenCosts
from dppo.errors import CheckpointError, duration
from dppo.session import Session
from dppo.step import StepPlan
from dppo.trl.batch import RankBatch
from dppo.trl.forwards import ForwardPasses
from dppo.trl.metrics import CHECK, LOADING, RECORD, STEP, PhaseClock
from dppo.types import Work


class CostMeter:
    """Seconds and passes of a run, equal on all processes: measured on the first one, constant once they are fixed."""

    def __init__(self, clock: PhaseClock, accelerator: Any, forwards: ForwardPasses) -> None:
        self._clock, self._accelerator, self._forwards = clock, accelerator, forwards
        self._unpruned: tuple[list[Work], list[Work]] = [], []
        """Passes of steps that prune nothing, without and with a gradient: one entry for each layout of completions."""
        self._before = self._so_far()
        self.savings = Savings()
        self.accounted = 0
        """Generations that are in the savings."""

    def account(self, session: Session, plan: StepPlan | None, *, ended: bool) -> None:
        """Add seconds and passes since the last call, and the generation of ``plan`` once. All processes call together.

        The session observes the costs of a generation that has ``ended``.
        """
        spent = self.spent()
        self.savings = self.savings.after(spent)
        if plan is None or self.accounted >= session.number:
            return
        self.accounted = session.number
        self.savings = self.savings.planned(plan)
        if ended:
            session.observe_costs(spent, float(plan.completions.tokens_N.sum()), trained_tokens(plan))

    def plan(self, *, scored: Sequence[Work] = (), trained: Sequence[Work] = ()) -> None:
        """Add passes of an unpruned step, one for each layout of completions."""
        for found, more in zip(self._unpruned, (scored, trained), strict=True):
            found.extend(more)

    def spent(self) -> Spent:
        """Seconds and passes since the last call: those of the first process, and of the one with most passes."""
        (seconds, run), (seconds_before, run_before) = self._so_far(), self._before
        here = [now - before for now, before in zip(seconds, seconds_before, strict=True)]
        for now, before, laid_out in zip(run, run_before, self._unpruned, strict=True):
            more, unpruned = now - before, sum(laid_out, Work())
            here += [more.passes, more.tokens, unpruned.passes, unpruned.tokens, float(len(laid_out))]
        self._before, self._unpruned = (seconds, run), ([], [])
        of_ranks = self._accelerator.gather(torch.tensor([here], device=self._accelerator.device))
        passes = of_ranks[:, len(seconds) :].amax(0).tolist()
        generating, scoring, training, whole = of_ranks[0, : len(seconds)].tolist()
        return Spent(generating, scoring, training, whole, Passes(*passes[:5]), Passes(*passes[5:]))

    def _so_far(self) -> tuple[list[float], tuple[Work, Work]]:
        """Seconds of the run, in the order of ``Spent``, and its passes."""
        total = self._clock.total
        phases = [total["rollout"] + total["reward"], total["log_probs"], total["forward_backward"]]
        return [*phases, total[STEP] + total[LOADING] - total[RECORD] - total[CHECK]], self._forwards.run


def unpruned_rows(plan: StepPlan) -> tuple[Tensor, list[float]]:
    """(U, N) bool completions of each optimizer step before any is dropped, and the number that each stands for.

    The number is above 1 if prompts were not rolled out, unless rounds have replaced them.
    """
    found = plan.completions
    row_UN = plan.share_UN & (plan.prompts.weight_Q[found.group_N] > 0) & (found.tokens_N > 0)
    if plan.method.rounds is not None:
        return row_UN, [1.0] * len(row_UN)
    tokens_U = (row_UN * found.tokens_N).sum(1).double()
    return row_UN, torch.where(tokens_U > 0, plan.tokens_U / tokens_U, 1.0).tolist()


def unpruned_passes(
    forwards: ForwardPasses, own: RankBatch, plan: StepPlan, rank: int
) -> tuple[list[Work], list[Work]]:
    """Forward passes over all completions of a generation that ``rank`` rolled out, ``own``: laid out, and not run.

    Returns:
        Passes of each policy that scores without gradient, and (U,) passes of each optimizer step.
    """
    row_UN, times_U = unpruned_rows(plan)
    size = len(own.completion_ids)
    row_UB = row_UN[:, rank * size : (rank + 1) * size].float()
    mean = sum(times_U) / len(times_U)
    scored = [_planned(forwards, own, row_B, mean) for row_B in forwards.scored(row_UB).values()]
    trained = [_planned(forwards, own, *each) for each in zip(row_UB, times_U, strict=True)]
    return scored, trained


def _planned(forwards: ForwardPasses, own: RankBatch, row_B: Tensor, times: float) -> Work:
    """Passes over the rows of positive weight, each of which stands for ``times`` rows."""
    budget = forwards.budget(own)
    places = forwards.layout.places(own, row_B.nonzero().flatten().tolist(), budget)
    if not places:
        return Work()
    tokens = times * sum(forwards.layout.tokens(own, here) for here in places)
    return Work(passes=max(1 + times * (len(places) - 1), tokens / budget), tokens=tokens)


def trained_tokens(plan: StepPlan) -> float:
    """Completion tokens that the draws of a generation keep; each optimizer step counts its own."""
    if plan.token_draws:
        return sum(float(draw.length_N.sum()) for draw in plan.token_draws)
    return float(((plan.weight_UN > 0) * plan.completions.tokens_N).sum())


def _added(sums: Iterable[float], more: Iterable[Any]) -> tuple[float, ...]:
    return tuple(a + float(b) for a, b in zip(sums, more, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Sums over a run: work done, and work of steps that prune nothing."""

    unpruned_tokens: float = 0.0
    """Completion tokens that steps without pruning would have generated, >= 0."""
    generated: float = 0.0
    """Completion tokens that were generated, >= 0."""
    scored: Passes = NO_PASSES
    """Passes without a gradient."""
    trained: Passes = NO_PASSES
    completions: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Completions rolled out, with a gradient, and trained on."""
    prompts: tuple[float, ...] = (0.0, 0.0)
    """Candidate prompts, and those rolled out."""
    live_tokens: tuple[float, ...] = (0.0, 0.0)
    """Tokens of completions with a gradient, and those forwarded, if cuts are drawn; else 0."""
    seconds: float = 0.0
    """Seconds of whole optimizer steps, of the first process."""

    def after(self, spent: Spent) -> "Savings":
        """The sums with the seconds and passes that were spent since."""
        scored, trained = _added(self.scored, spent.scored), _added(self.trained, spent.trained)
        return replace(self, seconds=self.seconds + spent.total, scored=Passes(*scored), trained=Passes(*trained))

    def planned(self, plan: StepPlan) -> "Savings":
        """The sums with the completions of one more generation."""
        found, rolled = plan.completions, plan.method.rounds is not None
        weight_N = torch.ones(len(found.tokens_N)) if rolled else plan.prompts.weight_Q[found.group_N]
        kept_N = (plan.weight_UN > 0).any(0)
        live = span = 0.0
        if plan.token_draws and plan.sampled is not None:
            live = sum(float(plan.sampled.span_NT[found.live_N & row].sum()) for row in plan.share_UN)
            span = trained_tokens(plan)
        keep_P = plan.prompts.draw.keep_N
        return replace(
            self,
            unpruned_tokens=self.unpruned_tokens + float((weight_N * found.tokens_N).sum()),
            generated=self.generated + float(found.tokens_N.sum()),
            completions=_added(self.completions, (len(kept_N), found.live_N.sum(), kept_N.sum())),
            prompts=_added(self.prompts, (len(keep_P), keep_P.sum())),
            live_tokens=_added(self.live_tokens, (live, span)),
        )

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "Savings":
        """The savings in a dictionary of ``dataclasses.asdict``; ``CheckpointError`` if it is damaged."""
        try:
            values: Any = {name: tuple(each) if isinstance(each, list) else each for name, each in saved.items()}
            passes = {name: Passes(*values[name]) for name in {"scored", "trained"} & values.keys()}
            return cls(**{**values, **passes})
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the savings of the checkpoint are damaged ({error}). Resume from an earlier one."
            ) from error

    @property
    def nothing_trained(self) -> bool:
        """True if every training pass was skipped."""
        return bool(self.trained.unpruned_passes and not self.trained.passes)

    def saved_seconds(self, costs: TokenCosts) -> float | None:
        """Seconds that were saved; None before costs are known."""
        if not costs.known or self.nothing_trained:  # without training no pass was timed
            return None
        return costs.saved(self.unpruned_tokens - self.generated, self.scored, self.trained)

    def metrics(self, costs: TokenCosts) -> dict[str, float]:
        """``saved/*`` of docs/metrics.md; empty before costs are known."""
        saved = self.saved_seconds(costs)
        whole = self.seconds + (saved or 0.0)
        return {} if saved is None or whole <= 0 else {"saved/seconds": saved, "saved/share": saved / whole}

    def lines(self, costs: TokenCosts) -> list[str]:
        """Lines about what was pruned and what that saved; none before anything was trained on."""
        rolled, live, kept = self.completions
        if not rolled:
            return []
        parts = [f"{1 - live / rolled:.0%} had no gradient, which is exact"] if live < rolled else []
        parts += [f"{(live - kept) / rolled:.0%} were not drawn"] if kept < live else []
        found = [f"{1 - kept / rolled:.0%} of {rolled:,.0f} completions were not trained on ({', '.join(parts)})"]
        if kept == rolled:
            found = [f"all {rolled:,.0f} completions were trained on"]
        candidates, rolled_out = self.prompts
        if rolled_out < candidates:
            found.append(f"{1 - rolled_out / candidates:.0%} of {candidates:,.0f} prompts were not rolled out")
        tokens, forwarded = self.live_tokens
        if tokens:
            found.append(f"{1 - forwarded / tokens:.0%} of the tokens with a gradient were not forwarded")
        return [f"pruned: {'; '.join(found)}", f"saved: {self._saved_line(costs)}"]

    def _saved_line(self, costs: TokenCosts) -> str:
        found = self.metrics(costs)
        if found:
            saved, whole = found["saved/seconds"], found["saved/seconds"] + self.seconds
            return (
                f"{found['saved/share']:.0%}, about {duration(max(saved, 0.0))} of the {duration(whole)} that steps "
                "without pruning would have taken, by what passes and tokens cost in this run"
            )
        if self.nothing_trained:
            return "not known in seconds: nothing was trained on, so no pass was timed"
        if costs.fixed:
            return (
                "not known in seconds: the first checkpoint, or the end, came before generation 2 had ended. In a "
                "longer run raise save_steps"
            )
        return (
            f"not yet known in seconds: costs are measured in generations 2 to {MEASURED_GENERATIONS + 1}, and the "
            "run ended before"
        )
