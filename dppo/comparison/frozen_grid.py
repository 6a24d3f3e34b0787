"""Every line of the frozen table at every rate, with a test of whether its bias is zero."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from dppo.comparison.frozen import Figures, bias_of, figures, root
from dppo.comparison.frozen_draws import Sample, sample
from dppo.comparison.frozen_methods import Level, Line, at_rates, check_rates
from dppo.environment import environment
from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.verification.checks import wrong_methods
from dppo.verification.estimate import Bias
from dppo.verification.subject import Subject, one_thread

FORMAT = 1
RATES = (0.3, 0.5, 0.7, 0.9)
FEWEST_DRAWS = 100
"""With fewer, the distribution that the test and the interval assume is too far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How hard to look.

    Raises:
        ConfigError: at construction, for a value out of range.
    """

    rates: tuple[float, ...] = RATES
    """Of prompts and of completions, each in (0, 1)."""
    draws: int = 2000
    """Per line and rate; the smallest bias that is seen falls with its root."""
    false_alarm: float = 1e-3
    """Chance that, with no bias anywhere, any line at any rate is called biased, in (0, 1)."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_rates(self.rates)
        if self.draws < FEWEST_DRAWS:
            raise ConfigError(f"draws={self.draws} must be at least {FEWEST_DRAWS}. Write --draws 2000")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must be at least 0. Write --seed 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenRow:
    """A line of the table at one pair of rates."""

    name: str
    level: Level
    prompt_rate: float
    """r_q; 0 where prompts are not pruned."""
    completion_rate: float
    """r_o; 0 where completions are not pruned."""
    normaliser: str
    reasons: tuple[str, ...]
    """Why it says itself that it is biased; empty where it does not."""
    exact: bool
    """Whether nothing is left to chance."""
    figures: Figures
    squared_bias: float
    """Estimate of ``|E[g_hat] - g|^2 / |g|^2`` whose own mean is right; it may be below 0."""
    bound: float
    """What it would exceed with at most the row's share of the false alarms if there were no bias."""
    chance: float
    """At most as likely is a ``squared_bias`` as large, or larger, if there is no bias."""

    @property
    def found(self) -> bool:
        """Whether a bias is found."""
        return self.squared_bias > self.bound

    @property
    def wrong(self) -> bool:
        """Whether a bias is found where none is declared."""
        return self.found and not self.reasons

    @property
    def verdict(self) -> str:
        """What was claimed beside what was found, in a word or two."""
        if self.reasons:
            return "biased" if self.found else "declared"
        return "WRONG" if self.found else "unbiased"

    def as_json(self) -> dict[str, Any]:
        """Everything as values that JSON can hold."""
        return {
            "name": self.name,
            "level": self.level.value,
            "prompt_rate": self.prompt_rate,
            "completion_rate": self.completion_rate,
            "normaliser": self.normaliser,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "exact": self.exact,
            "squared_bias": self.squared_bias,
            "squared_bias_bound": self.bound,
            "chance_without_bias": self.chance,
            **asdict(self.figures),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenReport:
    """Everything ``dppo compare --frozen`` found."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    rows_with_gradient: int
    """Completions of the full batch with a gradient, under the first line."""
    setting: Setting
    lines: tuple[Line, ...]
    rows: tuple[FrozenRow, ...]
    controls: tuple[FrozenRow, ...]
    """Known to be biased, whatever they declare: each must be found."""
    tests: int
    """Rows that share the false alarms."""
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is biased that says it is not, and every control was found."""
        return not any(row.wrong for row in self.rows) and all(row.found for row in self.controls)

    @property
    def dashes(self) -> tuple[tuple[str, Level], ...]:
        """Names, and the rate that each of them does not take."""
        taken = (Level.COMPLETIONS, Level.PROMPTS)
        return tuple((line.name, level) for line in self.lines for level in taken if level not in line.takes)

    def as_json(self, **facts: Any) -> dict[str, Any]:
        """Everything as values that JSON can hold.

        Args:
            **facts: what else belongs to the environment, such as the command.
        """
        return {
            "format": FORMAT,
            "subject": self.subject,
            "rows_with_gradient": self.rows_with_gradient,
            **asdict(self.setting),
            "tests": self.tests,
            "passed": self.passed,
            "rows": [row.as_json() for row in self.rows],
            "controls": [row.as_json() for row in self.controls],
            "not_taken": [{"name": name, "rate_of": level.value} for name, level in self.dashes],
            "describe": {line.name: line.method.describe() for line in self.lines},
            "environment": environment(seeds=[self.setting.seed], **facts),
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is to be drawn for a row."""

    name: str
    level: Level
    method: Method
    subject: Subject


def cells(lines: Sequence[Line], rates: Sequence[float]) -> Iterator[Cell]:
    """Every line at every level and rate it has, level by level.

    Args:
        lines: of the table.
        rates: of prompts and of completions.
    """
    grid = {
        Level.BLOCK: [(0.0, 0.0)],
        Level.COMPLETIONS: [(0.0, rate) for rate in rates],
        Level.PROMPTS: [(rate, 0.0) for rate in rates],
        Level.BOTH: [(prompt, completion) for prompt in rates for completion in rates],
    }
    for level, pairs in grid.items():
        for line in (line for line in lines if line.shown_at(level)):
            for prompt, completion in pairs:
                method = at_rates(line.method, prompt=prompt, completion=completion)
                yield Cell(name=line.name, level=level, method=method, subject=line.subject)


def frozen_report(
    lines: Sequence[Line],
    base: Method,
    setting: Setting,
    *,
    started: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> FrozenReport:
    """Draw every line at every rate and say how far each is from the full batch.

    Args:
        lines: of the table, at least one, all on the same rollouts.
        base: what the controls are made from.
        setting: rates, draws and rate of false alarms.
        started: when the work began, in ``time.perf_counter`` seconds; now by default.
        progress: told what is being drawn.
    """
    started = time.perf_counter() if started is None else started
    subject = lines[0].subject
    found: list[tuple[Cell, Sample, Bias, Figures]] = []
    todo = [*cells(lines, setting.rates)]
    controls = [
        Cell(name=name, level=Level.BLOCK, method=method, subject=subject)
        for name, method in wrong_methods(base).items()
    ]
    with one_thread():
        root_NN = root(subject.gram_NN)
        for number, cell in enumerate([*todo, *controls]):
            progress(f"{cell.name}, {cell.level} pruned ({number} of {len(todo) + len(controls)})")
            found.append((cell, *_drawn(cell, root_NN, setting)))
    tests = sum(not drawn.exact for _, drawn, _, _ in found[: len(todo)])
    rows = tuple(_row(*parts, setting.false_alarm / max(tests, 1)) for parts in found)
    return FrozenReport(
        subject=subject.describe(),
        rows_with_gradient=found[0][1].rows,
        setting=setting,
        lines=tuple(lines),
        rows=rows[: len(todo)],
        controls=rows[len(todo) :],
        tests=tests,
        seconds=time.perf_counter() - started,
    )


def _drawn(cell: Cell, root_NN: Tensor, setting: Setting) -> tuple[Sample, Bias, Figures]:
    drawn = sample(cell.subject, cell.method, setting.draws, setting.seed)
    bias = bias_of(drawn, root_NN)
    return drawn, bias, figures(drawn, bias, root_NN)


def _row(cell: Cell, drawn: Sample, bias: Bias, found: Figures, share: float) -> FrozenRow:
    return FrozenRow(
        name=cell.name,
        level=cell.level,
        prompt_rate=cell.method.prompts.rate,
        completion_rate=cell.method.completions.rate,
        normaliser=cell.method.normaliser.name,
        reasons=cell.method.bias,
        exact=drawn.exact,
        figures=found,
        squared_bias=bias.squared,
        bound=bias.bound(share),
        chance=bias.chance,
    )
