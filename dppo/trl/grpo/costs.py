"""What tokens cost in the first generations of a run: measured on one process, told to all, then a constant."""

from dataclasses import replace
from typing import Any

import torch

from dppo.evidence import TokenCosts
from dppo.methods import Method
from dppo.pruning import Pruning
from dppo.step import StepPlan
from dppo.trl.metrics import RECORD, PhaseClock, synchronised, wall

GENERATING, SCORING, TRAINING = ("rollout", "reward"), ("log_probs",), ("forward_backward",)


class CostMeter:
    """Reads the clock of the phases while a run's costs are not fixed, and never again.

    ``costs`` is equal on all processes after every call; a checkpoint keeps it.
    """

    def __init__(self, clock: PhaseClock, accelerator: Any) -> None:
        self._clock, self._accelerator = clock, accelerator
        self._before, self._counted = self._seconds(), 0.0
        self.costs = TokenCosts()
        if clock.now is wall:
            clock.now = synchronised

    def spent(self) -> float:
        """Seconds of all phases on this process since this was last asked."""
        whole = sum(seconds for phase, seconds in self._clock.total.items() if phase != RECORD)
        spent, self._counted = whole - self._counted, whole
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
        self.restore(self.costs.after(first, (float(plan.completions.tokens_N.sum()), scored, trained)))

    def restore(self, costs: TokenCosts) -> None:
        """Go on from these costs."""
        self.costs = costs
        if costs.fixed and self._clock.now is synchronised:
            self._clock.now = wall

    def settle(self) -> TokenCosts:
        """Fix the costs, as of a checkpoint."""
        self.restore(self.costs.settled())
        return self.costs

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
