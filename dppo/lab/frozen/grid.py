"""Every line of the frozen table at every rate, with a test for a bias."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.lab.environment import environment
from dppo.lab.frozen.lines import FrozenLine, PrunedLevel
from dppo.lab.frozen.sample import DrawFigures, bias_of, figures, sample
from dppo.methods import Method
from dppo.verification.draws import Bias, root

FORMAT = 2
FEWEST_DRAWS = 100
"""With fewer, the distribution assumed by the test and the interval is too far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSettings:
    """Rates, draws and false alarms of a frozen comparison.

    Raises:
        ConfigError: at construction, for a value out of range.
    """

    rates: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    """Of prompts and of completions, each in (0, 1)."""
    draws: int = 2000
    """Per line and rate; the smallest visible bias falls with their root."""
    false_alarm: float = 1e-3
    """Chance that, with no bias anywhere, any line at any rate is called biased, in (0, 1)."""
    seed: int = 0

    def __post_init__(self) -> None:
        outside = [rate for rate in self.rates if not 0 < rate < 1]
        if outside or not self.rates:
            given = f"rate {outside[0]:g} is not in (0, 1)" if outside else "no rates are given"
            raise ConfigError(f"{given}. Write, for example, --rates 0.3,0.5,0.7,0.9")
        if self.draws < FEWEST_DRAWS:
            raise ConfigError(f"draws={self.draws} must be at least {FEWEST_DRAWS}. Write --draws 2000")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must be at least 0. Write --seed 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Result of a line at one rate."""

    name: str
    level: PrunedLevel
    prompt_rate: float
    """r_q; 0 if prompts are not pruned."""
    completion_rate: float
    """r_o; 0 if completions are not pruned."""
    normaliser: str
    reasons: tuple[str, ...]
    """Reasons of the declared bias; empty if none is declared."""
    figures: DrawFigures
    squared_bias: float
    """Unbiased estimate of ``|E[g_hat] - g|^2 / |g|^2``; it may be below 0."""
    squared_bias_bound: float
    """A bound that it exceeds with at most its share of the false alarms if there is no bias."""

    @property
    def verdict(self) -> str:
        """``biased`` (declared, found), ``declared`` (not found), ``unbiased`` or ``WRONG`` (found, not declared)."""
        found = not self.squared_bias <= self.squared_bias_bound  # so NaN is one
        if self.reasons:
            return "biased" if found else "declared"
        return "WRONG" if found else "unbiased"

    def as_json(self) -> dict[str, Any]:
        """Everything as values that JSON can hold."""
        values = asdict(self)
        return {"verdict": self.verdict, **values.pop("figures"), **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenComparison:
    """All results of ``dppo compare --frozen``."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    setting: FrozenSettings
    measured: tuple[Measurement, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if every bias that was found is declared."""
        return all(each.verdict != "WRONG" for each in self.measured)

    def as_json(self, **facts: Any) -> dict[str, Any]:
        """Everything as values that JSON can hold; ``facts`` are added to the environment."""
        return {
            "format": FORMAT,
            "subject": self.subject,
            **asdict(self.setting),
            "passed": self.passed,
            "rows": [each.as_json() for each in self.measured],
            "environment": environment(seeds=[self.setting.seed], **facts),
            "seconds": round(self.seconds, 1),
        }


def cells(lines: Sequence[FrozenLine], rates: Sequence[float]) -> Iterator[tuple[FrozenLine, PrunedLevel, Method]]:
    """Every line at each of its levels and rates, level by level, with its method at those rates."""
    grid = {
        PrunedLevel.BLOCK: [(0.0, 0.0)],
        PrunedLevel.COMPLETIONS: [(0.0, rate) for rate in rates],
        PrunedLevel.PROMPTS: [(rate, 0.0) for rate in rates],
    }
    for level, pairs in grid.items():
        for line in (line for line in lines if level in line.levels):
            for prompt, completion in pairs:
                # As in a run that sets no prune_floor: at most half of what the rate keeps, so that there is a choice.
                yield line, level, line.method.with_rates(prompt=prompt, completion=completion).at(0.0)


def compare_frozen(
    lines: Sequence[FrozenLine],
    setting: FrozenSettings,
    *,
    started: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> FrozenComparison:
    """Draw every line at every rate, and compare each with the full batch.

    The lines, at least one, are of the same rollouts. Seconds count from ``started``, a ``time.perf_counter``, default
    now. ``progress`` is called with the name of each part before it starts.
    """
    started = time.perf_counter() if started is None else started
    subject, todo = lines[0].subject, list(cells(lines, setting.rates))
    found: list[tuple[Bias, DrawFigures]] = []
    with one_thread():
        root_NN = root(subject.gram_NN)
        for number, (line, level, method) in enumerate(todo):
            progress(f"{line.name}, {level} pruned ({number} of {len(todo)})")
            drawn = sample(line.subject, method, setting.draws, setting.seed)
            bias = bias_of(drawn, root_NN)
            found.append((bias, figures(drawn, bias, root_NN)))
    # Methods without chance need no share of the false alarms.
    share = setting.false_alarm / max(sum(not made.exact for _, made in found), 1)
    measured = (
        Measurement(
            name=line.name,
            level=level,
            prompt_rate=method.prompts.rate,
            completion_rate=method.completions.rate,
            normaliser=method.normaliser.name,
            reasons=method.biases(),
            figures=made,
            squared_bias=bias.squared,
            squared_bias_bound=bias.bound(share),
        )
        for (line, level, method), (bias, made) in zip(todo, found, strict=True)
    )
    return FrozenComparison(
        subject=subject.describe(),
        setting=setting,
        measured=tuple(measured),
        seconds=time.perf_counter() - started,
    )
