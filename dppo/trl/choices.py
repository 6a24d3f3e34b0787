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
        self._settled: dict[str, bool] = {}
        """By level, once it has a line: whether no other will follow."""

    def tell(self, method: Method, plan: StepPlan, visits: Evidence | None) -> None:
        """Look at a generation that was planned.

        Args:
            method: of the run.
            plan: of the generation.
            visits: of prompts with a history, this generation's among them; None where there is no history.
        """
        prompts, completions, found = method.prompts, method.completions, plan.completions
        enough = method.rounds is None and visits is not None and len(visits) >= PROMPT_AUTO.fewest
        if visits is not None and enough and self._due("prompt", plan.figures["prune/prompt_rate"]):
            self._tell("prompt", prompts, visits, lambda: prompts.choice(visits), "")
        live, dropped = int(found.live_N.sum()), plan.draw_figures[0]["prune/completion_rate"]
        enough = live >= COMPLETION_AUTO.fewest
        if isinstance(completions, Pruning) and enough and self._due("completion", dropped):
            beside = f" of the update, beside the {1 - live / len(found.live_N):.0%} without a gradient,"
            evidence = completions.evidence(found)
            self._tell("completion", completions, evidence, lambda: completions.choice(found), beside)

    def _due(self, what: str, dropped: float) -> bool:
        """Whether a level has something to say: the first time, and where it begins to drop something."""
        return what not in self._settled or (not self._settled[what] and dropped > 0)

    def _tell(
        self,
        what: str,
        level: Pruning | PromptPruning,
        evidence: Evidence,
        choice: Callable[[], Choice],
        beside: str,
    ) -> None:
        chosen = None if level.auto is None else choice()
        if what in self._settled and not (chosen and chosen.rate):
            return  # what it had begun to drop by, it would not choose any more
        self._settled[what] = chosen is None or chosen.rate > 0
        verdict = chosen.why if chosen else f"the rate is {level.rate:g}" if level.rate else "left off"
        self._say(f"dppo | {what} pruning can save at most {ceiling_of(evidence)}{beside} here: {verdict}")
