"""The files of a run's folder and the records in them, shared by writer and reader.

| file | what is in it |
|---|---|
| ``run.json`` | ``RunFacts``: what was run, on what, and how it ended |
| ``metrics.jsonl`` | ``step`` and figures, one line per log; docs/metrics.md has their names |
| ``prompts.jsonl`` | ``PromptLine``: the candidates of each generation, with rewards and lengths of those rolled out |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RUN_FILE, METRICS_FILE, PROMPTS_FILE = "run.json", "metrics.jsonl", "prompts.jsonl"
RECORDS = (METRICS_FILE, PROMPTS_FILE, RUN_FILE)
FORMAT = 1
"""Version of ``run.json`` and of the files of a comparison."""
STOCK = "trl"
"""Name of TRL's own trainer among methods."""
TOTALS = {name: f"total/{name}" for name in ("seconds", "rollouts", "rollout_tokens", "tokens_trained")}
"""Metrics that count from the beginning of a run, by what they count."""
ACCURACY = "eval/average/pass@1"
"""The metric that is the accuracy of a run: the mean over its benchmarks."""
PHASES = "time/"
"""Prefix of the metrics of phases: seconds per step, mean over the steps since the last log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """``run.json``."""

    format: int = FORMAT
    method: str
    """A key of ``METHODS``, or ``STOCK``."""
    describe: str = ""
    """The method in a few sentences."""
    paper: str = ""
    biased: Sequence[str] = ()
    """Why its gradient is biased, one sentence each; empty where it is not."""
    seed: int | None = None
    task: Mapping[str, Any] = field(default_factory=dict)
    """``model``, ``dataset`` and the number of ``prompts``."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not at their defaults."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    status: str
    """``running``, ``finished``, ``failed`` or ``stopped``: interrupted, and can go on."""
    error: str | None = None
    started: str = ""
    """ISO 8601, in UTC."""
    updates: int | None = None
    """Optimizer steps that were asked for, of a finished run those done; None before that is known."""
    seconds: float | None = None
    """Of training, without evaluations and checkpoints; None before the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """A line of ``prompts.jsonl``: one generation, and lists with one entry per candidate prompt."""

    step: int
    generation: int
    """Generations before it."""
    epoch: float | None
    """Epochs of prompts that were candidates so far; None where that is not known."""
    rows: Sequence[int | None]
    """Of the dataset; None where not known."""
    probability: Sequence[float]
    """Of being rolled out."""
    rolled_out: Sequence[bool]
    rewards: Sequence[Sequence[float | None]]
    """Rewards of the group's completions; no number if it was not rolled out."""
    tokens: Sequence[Sequence[int]]
    """Completion tokens that carry loss, in the same order."""
