"""The pruning that a run asks for by its fields: what is wrong with them, and the parts of a ``Method`` they make.

Adapters have the same fields by the same names, so a run on one engine says what it says on another.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dppo.errors import did_you_mean
from dppo.methods import METHODS, Method
from dppo.pruning import (
    COMPLETION_AUTO,
    DESIGNS,
    PIVOTAL,
    PROMPT_AUTO,
    SCHEDULES,
    SCORES,
    Auto,
    Pruning,
    Schedule,
    Score,
    advantage_with_length,
    constant,
)
from dppo.pruning.ceiling import LARGEST
from dppo.settings import AUTO

RATES = {"prompt_prune_rate": PROMPT_AUTO, "completion_prune_rate": COMPLETION_AUTO}
"""Fields that are a share or ``auto``, and how that chooses."""
DEFAULT_FLOOR = 0.2
"""Keeps weights at 5 or less per level at little cost in variance: docs/log.md."""

CHOICES: dict[str, Collection[str]] = {
    "method": METHODS,
    "prompt_mode": ("thin", "fill"),
    "completion_score": (AUTO, *SCORES),
    "prune_schedule": (AUTO, *SCHEDULES),
    "completion_budget": ("rows", "tokens"),
    "sampling_design": tuple(name for name, design in DESIGNS.items() if design.unbiased),
}
"""Fields about pruning that name one of a few, and the names."""


def pruned(args: Any, method: Method, sampler_log_probs: bool) -> Method:
    """A method with the run's rates, floors, designs, scores and rounds.

    Args:
        args: of the run: any record with the fields of ``DPPOConfig`` that are read here, checked.
        method: with the run's objective.
        sampler_log_probs: whether rollouts come with log-probabilities, which ``completion_score: auto`` uses.
    """
    rounds, own = method.rounds, METHODS[method.name]
    if rounds is not None:
        limit = rounds.limit if args.max_rounds is None else args.max_rounds
        rounds = replace(rounds, limit=limit, factor=args.round_factor or rounds.factor)
    if not (own.completions.rate or own.prompts.rate):
        return replace(method, rounds=rounds)
    prompt_rate, prompt_auto = rate_of(args, "prompt_prune_rate")
    rate, auto = rate_of(args, "completion_prune_rate")
    completions = method.completions.at_rate(rate)
    design = DESIGNS[args.sampling_design]
    if isinstance(completions, Pruning):
        completions = replace(
            completions,
            score=_score(args, method, sampler_log_probs),
            floor=_floor(args, rate, auto),
            auto=auto,
            budget=args.completion_budget,
            design=design if completions.design.unbiased else completions.design,
        )
    floor = _floor(args, prompt_rate, prompt_auto)
    prompts = replace(method.prompts, rate=prompt_rate, floor=floor, auto=prompt_auto)
    if prompts.design.unbiased and design.fixed_size:  # a random number may be none, and does not divide over ranks
        prompts = replace(prompts, design=design)
    return replace(method, completions=completions, prompts=prompts, rounds=rounds, schedule=_schedule(args, method))


def _score(args: Any, method: Method, sampler_log_probs: bool) -> Score:
    """The score asked for; ``auto`` leaves a paper's own score alone and picks the best at hand for ours."""
    if args.completion_score != AUTO:
        return SCORES[args.completion_score]
    if method.score is not advantage_with_length:
        return method.score
    if sampler_log_probs:
        return SCORES["confidence"]
    # Of a mean over tokens, dividing by the length loses more than it gains: the tables of dppo verify.
    return SCORES["advantage" if method.normaliser.per_sequence else "length"]


def _floor(args: Any, rate: float, auto: object) -> float:
    if args.prune_floor is not None:
        return args.prune_floor
    # A rate that is chosen lowers the floor by itself where it must.
    return min(DEFAULT_FLOOR, (1 - rate) / (2 if auto is None else 1))


