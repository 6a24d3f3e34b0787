"""Every line of the frozen table at every rate, with a test for a bias."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dppo.environment import environment, one_thread
from dppo.errors import ConfigError
from dppo.lab.frozen.lines import RATES, TOKEN_LEVELS, FrozenLine, PrunedLevel
from dppo.lab.frozen.sample import DrawFigures, Sample, bias_of, figures, sample
from dppo.lab.frozen.tokens import TokenGradients, at_token_rates, sample_tokens, token_gradients
from dppo.methods import Method
from dppo.verification.checks import wrong
from dppo.verification.draws import Bias, full_batch, root

FORMAT = 1
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
    """Result of a line at one pair of rates."""

    name: str
    level: PrunedLevel
    prompt_rate: float
    """r_q; 0 if prompts are not pruned."""
    completion_rate: float
    """r_o; 0 if completions are not pruned."""
    token_rate: float
    """Of cuts; 0 if completions are not cut."""
    head_rate: float
    """Of tokens withheld from the head; 0 if the head gets all."""
    normaliser: str
    reasons: tuple[str, ...]
    """Reasons of the declared bias; empty if none is declared."""
    exact: bool
    """True if the method uses no random numbers."""
    figures: DrawFigures
    squared_bias: float
    """Unbiased estimate of ``|E[g_hat] - g|^2 / |g|^2``; it may be below 0."""
    squared_bias_bound: float
    """A bound that it exceeds with at most its share of the false alarms if there is no bias."""
    chance_without_bias: float
    """Bound on the p-value of ``squared_bias`` if there is no bias."""

    @property
    def found(self) -> bool:
        """True if a bias is found."""
        return not self.squared_bias <= self.squared_bias_bound  # so NaN is one

    @property
    def verdict(self) -> str:
        """``biased`` (declared, found), ``declared`` (not found), ``unbiased`` or ``WRONG`` (found, not declared)."""
        if self.reasons:
            return "biased" if self.found else "declared"
        return "WRONG" if self.found else "unbiased"

    def as_json(self) -> dict[str, Any]:
        """Everything as values that JSON can hold."""
        values = asdict(self)
        return {"verdict": self.verdict, **values.pop("figures"), **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenComparison:
    """All results of ``dppo compare --frozen``."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    completions_with_gradient: int
    """Of the full batch, under the first line."""
    setting: FrozenSettings
    lines: tuple[FrozenLine, ...]
    measured: tuple[Measurement, ...]
    controls: tuple[Measurement, ...]
    """Methods known to be biased: each must be found."""
    tests: int
    """Measurements that share the false alarms."""
    seconds: float

    @property
    def passed(self) -> bool:
        """True if every bias that was found is declared, and every control was found."""
        return all(each.verdict != "WRONG" for each in self.measured) and all(each.found for each in self.controls)

    def as_json(self, **facts: Any) -> dict[str, Any]:
        """Everything as values that JSON can hold; ``facts`` are added to the environment."""
        dashes = [(line.name, level) for line in self.lines for level in RATES if level not in line.levels]
        return {
            "format": FORMAT,
            "subject": self.subject,
            "rows_with_gradient": self.completions_with_gradient,
            **asdict(self.setting),
            "tests": self.tests,
            "passed": self.passed,
            "rows": [each.as_json() for each in self.measured],
            "controls": [each.as_json() for each in self.controls],
            "not_taken": [{"name": name, "rate_of": level} for name, level in dashes],
            "describe": {line.name: line.method.describe() for line in self.lines},
            "environment": environment(seeds=[self.setting.seed], **facts),
            "seconds": round(self.seconds, 1),
        }


