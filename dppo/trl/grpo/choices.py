"""Says in the log of a run what pruning can save at most, before anyone prunes, and what is done about it."""

from collections.abc import Callable

from dppo.methods import Method
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, Choice, Evidence, PromptPruning, Pruning, ceiling_of
from dppo.step import StepPlan


class CeilingLines:
    """One line per level as soon as there is enough to go by, and one more where ``auto`` begins to prune later.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._said: dict[str, bool] = {}
        """By level, once it has a line: whether no other will follow."""

    def tell(self, method: Method, plan: StepPlan, visits: Evidence | None) -> None:
        """Look at a generation that was planned.

        Args:
            method: of the run.
            plan: of the generation.
            visits: of prompts with a history, this generation's among them; None where there is no history.
        """
        prompts, completions, found = method.prompts, method.completions, plan.completions
        rounds = method.rounds is not None
        if visits is not None and not rounds and len(visits) >= (prompts.auto or PROMPT_AUTO).fewest:
            dropped = plan.figures["prune/prompt_rate"]
            self._level("prompt", prompts, visits, lambda: prompts.choice(visits), dropped, "")
        if not isinstance(completions, Pruning) or plan.evidence is None:
            return
        evidence = plan.evidence
        if len(evidence) >= (completions.auto or COMPLETION_AUTO).fewest:
            live = int(found.live_N.sum())
            beside = f" of the update, beside the {1 - live / len(found.live_N):.0%} without a gradient,"
            dropped = plan.draw_figures[0]["prune/completion_rate"]
            self._level("completion", completions, evidence, lambda: completions.choice(evidence), dropped, beside)

    def _level(
        self,
        what: str,
        level: Pruning | PromptPruning,
        evidence: Evidence,
        choice: Callable[[], Choice],
        dropped: float,
        beside: str,
    ) -> None:
        """Say something the first time, and again where a level that was left off begins to drop."""
        if what in self._said and (self._said[what] or not dropped):
            return
        chosen = None if level.auto is None else choice()
        if what in self._said and not (chosen and chosen.rate):
            return  # what it had begun to drop by, it would not choose any more
        self._said[what] = chosen is None or chosen.rate > 0
        verdict = chosen.why if chosen else f"the rate is {level.rate:g}" if level.rate else "left off"
        self._say(f"dppo | {what} pruning can save at most {ceiling_of(evidence)}{beside} here: {verdict}")
