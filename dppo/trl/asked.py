"""The pruning that a run's arguments ask for, as parts of a ``Method``."""

from dataclasses import replace
from functools import partial
from typing import Any

from dppo.methods import METHODS, Method
from dppo.pruning import DESIGNS, SCHEDULES, SCORES, Pruning, Schedule, Score, advantage_with_length, constant
from dppo.trl.fields import AUTO, rate_of

DEFAULT_FLOOR = 0.2
"""Keeps weights at 5 or less per level at little cost in variance: docs/log.md."""


def pruned(args: Any, method: Method, sampler_log_probs: bool) -> Method:
    """A method with the run's rates, floors, designs, scores and rounds.

    Args:
        args: the run's arguments, a ``DPPOConfig``.
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
