"""Lines about what choosing can save: once during a run, as soon as there is evidence, and at its end."""

from collections.abc import Callable, Sequence
from typing import Any

from dppo.evidence import Evidence
from dppo.methods import Method
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, PromptPruning, Pruning, ceiling_of
from dppo.pruning.ceiling import FEWEST, WORTH
from dppo.step import StepPlan


class CeilingLines:
    """One line per level as soon as there is enough to go by, and one more where ``auto`` begins to prune later."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._said: dict[str, bool] = {}
        """By level, once it has a line: whether no other will follow."""

    def tell(self, method: Method, plan: StepPlan, visits: Evidence | None) -> None:
        """Look at a generation that was planned."""
        prompts, completions, found = method.prompts, method.completions, plan.completions
        rounds = method.rounds is not None
        if visits is not None and not rounds and len(visits) >= (prompts.auto or PROMPT_AUTO).fewest:
            dropped = plan.figures["prune/prompt_rate"]
            self._level("prompt", prompts, visits, dropped, "")
        if not isinstance(completions, Pruning) or plan.evidence is None:
            return
        evidence, completions = plan.evidence, completions.informed(found)
        if len(evidence) >= (completions.auto or COMPLETION_AUTO).fewest:
            live = int(found.live_N.sum())
            beside = f" of the update, beside the {1 - live / len(found.live_N):.0%} without a gradient,"
            dropped = plan.draw_figures[0]["prune/completion_rate"]
            self._level("completion", completions, evidence, dropped, beside)

    def _level(
        self, what: str, level: Pruning | PromptPruning, evidence: Evidence, dropped: float, beside: str
    ) -> None:
        """Say something the first time, and again where a level that was left off begins to drop."""
        if what in self._said and (self._said[what] or not dropped):
            return
        chosen = None if level.auto is None else level.choice(evidence)
        if what in self._said and not (chosen and chosen.rate):
            return  # what it had begun to drop by, it would not choose any more
        self._said[what] = chosen is None or chosen.rate > 0
        ceiling = ceiling_of(evidence)
        verdict = chosen.why if chosen else f"the rate is {level.rate:g}" if level.rate else "left off"
        if not chosen and level.rate and ceiling.value < WORTH:
            verdict += f". It costs variance and saves next to nothing: turn it off, {what}_prune_rate: 0"
        self._say(f"dppo | {what} pruning can save at most {ceiling}{beside} here: {verdict}")


def more_to_be_had(method: Method, completions: Evidence | None, visits: Evidence | None) -> str:
    """By level, what choosing can save at most by the latest evidence, beside the rate that is in use."""
    said = []
    levels: Sequence[tuple[str, Any, Evidence | None]] = (
        ("completion", method.completions, completions if isinstance(method.completions, Pruning) else None),
        ("prompt", method.prompts, visits if method.rounds is None else None),
    )
    for name, level, evidence in levels:
        if evidence is None or len(evidence) < FEWEST:
            continue
        ceiling, field = ceiling_of(evidence), f"{name}_prune_rate"
        if ceiling.low < WORTH:
            advice = "next to nothing"
        elif level.rate:
            advice = f"{field}: {'auto' if getattr(level, 'auto', None) else f'{level.rate:g}'} is in use"
        elif name == "completion" and method.tokens.rate:
            advice = "cuts are in use, which drop completions too"
        else:
            advice = f"try {field}: auto"
        said.append(f"{name}s at most {ceiling}, {advice}")
    return "; ".join(said) or "not known: too few completions had a gradient, and too few prompts came back"
