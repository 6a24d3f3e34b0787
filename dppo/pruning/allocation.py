"""Dynamic completion allocation: more prompts per step, so that the completions kept after pruning fill the update.

It is a matter of sizes, settled before a run starts. Nothing is refilled during a step.
"""

from dataclasses import dataclass
from fractions import Fraction

from dppo.errors import DesignError
from dppo.pruning.probabilities import check_rate
from dppo.pruning.ranking import MAX_DENOMINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Sizes of a step under dynamic completion allocation."""

    prompts: int
    """Prompts rolled out per step."""
    generations: int
    """Completions rolled out per prompt."""
    update: int
    """Completions that an update has room for: those of a step without pruning."""
    exact: bool
    """Whether nothing was rounded: groups have their usual size, and what the rate keeps of them is ``update``."""


def allocate(prompts: int, generations: int, rate: float) -> Allocation:
    """The sizes at which ``prompts / (1 - rate)`` prompts are rolled out, rounded down in exact arithmetic.

    Args:
        prompts: per step without pruning, >= 1.
        generations: completions per prompt, >= 1; stays as it is.
        rate: share of the completions that is dropped, in [0, 1).

    Returns:
        16 prompts of 16 at rate 0.5 give 32 prompts of 16, of which 256 completions are kept.

    Raises:
        DesignError: a rate out of range.

    Source: CPPO, arXiv:2503.22342, section 3.4, as its code for verl has it.
    """
    grown = prompts / _kept(rate)
    return Allocation(
        prompts=int(grown), generations=generations, update=prompts * generations, exact=grown.denominator == 1
    )


def allocate_as_trl(prompts: int, generations: int, rate: float) -> Allocation:
    """The sizes that CPPO's code for TRL arrives at, with the completions per prompt it loses to rounding.

    It keeps ``int(G * (1 - rate))`` of a group, fills the update with as many more prompts as that leaves room for, and
    rolls out ``int(1 / (1 - rate))`` times the kept number per prompt, which is G again only where nothing is rounded.

    Args:
        prompts: per step without pruning, >= 1.
        generations: G, completions per prompt without pruning, >= 1.
        rate: share of the completions that is dropped, in [0, 1).

    Returns:
        16 prompts of 16 at rate 0.9 give 256 prompts of 10.

    Raises:
        DesignError: a rate out of range, or one that keeps none of a group.

    Source: CPPO's code for TRL, in exact arithmetic.
    """
    kept_share = _kept(rate)
    kept, repeat = int(generations * kept_share), int(1 / kept_share)
    if not kept:
        raise DesignError(
            f"rate={rate:g} keeps none of {generations} completions per prompt. Use at least {int(1 / kept_share)} of "
            "them, or a lower rate."
        )
    update = prompts * generations
    grown = Fraction(update, kept)
    exact = grown.denominator == 1 and kept * repeat == generations
    return Allocation(prompts=int(grown), generations=kept * repeat, update=update, exact=exact)


def _kept(rate: float) -> Fraction:
    check_rate(rate, 0.0)
    return 1 - Fraction(rate).limit_denominator(MAX_DENOMINATOR)
