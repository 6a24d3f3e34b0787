"""The method that settings describe: rates, floors, designs and scores, the same for every engine."""

from dataclasses import replace
from functools import partial
from typing import Any

from dppo.methods.method import Method
from dppo.methods.registry import ROW_METHODS
from dppo.methods.rows import RowMethod
from dppo.pruning import DESIGNS, SCHEDULES, SCORES, Pruning, Schedule, Score, constant
from dppo.pruning.ceiling import COMPLETION_AUTO, PROMPT_AUTO, PROMPT_FLOOR, Auto
from dppo.pruning.probabilities import stated
from dppo.pruning.tokens import TOKEN_AUTO
from dppo.settings import AUTO

RATES = {"prompt_prune_rate": PROMPT_AUTO, "completion_prune_rate": COMPLETION_AUTO, "token_prune_rate": TOKEN_AUTO}
"""Settings that are a share or ``auto``, and how that chooses."""
DEFAULT_FLOOR = 0.2
"""Keeps weights at 5 or less per level."""
LEAST = 0.02
"""Floor of a completion with score 0: weights of at most 50 (docs/estimators.md)."""


def with_rollout_cost(method: Method, cost: float | None) -> Method:
    """The method that chooses rates by this cost of a generated token over one trained on, >= 0; None leaves it."""
    for name in ("completions", "tokens"):
        level = getattr(method, name)
        if cost is not None and getattr(level, "auto", None) is not None:
            method = replace(method, **{name: replace(level, auto=replace(level.auto, rollout_cost=cost))})
    return method


def prunes_anything(method: Method) -> bool:
    """True if a method drops prompts, completions or tokens at its own rates."""
    return bool(method.completions.rate or method.prompts.rate or method.tokens.active)


def pruned(args: Any, method: Method, sampler_log_probs: bool) -> Method:
    """A method with the run's rates, floors, designs, scores, schedule and rounds."""
    rounds = method.rounds
    if rounds is not None:
        limit = rounds.limit if args.max_rounds is None else args.max_rounds
        rounds = replace(rounds, limit=limit, factor=args.round_factor or rounds.factor)
    if not prunes_anything(method):
        return replace(method, rounds=rounds)
    rate, auto = _rate_of(args, "completion_prune_rate")
    design, completions = DESIGNS[args.sampling_design], method.completions.at_rate(rate)
    if isinstance(completions, Pruning):
        completions = replace(
            completions,
            score=_score(args, method, sampler_log_probs),
            floor=_floor(args, rate, auto),
            least=LEAST if args.prune_floor is None and stated(completions.rule).spends_budget else None,
            auto=auto,
            budget=args.completion_budget,
            design=design if completions.design.unbiased else completions.design,
        )
    rate, auto = _rate_of(args, "prompt_prune_rate")
    floor = _floor(args, rate, auto, DEFAULT_FLOOR if auto is None else PROMPT_FLOOR)
    prompts = replace(method.prompts, rate=rate, floor=floor, auto=auto)
    if prompts.design.unbiased and design.fixed_size:  # a random number may be none, and does not divide over ranks
        prompts = replace(prompts, design=design)
    rate, auto = _rate_of(args, "token_prune_rate")
    # At rate 0, since a method's own may not allow this floor.
    tokens = replace(replace(method.tokens, rate=0.0).at_rate(rate, args.head_prune_rate), auto=auto)
    if args.prune_floor is not None:
        tokens = replace(tokens, floor=args.prune_floor, head_floor=args.prune_floor)
    schedule = schedule_of(args, method.schedule)
    method = replace(method, completions=completions, tokens=tokens, prompts=prompts, rounds=rounds, schedule=schedule)
    return with_rollout_cost(method, args.rollout_cost)


def row_method(args: Any) -> RowMethod:
    """The method of a trainer on rows, from a preset and settings."""
    base, rate = ROW_METHODS[args.method], row_rate(args)
    design = base.rows.design if base.per_epoch else DESIGNS[args.sampling_design]
    return replace(
        base,
        rows=replace(base.rows, rate=rate, floor=_floor(args, rate, None), design=design),
        score=base.score if args.row_score == AUTO else args.row_score,
        schedule=schedule_of(args, base.schedule),
    )


def row_rate(args: Any) -> float:
    """The rate of a run on rows: as given, or the method's own."""
    return ROW_METHODS[args.method].rows.rate if args.row_prune_rate is None else args.row_prune_rate


def _rate_of(args: Any, name: str) -> tuple[float, Auto | None]:
    """The rate of a level, or the largest that it may choose, and how it chooses."""
    rate = getattr(args, name)
    if rate != AUTO:
        return rate, None
    # A floor that was asked for is kept at every rate: at a higher one it would give way.
    return min(RATES[name].largest, 1 - 2 * (args.prune_floor or 0.0)), RATES[name]


def _score(args: Any, method: Method, sampler_log_probs: bool) -> Score:
    """The score asked for; ``auto`` keeps a paper's own score and picks the best at hand for ours."""
    if args.completion_score != AUTO:
        return SCORES[args.completion_score]
    if not stated(method.score).of_sums:
        return method.score
    if sampler_log_probs:
        return SCORES["uncertainty"]
    # Of a mean over tokens, dividing by the length loses more than it gains: the tables of dppo verify.
    return SCORES["advantage" if method.normaliser.per_sequence else "length"]


def _floor(args: Any, rate: float, auto: Auto | None, usual: float = DEFAULT_FLOOR) -> float:
    if args.prune_floor is not None:
        return args.prune_floor
    # A rate that is chosen lowers the floor by itself where it must.
    return min(usual, (1 - rate) / (2 if auto is None else 1))


def schedule_of(args: Any, own: Schedule) -> Schedule:
    """The schedule asked for, or the method's own, with its share of full rates."""
    schedule = own if args.prune_schedule == AUTO else SCHEDULES[args.prune_schedule]
    return schedule if schedule is constant else partial(schedule, until=args.prune_until)
