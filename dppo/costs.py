"""Costs of tokens and of forward passes, fitted to the seconds of a run's generations. No function reads a clock."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

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


class Passes(NamedTuple):
    """Forward passes of one kind, without or with a gradient, in part of a run: as run, and as without pruning."""

    passes: float = 0.0
    tokens: float = 0.0
    unpruned_passes: float = 0.0
    unpruned_tokens: float = 0.0
    layouts: float = 0.0
    """Layouts of completions for passes; each takes at least one pass, however little is kept."""


NO_PASSES = Passes()


class Spent(NamedTuple):
    """Seconds and forward passes of some part of a run."""

    generating: float = 0.0
    """Seconds of generating completions and computing rewards."""
    scoring: float = 0.0
    """Seconds of passes without a gradient: log-probabilities of other policies."""
    training: float = 0.0
    """Seconds of passes with a gradient."""
    total: float = 0.0
    """Seconds of whole optimizer steps."""
    scored: Passes = NO_PASSES
    trained: Passes = NO_PASSES


class PassCosts(NamedTuple):
    """Seconds of forward passes of one kind: a ridge regression ``s = c + a passes + b tokens``, coefficients >= 0."""

    products: tuple[float, ...] = (0.0,) * 10
    """Sums over generations of ``x x^T``, ``x = (1, passes, tokens, seconds)``: the upper triangle, >= 0."""
    unpruned: tuple[float, ...] = (0.0, 0.0)
    """Passes beyond the first of each layout, and tokens, of steps that prune nothing, >= 0."""

    def after(self, seconds: float, found: Passes) -> "PassCosts":
        """These sums and those of one more generation."""
        x = np.array([1.0, found.passes, found.tokens, max(seconds, 0.0)])
        products = tuple((np.array(self.products) + np.outer(x, x)[UPPER]).tolist())
        more = max(found.unpruned_passes - found.layouts, 0.0)
        return PassCosts(products, (self.unpruned[0] + more, self.unpruned[1] + found.unpruned_tokens))

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

    def saved(self, found: Passes) -> float:
        """Seconds of the passes and tokens that pruning left out."""
        _, each_pass, each_token = self.each
        more = found.unpruned_passes - found.passes, found.unpruned_tokens - found.tokens
        return each_pass * more[0] + each_token * more[1]

    @property
    def growing(self) -> float:
        """Seconds of all generations that grow with the tokens kept."""
        _, each_pass, each_token = self.each
        passes, tokens = self.unpruned
        # One more token takes its own seconds, and its part of the passes beyond the first of a step without pruning.
        marginal = each_token + (each_pass * passes / tokens if tokens else 0.0)
        return float(np.clip(marginal * self.products[2], LEAST_GROWING * self.seconds, self.seconds))


NO_COSTS = PassCosts()


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
    scoring: PassCosts = NO_COSTS
    """Costs of passes without a gradient: log-probabilities of the old and the reference policy."""
    training: PassCosts = NO_COSTS
    """Costs of forward passes, their recomputation and their backward passes."""
    fixed: bool = False
    """True if ``rollout_cost`` does not change any more."""
    rollout_cost: float | None = None
    """Cost of a generated token over one scored and trained on; None before it is fixed or without seconds."""

    def after(self, spent: Spent, generated: float, trained: float) -> "TokenCosts":
        """These costs and one more generation, with its completion tokens generated and trained on."""
        if not self.generations:
            return replace(self, generations=1)
        costs = replace(
            self,
            generations=self.generations + 1,
            seconds=self.seconds + max(spent.generating, 0.0),
            generated=self.generated + generated,
            trained=self.trained + trained,
            scoring=self.scoring.after(spent.scoring, spent.scored),
            training=self.training.after(spent.training, spent.trained),
        )
        return costs.settled() if costs.generations > MEASURED_GENERATIONS else costs

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "TokenCosts":
        """The costs that ``dataclasses.asdict`` gave, after JSON."""
        passes = {}
        for name in ("scoring", "training"):
            products, unpruned = saved[name]
            passes[name] = PassCosts(tuple(map(float, products)), tuple(map(float, unpruned)))
        return cls(**{**saved, **passes})

    def settled(self) -> "TokenCosts":
        """Copy whose ``rollout_cost`` is fixed."""
        return self if self.fixed else replace(self, fixed=True, rollout_cost=self._rollout_cost)

    @property
    def known(self) -> bool:
        """True if ``rollout_cost`` is fixed and seconds were measured."""
        return self.fixed and bool(self.seconds or self.scoring.seconds or self.training.seconds)

    def saved(self, tokens: float, scored: Passes, trained: Passes) -> float:
        """Seconds of ``tokens`` that were not generated, and of the passes that were left out."""
        each = self.seconds / self.generated if self.generated else 0.0
        return each * tokens + self.scoring.saved(scored) + self.training.saved(trained)

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
