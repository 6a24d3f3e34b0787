"""A bounded choice of recorded completions, in whole groups, spread over the updates of a run."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from dppo_lab.comparison.words import amount
from dppo_lab.report.sources import Contents
from dppo_lab.report.text import shortened
from dppo_lab.runs.folder import CompletionLine
from dppo_lab.runs.reader import RunRecord, number

FIGURES = ("reward", "advantage", "probability", "weight", "tokens")
"""Of a completion, as recorded."""
OURS = "dppo"
MOST = 300
"""Completions that a page shows at most."""
MOST_CHARACTERS = 4000
"""Characters of a prompt or completion that a page shows at most."""
MOST_REASONS = 8
"""Reasons that have a filter of their own; the rarest share the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The completions of one prompt in one update."""

    method: str
    records: tuple[CompletionLine, ...]
    places: tuple[int, ...]
    """Of the reason of each among ``Shown.reasons``."""

    @property
    def kept(self) -> int:
        """How many of them were trained on."""
        return sum(record.kept is True for record in self.records)

    @property
    def mean_reward(self) -> str:
        """Of those that have a reward."""
        rewards = [reward for record in self.records if math.isfinite(reward := number(record.reward))]
        return amount(float(np.mean(rewards)) if rewards else math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the browser shows."""

    groups: tuple[Answers, ...]
    reasons: tuple[str, ...]
    """Reasons for keeping or leaving out, "kept" first."""
    shown: int
    recorded: int
    opened: int = 0
    """Index of the group that is open at first: one of ``dppo`` with completions that were pruned, if there is one."""


def choose(contents: Contents, most: int = MOST) -> Shown:
    """At most ``most`` completions: each method an equal part, from its first run that recorded any."""
    runs = [(g.label, r) for g in contents.groups if (r := next((r for r in g.runs if r.completions), None))]
    chosen = [(label, group) for label, run in runs for group in _spread(_groups(run), most // max(1, len(runs)))]
    counts = Counter(reason(record) for _, group in chosen for record in group)
    reasons = sorted(counts, key=lambda why: (why != "kept", -counts[why], why))
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[: MOST_REASONS - 1], "other"]
    places = dict.fromkeys(counts, len(reasons) - 1) | {why: place for place, why in enumerate(reasons)}
    groups = tuple(
        Answers(method=label, records=tuple(group), places=tuple(places[reason(one)] for one in group))
        for label, group in chosen
    )
    ours = {group.label for group in contents.groups if any(run.method == OURS for run in group.runs)}
    # The first group with most of: of our method, with completions that were kept and others that were not.
    worth = [(0 < group.kept < len(group.records), group.method in ours) for group in groups]
    return Shown(
        groups=groups,
        opened=worth.index(max(worth)) if worth else 0,
        reasons=tuple(reasons),
        shown=sum(len(group) for _, group in chosen),
        recorded=sum(len(run.completions) for run in contents.runs),
    )


def _groups(run: RunRecord) -> list[list[CompletionLine]]:
    groups: dict[str, list[CompletionLine]] = {}
    for record in run.completions:
        key = repr((record.step, record.row, record.group, record.prompt))
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def _spread(groups: list[list[CompletionLine]], most: int) -> list[list[CompletionLine]]:
    """Groups spread evenly from the first to the last, as many as hold at most ``most`` completions."""
    for count in range(min(len(groups), most), 0, -1):
        places = np.unique(np.linspace(0, len(groups) - 1, count).round().astype(int))
        chosen = [groups[place] for place in places]
        if sum(map(len, chosen)) <= most:
            return chosen
    return [groups[0][:most]] if groups and most else []


def reason(record: CompletionLine) -> str:
    """Why it was kept or left out."""
    return shortened(str(record.why or ("kept" if record.kept is True else "no reason recorded")), 60)


def text_of(value: object) -> str:
    """A prompt or completion as text: of a conversation, who says what."""
    if isinstance(value, list):
        turns = [turn for turn in value if isinstance(turn, dict)]
        value = "\n".join(f"{turn.get('role', '')}: {turn.get('content', '')}" for turn in turns)
    return shortened("" if value is None else str(value), MOST_CHARACTERS)
