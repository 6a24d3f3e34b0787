"""Costs of tokens and of forward passes, fitted to the seconds of a run's generations. No function reads a clock."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from dppo.types import Work

MEASURED_GENERATIONS = 8
"""Generations after the first that costs are measured in."""
NOISE = 0.05
"""Standard deviation of a generation's seconds, over their mean, that the fit expects."""
PRIOR = (0.0, 0.0, 1.0)
"""Shares of a generation's seconds before any is measured: per generation, per pass, per token."""
PRIOR_SPREAD = (0.25, 0.5, 0.5)
"""Standard deviations of these shares. If passes never vary, the seconds that tokens leave are mostly theirs."""
LEAST_GROWING = 0.0625
"""Smallest share of the seconds of passes that grows with the tokens kept."""
UPPER = np.triu_indices(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds and forward passes of some part of a run. Pairs are of passes without and with a gradient."""

    seconds: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Seconds of generating, of passes without a gradient (log-probabilities of other policies), and of training."""
    total: float = 0.0
    """Seconds of whole optimizer steps."""
    run: tuple[Work, Work] = (Work(), Work())
    """Passes that were run."""
    unpruned: tuple[Work, Work] = (Work(), Work())
    """Passes of the same part without pruning."""
    layouts: tuple[float, ...] = (0.0, 0.0)
    """Layouts of completions for passes; each takes at least one pass, however little is kept."""

    @property
    def values(self) -> list[float]:
        """All 14 numbers in one list, which ``of_values`` reads back."""
        return np.hstack([np.ravel(part) for part in astuple(self)]).tolist()

    @classmethod
    def of_values(cls, values: Sequence[float]) -> "Spent":
        """The record of ``values``."""
        one, two, three, four = (Work(passes=values[at], tokens=values[at + 1]) for at in range(4, 12, 2))
        pairs: dict[str, Any] = {"run": (one, two), "unpruned": (three, four), "layouts": tuple(values[12:])}
        return cls(seconds=tuple(values[:3]), total=values[3], **pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """Seconds of forward passes of one kind: a ridge regression ``s = c + a passes + b tokens``, coefficients >= 0."""

    products: tuple[float, ...] = (0.0,) * 10
    """Sums over generations of ``x x^T``, ``x = (1, passes, tokens, seconds)``: the upper triangle, >= 0."""
    unpruned: tuple[float, ...] = (0.0, 0.0)
    """Passes beyond the first of each layout, and tokens, of steps that prune nothing, >= 0."""

    def after(self, seconds: float, run: Work, unpruned: Work, layouts: float) -> "PassCosts":
        """These sums and those of one more generation."""
        x = np.array([1.0, run.passes, run.tokens, max(seconds, 0.0)])
        products = tuple((np.array(self.products) + np.outer(x, x)[UPPER]).tolist())
        passes, tokens = self.unpruned
        more = max(unpruned.passes - layouts, 0.0)
        return PassCosts(products=products, unpruned=(passes + more, tokens + unpruned.tokens))

    @property
    def seconds(self) -> float:
        """Seconds of all generations."""
        return self.products[3]

    @property
    def each(self) -> tuple[float, float, float]:
        """Seconds of a generation without passes, of one more pass, and of one more token; 0 before any pass."""
        gram = np.zeros((4, 4))
        gram[UPPER] = self.products
        count, passes, tokens, seconds = gram[0]
        if not (passes and tokens and seconds):
            return 0.0, 0.0, 0.0
        mean = np.array([1.0, passes / count, tokens / count, seconds / count])
        gram = (gram + np.triu(gram, 1).T) / np.outer(mean, mean)
        share = _ridge(gram[:3, :3], gram[:3, 3])  # its prior counts only if passes and tokens hardly vary
        base, each_pass, each_token = (share * mean[3] / mean[:3]).tolist()
        return base, each_pass, each_token

    def of(self, work: Work) -> float:
        """Seconds of these passes."""
        _, each_pass, each_token = self.each
        return each_pass * work.passes + each_token * work.tokens

    @property
    def growing(self) -> float:
        """Seconds of all generations that grow with the tokens kept."""
        _, each_pass, each_token = self.each
        passes, tokens = self.unpruned
        # One more token takes its own seconds, and its part of the passes beyond the first of a step without pruning.
        marginal = each_token + (each_pass * passes / tokens if tokens else 0.0)
        return float(np.clip(marginal * self.products[2], LEAST_GROWING * self.seconds, self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """Costs of generating, of scoring and of training in a run; the first generation, which warms up, is left out.

    ``rollout_cost`` is fixed after ``MEASURED_GENERATIONS`` more, or with the first checkpoint: later choices depend on
    no clock, and a resumed run chooses alike. Savings follow the costs of all generations.
    """

    generations: int = 0
    """Generations recorded so far, the first one included, >= 0."""
    seconds: float = 0.0
    """Seconds of generating and of rewards, >= 0."""
    generated: float = 0.0
    """Completion tokens generated, >= 0."""
    trained: float = 0.0
    """Completion tokens trained on, in all optimizer steps, >= 0."""
    scoring: PassCosts = PassCosts()
    """Costs of passes without a gradient: log-probabilities of the old and the reference policy."""
    training: PassCosts = PassCosts()
    """Costs of forward passes, their recomputation and their backward passes."""
    fixed: bool = False
    """True if ``rollout_cost`` does not change any more."""
    rollout_cost: float | None = None
    """Cost of a generated token over one scored and trained on; None before it is fixed or without seconds."""

    def after(self, spent: Spent, generated: float, trained: float) -> "TokenCosts":
        """These costs and one more generation, with its completion tokens generated and trained on."""
        if not self.generations:
            return replace(self, generations=1)
        passes = zip(spent.seconds[1:], spent.run, spent.unpruned, spent.layouts, strict=True)
        scoring, training = (costs.after(*of) for costs, of in zip((self.scoring, self.training), passes, strict=True))
        costs = replace(
            self,
            generations=self.generations + 1,
            seconds=self.seconds + max(spent.seconds[0], 0.0),
            generated=self.generated + generated,
            trained=self.trained + trained,
            scoring=scoring,
            training=training,
        )
        return costs.settled() if costs.generations > MEASURED_GENERATIONS else costs

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "TokenCosts":
        """The costs that ``dataclasses.asdict`` gave."""
        passes: dict[str, Any] = {
            name: PassCosts(**{key: tuple(value) for key, value in saved[name].items()})
            for name in ("scoring", "training")
        }
        return cls(**{**saved, **passes})

    def settled(self) -> "TokenCosts":
        """Copy whose ``rollout_cost`` is fixed."""
        return self if self.fixed else replace(self, fixed=True, rollout_cost=self._rollout_cost)

    @property
    def known(self) -> bool:
        """True if ``rollout_cost`` is fixed and seconds were measured."""
        return self.fixed and bool(self.seconds or self.scoring.seconds or self.training.seconds)

    def saved(self, generated: float, passes: Sequence[Work]) -> float:
        """Seconds of generated tokens, and of passes without and with a gradient."""
        each = self.seconds / self.generated if self.generated else 0.0
        return each * generated + self.scoring.of(passes[0]) + self.training.of(passes[1])

    @property
    def _rollout_cost(self) -> float | None:
        """``rollout_cost`` by the generations so far, rounded to a power of two: similar machines choose alike."""
        passes = self.scoring.seconds + self.training.seconds
        growing = self.scoring.growing + self.training.growing
        if not (self.seconds > 0 and growing > 0 and self.generated and self.trained):
            return None
        # Passes that do not grow with the tokens kept count as generating: no choice of completions saves them.
        paid = (self.seconds + passes - growing) / self.generated
        return 2.0 ** round(np.log2(paid / (growing / self.trained)))


def _ridge(gram_33: np.ndarray, product_3: np.ndarray) -> np.ndarray:
    """(3,) coefficients >= 0 of least squares with ``PRIOR``: the best over all sets of positive coefficients."""
    prior = np.array(PRIOR)
    ridge = np.diag((NOISE / np.array(PRIOR_SPREAD)) ** 2)
    gram_33, product_3 = gram_33 + ridge, product_3 + ridge @ prior
    best, least = np.zeros(3), 0.0
    for positive in itertools.chain.from_iterable(itertools.combinations(range(3), count) for count in (1, 2, 3)):
        chosen, found = np.ix_(positive, positive), np.zeros(3)
        found[list(positive)] = np.linalg.solve(gram_33[chosen], product_3[list(positive)])
        loss = float(found @ gram_33 @ found - 2 * found @ product_3)
        if (found >= 0).all() and loss < least:
            best, least = found, loss
    return best