def _schedule(args: Any, method: Method) -> Schedule:
    schedule = method.schedule if args.prune_schedule == AUTO else SCHEDULES[args.prune_schedule]
    return schedule if schedule is constant else partial(schedule, until=args.prune_until)


def default_rate(name: str, base: Method) -> float | str:
    """A rate that is not given: ``auto`` for completions drawn by the rule of ``dppo``, else the method's own."""
    if name == "completion_prune_rate":
        return AUTO if base.completions == METHODS["dppo"].completions else base.completions.rate
    return base.prompts.rate


def rate_of(args: Any, name: str) -> tuple[float, Auto | None]:
    """The rate of a level, or the most that it may choose and how it chooses; of arguments that were checked."""
    rate = getattr(args, name)
    return (LARGEST, RATES[name]) if rate == AUTO else (rate, None)


def choice_problems(args: Any, choices: Mapping[str, Collection[str]]) -> list[str]:
    """One sentence per field that names none of its choices."""
    return [
        f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}. {did_you_mean(str(value), allowed)}".rstrip()
        for name, allowed in choices.items()
        if (value := getattr(args, name)) not in allowed
    ]


def rate_problems(args: Any, base: Method) -> list[str]:
    """One sentence per rate or floor that is out of range, or that the method has no use for."""
    problems = []
    pruned = f"dppo_{args.method.removesuffix('_loss')}"
    pruned = pruned if pruned in METHODS else "dppo"
    for name in RATES:
        rate = getattr(args, name)
        text = rate if isinstance(rate, str) else f"{rate:g}"
        largest = LARGEST if rate == AUTO else rate
        prunes = bool(base.completions.rate or base.prompts.rate)
        if rate and not prunes:
            problems.append(
                f"method={args.method!r} prunes nothing, but {name}={text}. Use method={pruned!r}, or {name}: 0."
            )
        if isinstance(largest, str) or not 0 <= largest < 1:
            problems.append(f"{name}={text} must be in [0, 1), or auto. To prune half, write {name}: 0.5.")
        elif args.prune_floor is not None and not 0 < args.prune_floor <= round(1 - largest, 9):
            problems.append(
                f"prune_floor={args.prune_floor:g} must be in (0, {1 - largest:g}], the share that {name}={text} "
                f"keeps{' at least' if rate == AUTO else ''}. Try prune_floor: {(1 - largest) / 2:g}."
            )
        if rate == AUTO and prunes and (reason := not_chosen(name, base)):
            problems.append(f"{name}=auto: {reason}. Use method='dppo', or write a rate, {name}: 0.")
    return problems


def not_chosen(name: str, base: Method) -> str:
    """Why a level of a method does not choose its own rate; empty where it does."""
    level = base.prompts if name == "prompt_prune_rate" else base.completions
    if level is base.completions and not isinstance(level, Pruning):
        return f"method={base.name!r} ranks completions, and what it drops costs bias and no variance"
    biased = level.at_rate(LARGEST).bias
    return f"what method={base.name!r} drops costs bias ({biased}), which a choice does not weigh" if biased else ""


def unread_problems(args: Any, base: Method) -> list[str]:
    """One sentence per setting of draws that the method does not make."""
    draws, prunes = isinstance(base.completions, Pruning), bool(base.completions.rate or base.prompts.rate)
    any_level = prunes and (draws or args.prompt_prune_rate)
    why = f"method={args.method!r} {'ranks completions by a rule of its own' if prunes else 'prunes nothing'}"
    unread = {
        "completion_score": args.completion_score != AUTO and not (draws and prunes),
        "completion_budget": args.completion_budget == "tokens" and not (draws and prunes),
        "sampling_design": args.sampling_design != PIVOTAL.name and not any_level,
        "prune_floor": args.prune_floor is not None and not any_level,
        "prune_schedule": args.prune_schedule != AUTO and not prunes,
    }
    return [
        f"{why}, but {name}={getattr(args, name)!r}. Leave {name} out, or use method='dppo'."
        for name, is_unread in unread.items()
        if is_unread
    ]