def cells(lines: Sequence[FrozenLine], rates: Sequence[float]) -> Iterator[tuple[FrozenLine, PrunedLevel, Method]]:
    """Every line at each of its levels and rates, level by level, with its method at those rates."""
    grid = {
        PrunedLevel.BLOCK: [(0.0, 0.0)],
        PrunedLevel.COMPLETIONS: [(0.0, rate) for rate in rates],
        PrunedLevel.PROMPTS: [(rate, 0.0) for rate in rates],
        PrunedLevel.BOTH: [(prompt, completion) for prompt in rates for completion in rates],
    }
    for level, pairs in grid.items():
        for line in (line for line in lines if level in line.levels):
            for prompt, completion in pairs:
                # As in a run that sets no prune_floor: at most half of what the rate keeps, so that there is a choice.
                yield line, level, line.method.with_rates(prompt=prompt, completion=completion).at(0.0)
    for level in (PrunedLevel.TOKENS, PrunedLevel.HEAD):
        for line in (line for line in lines if level in line.levels):
            for rate in rates:
                pair = (rate, 0.0) if level is PrunedLevel.TOKENS else (0.0, rate)
                if (method := at_token_rates(line.method.at(0.0), *pair)) is not None:
                    yield line, level, method


def compare_frozen(
    lines: Sequence[FrozenLine],
    base: Method,
    setting: FrozenSettings,
    *,
    started: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> FrozenComparison:
    """Draw every line at every rate, and compare each with the full batch.

    The lines, at least one, are of the same rollouts; controls are made from ``base``. Seconds count from ``started``,
    a ``time.perf_counter``, default now. ``progress`` is called with the name of each part before it starts.
    """
    started = time.perf_counter() if started is None else started
    subject, block = lines[0].subject, frozenset({PrunedLevel.BLOCK})
    controls = [FrozenLine(name=name, method=made, subject=subject, levels=block) for name, made in wrong(base).items()]
    todo = [*cells(lines, setting.rates), *((line, PrunedLevel.BLOCK, line.method) for line in controls)]
    found: list[tuple[Sample, Bias, DrawFigures]] = []
    with one_thread():
        root_NN, tokens = root(subject.gram_NN), _gradients_of_tokens(lines, progress)
        for number, (line, level, method) in enumerate(todo):
            progress(f"{line.name}, {level} pruned ({number} of {len(todo)})")
            if level in TOKEN_LEVELS and tokens is not None:
                drawn = sample_tokens(line.subject, tokens, method, setting.draws, setting.seed)
                known = tokens.gradient_SK
            else:
                drawn, known = sample(line.subject, method, setting.draws, setting.seed), root_NN
            bias = bias_of(drawn, known)
            found.append((drawn, bias, figures(drawn, bias, known)))
    count = len(todo) - len(controls)
    tests = sum(not drawn.exact for drawn, _, _ in found[:count])
    share = setting.false_alarm / max(tests, 1)
    measured = tuple(_measurement(*cell, *results, share) for cell, results in zip(todo, found, strict=True))
    return FrozenComparison(
        subject=subject.describe(),
        completions_with_gradient=found[0][0].live,
        setting=setting,
        lines=tuple(lines),
        measured=measured[:count],
        controls=measured[count:],
        tests=tests,
        seconds=time.perf_counter() - started,
    )


def _gradients_of_tokens(lines: Sequence[FrozenLine], progress: Callable[[str], None]) -> TokenGradients | None:
    """Gradients of the tokens that some line with a level of tokens trains on; None without such a line."""
    needed = [full_batch(line.subject, line.method) != 0 for line in lines if TOKEN_LEVELS & line.levels]
    if not needed:
        return None
    progress("taking the gradient of every token")
    return token_gradients(lines[0].subject, torch.stack(needed).any(0))


def _measurement(
    line: FrozenLine, level: PrunedLevel, method: Method, drawn: Sample, bias: Bias, found: DrawFigures, share: float
) -> Measurement:
    return Measurement(
        name=line.name,
        level=level,
        prompt_rate=method.prompts.rate,
        completion_rate=method.completions.rate,
        token_rate=method.tokens.rate,
        head_rate=method.tokens.head_rate,
        normaliser=method.normaliser.name,
        reasons=method.biases(),
        exact=drawn.exact,
        figures=found,
        squared_bias=bias.squared,
        squared_bias_bound=bias.bound(share),
        chance_without_bias=bias.chance,
    )
