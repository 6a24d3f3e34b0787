"""Pass rates of prompts from two shares of a run, and the tokens of its completions."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import beta as beta_distribution

KINDS = 24
"""Pass rates that a Beta distribution is cut into."""
LEAST = 1e-3
"""Pass rates are at least this far from 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts, and the completions that the model makes of them."""

    pass_rates: tuple[float, ...]
    """Probability that a completion is right, of equally many prompts each, in [0, 1]."""
    right_tokens: float
    """Mean tokens of a right completion, > 0."""
    wrong_tokens: float
    """Mean tokens of a wrong one, > 0."""
    prompt_tokens: float
    """Mean tokens of a prompt, >= 1."""
    padded_tokens: float
    """Tokens of a row of TRL's batch: the longest prompt and the longest completion."""

    @property
    def rate_C(self) -> np.ndarray:
        """(C,) pass rates."""
        return np.array(self.pass_rates)

    @property
    def tokens_2(self) -> np.ndarray:
        """(2,) mean tokens of a right and of a wrong completion."""
        return np.array([self.right_tokens, self.wrong_tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The two shares of some groups that fix a Beta distribution of pass rates."""

    mean: float
    """Share of right completions, in (0, 1)."""
    zero_variance: float
    """Share of groups that are all right or all wrong, in [0, 1]."""
    size: int
    """Completions of a group, >= 2."""

    @classmethod
    def of(cls, reward: float, low: float, high: float, zero_variance: float, size: int) -> "Shares":
        """Shares by a mean reward and its range; a reward outside of the range is no pass rate, and 0.5 is taken."""
        rate = (reward - low) / (high - low)
        mean = min(max(rate, LEAST), 1 - LEAST) if 0 <= rate <= 1 else 0.5
        return cls(mean=mean, zero_variance=min(max(zero_variance, 0.0), 1.0), size=size)

    def resampled(self, groups: int, rng: np.random.Generator) -> "Shares":
        """The shares of as many groups as were seen, drawn from the distribution: the parametric bootstrap."""
        right_Q = rng.binomial(self.size, rng.choice(pass_rates(self), size=groups))
        equal = float(np.mean((right_Q == 0) | (right_Q == self.size)))
        return Shares.of(float(right_Q.mean()), 0, self.size, equal, self.size)


def pass_rates(shares: Shares) -> tuple[float, ...]:
    """``KINDS`` equally likely pass rates of the Beta distribution with these shares, or the nearest to them."""
    mean, size = shares.mean, shares.size

    def equal_share(log_strength: float) -> float:
        a, b = mean * math.exp(log_strength), (1 - mean) * math.exp(log_strength)
        return math.exp(betaln(a + size, b) - betaln(a, b)) + math.exp(betaln(a, b + size) - betaln(a, b))

    weakest, strongest = math.log(1e-3), math.log(1e4)  # the share only falls with the strength
    wanted = min(max(shares.zero_variance, equal_share(strongest)), equal_share(weakest))
    root: Any = brentq(lambda log_strength: equal_share(log_strength) - wanted, weakest, strongest, xtol=1e-12)
    strength = math.exp(root)
    place = (np.arange(KINDS) + 0.5) / KINDS
    return tuple(beta_distribution.ppf(place, mean * strength, (1 - mean) * strength).clip(0.0, 1.0).tolist())
