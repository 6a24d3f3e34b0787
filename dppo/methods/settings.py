"""From settings to the method they describe, and what is wrong with them: the same for every engine.

Adapters have the same fields by the same names, so a run on one engine says what it says on another.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from functools import partial
from numbers import Real
from types import MappingProxyType
from typing import Any, get_type_hints

from dppo.errors import did_you_mean
from dppo.methods.method import Method
from dppo.methods.registry import METHODS, ROW_METHODS
from dppo.methods.rows import RowMethod
from dppo.pruning import (
    COMPLETION_AUTO,
    DESIGNS,
    PIVOTAL,
    PROMPT_AUTO,
    SCHEDULES,
    SCORES,
    TOKEN_AUTO,
    Auto,
    Pruning,
    Schedule,
    Score,
    TokenPruning,
    advantage_with_length,
    all_alike,
    constant,
    proportional,
    random_prefix,
)
from dppo.pruning.ceiling import GRID, PROMPT_FLOOR
from dppo.pruning.level import floor_problems
from dppo.settings import AUTO, DEFAULT_METHOD, FULL_SHARE, TABLE, Setting
from dppo.typed import mismatch

RATES = {"prompt_prune_rate": PROMPT_AUTO, "completion_prune_rate": COMPLETION_AUTO, "token_prune_rate": TOKEN_AUTO}
"""Settings that are a share or ``auto``, and how that chooses."""
DEFAULT_FLOOR = 0.2
"""Keeps weights at 5 or less per level at little cost in variance: docs/log.md."""
LEAST = 0.02
"""The floor of a completion that has nothing to lose, by its score: weights of 50 at most (docs/estimators.md)."""

CHOICES: dict[str, Collection[str]] = {
    "method": METHODS,
    "completion_score": (AUTO, *SCORES),
    "prune_schedule": (AUTO, *SCHEDULES),
    "sampling_design": tuple(name for name, design in DESIGNS.items() if design.unbiased),
}
"""Settings that name a part, and the parts there are; other choices are in the table."""
ROW_CHOICES = CHOICES | {
    "method": ROW_METHODS,
    "sampling_design": tuple(name for name, each in DESIGNS.items() if each.unbiased and each.fixed_size),
}
"""The same of trainers on the rows of a dataset."""
FEW = 16
"""Choices that an error lists; of more, which are methods, it names the page."""


# -- one setting by itself --------------------------------------------------------------------------------------------


def setting_problems(
    args: Any, choices: Mapping[str, Collection[str]] = CHOICES, ranges: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """One sentence per field of another type than its annotation's, out of its range, or none of its choices.

    Args:
        args: a dataclass of settings, with other fields beside them or not. What has its default is not checked.
        choices: of settings that name a part.
        ranges: intervals of fields that are not in the table of settings: those of an engine.
    """
    problems, hints = [], get_type_hints(type(args))
    for each in fields(args):
        name, value = each.name, getattr(args, each.name)
        told = TABLE.get(each) or (Setting(ranges[name], (), None, "") if name in ranges else None)
        if told is None or value is each.default:
            continue
        example = _number_in(value) or (each.default if told.example is None else told.example)
        advice = "leaving it out" if example is None else f"{name}: {example}"
        interval, allowed = told.range, choices.get(name, told.choices)
        if wrong := mismatch(name, value, hints[name], f"{advice}."):
            problems.append(wrong)
        elif value is None or value in allowed:
            continue
        elif interval and not _within(value, interval):
            shown = f"{value:g}" if isinstance(value, Real) else value
            words = "".join(f", or {word}" for word in allowed)
            problems.append(f"{name}={shown} must be in {interval}{words}. Try {advice}.")
        elif allowed and not interval:
            all_of_them = f"The {len(allowed)} there are: docs/methods.md."
            if len(allowed) <= FEW:
                all_of_them = f"Write one of {', '.join(map(repr, allowed))}."
            problems.append(f"{name}={value!r} is not known. {did_you_mean(value, allowed)}{all_of_them}")
    return problems


def _number_in(value: Any) -> str:
    """The number that a text reads as; empty where it is no text, or reads as none."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return f"{number:g}" if math.isfinite(number) else ""


def _within(value: Any, interval: str) -> bool:
    """Whether a value is a number in an interval such as ``[0, 1)``; NaN is in none."""
    if not isinstance(value, Real):
        return False
    number, (low, high) = float(value), map(float, interval[1:-1].split(", "))
    above = low <= number if interval[0] == "[" else low < number
    return above and (number <= high if interval[-1] == "]" else number < high)


# -- settings and the method they go with -----------------------------------------------------------------------------


def fill_in(args: Any) -> None:
    """Settings that were left out get the method's own values, and rates in words become numbers."""
    args.method = DEFAULT_METHOD if args.method is None else args.method
    base = METHODS[args.method]
    if getattr(args, "token_prune_rate", None) and args.completion_prune_rate is None and not base.completions.bias:
        args.completion_prune_rate = 0.0  # what is cut at 0 is dropped: one draw does both
    drawn = base.completions if isinstance(base.completions, Pruning) else Pruning()
    own = {
        "prompt_prune_rate": base.prompts.rate,
        "completion_prune_rate": AUTO if drawn == METHODS["dppo"].completions else base.completions.rate,
        "token_prune_rate": base.tokens.rate,
        "head_prune_rate": base.tokens.head_rate,
        "completion_budget": drawn.budget,
        "sampling_design": drawn.design.name if drawn.design.unbiased else PIVOTAL.name,
    }
    for name, value in own.items():
        if getattr(args, name, value) is None:
            setattr(args, name, value)


def _rates(args: Any) -> list[str]:
    """The settings of ``RATES`` that a trainer has."""
    return [name for name in RATES if hasattr(args, name)]


def read_rates(args: Any) -> None:
    """Rates that are numbers in words, as flags have them, become numbers; anything else stays as it is."""
    for name in _rates(args):
        try:
            setattr(args, name, float(rate) if isinstance(rate := getattr(args, name), str) else rate)
        except ValueError:
            continue  # ``auto``, or refused by its name


def method_problems(args: Any) -> list[str]:
    """One sentence per rate, floor or setting of draws that contradicts another or that the method has no use for."""
    base, problems = METHODS[args.method], []
    prunes = _prunes(base)
    pruned = f"dppo_{args.method.removesuffix('_loss')}"
    pruned = pruned if pruned in METHODS else "dppo"
    for name in [*_rates(args), *(["head_prune_rate"] if hasattr(args, "head_prune_rate") else [])]:
        rate = getattr(args, name)
        text = rate if rate == AUTO else f"{rate:g}"
        if rate and not prunes:
            problems.append(
                f"method={args.method!r} prunes nothing, but {name}={text}. Use method={pruned!r}, or {name}: 0."
            )
        elif args.prune_floor is not None and (rate == AUTO or name in ("prompt_prune_rate", "completion_prune_rate")):
            # A floor that is asked for is kept: of the rates that are looked at, the smallest must have room for it.
            taken, keeps = ((1 + GRID) / 2, "has room for") if rate == AUTO else (rate, "keeps")
            problems += floor_problems(args.prune_floor, taken, "prune_floor", f"{name}={text} {keeps}")
        if rate == AUTO and prunes and (reason := not_chosen(name, base)):
            problems.append(f"{name}=auto: {reason}. Use method='dppo', or write a rate, {name}: 0.")
    return problems + _unread_problems(args, base)


def _prunes(base: Method) -> bool:
    return bool(base.completions.rate or base.prompts.rate or base.tokens.active)


def not_chosen(name: str, base: Method) -> str:
    """Why a level of a method does not choose its own rate; empty where it does."""
    if name == "token_prune_rate":
        return ""
    level = base.prompts if name == "prompt_prune_rate" else base.completions
    if level is base.completions and not isinstance(level, Pruning):
        return f"method={base.name!r} ranks completions, and what it drops costs bias and no variance"
    biased = level.at_rate(RATES[name].largest).bias
    return f"what method={base.name!r} drops costs bias ({biased}), which a choice does not weigh" if biased else ""


def _unread_problems(args: Any, base: Method) -> list[str]:
    """One sentence per setting of draws that the method does not make."""
    draws, prunes = isinstance(base.completions, Pruning), _prunes(base)
    any_level = prunes and (draws or args.prompt_prune_rate)
    why = f"method={args.method!r} {'ranks completions by a rule of its own' if prunes else 'prunes nothing'}"
    by_floor = base.tokens.cut_rule is not random_prefix and base.tokens.head_rule is not all_alike
    by_cost = isinstance(base.completions, Pruning) and base.completions.rule is proportional
    unread = {
        "completion_score": args.completion_score != AUTO and not (draws and prunes),
        "completion_budget": args.completion_budget == "tokens" and not (by_cost and prunes),
        "sampling_design": args.sampling_design != PIVOTAL.name and not any_level,
        "prune_floor": args.prune_floor is not None and not (any_level and by_floor),
        "prune_schedule": args.prune_schedule != AUTO and not prunes,
    }
    problems = [
        f"{why}, but {name}={getattr(args, name)!r}. Leave {name} out, or use method='dppo'."
        for name, is_unread in unread.items()
        if is_unread
    ]
    if prunes and args.prune_until != FULL_SHARE and _schedule(args, base.schedule) is constant:
        problems.append(_constant(args))
    if args.prompt_mode == "fill" and not args.prompt_prune_rate and prunes:
        problems.append(
            "prompt_mode='fill', and no prompts are pruned. Write prompt_prune_rate: auto, or leave it out."
        )
    return problems


def _constant(args: Any) -> str:
    return f"prune_until={args.prune_until:g}, and the rates are constant. Write prune_schedule: stop, or leave it out."


def row_problems(args: Any) -> list[str]:
    """One sentence per setting of draws among rows that the method or another setting leaves without effect."""
    base, problems = ROW_METHODS[args.method], []
    if args.prune_until != FULL_SHARE and _schedule(args, base.schedule) is constant:
        problems.append(_constant(args))
    if base.per_epoch and args.sampling_design != PIVOTAL.name:
        problems.append(
            f"method={args.method!r} draws each row of an epoch by itself, and sampling_design="
            f"{args.sampling_design!r} is another draw. Leave it out."
        )
    return problems


def bias_problems(args: Any, reasons: Collection[str]) -> list[str]:
    """The sentence that refuses a biased choice which was not accepted; none where it was, or nothing is biased."""
    if args.accept_bias or not reasons:
        return []
    advice = "Set" if args.method == "dppo" else "Use method='dppo', or set"
    why = "; ".join(reasons)
    return [f"method={args.method!r} is biased: {why}. {advice} accept_bias=True to train with it on purpose."]


# -- the method -------------------------------------------------------------------------------------------------------


def pruned(args: Any, method: Method, sampler_log_probs: bool) -> Method:
    """A method with the run's rates, floors, designs, scores, schedule and rounds."""
    rounds, own = method.rounds, METHODS[method.name]
    if rounds is not None:
        limit = rounds.limit if args.max_rounds is None else args.max_rounds
        rounds = replace(rounds, limit=limit, factor=args.round_factor or rounds.factor)
    if not _prunes(own):
        return replace(method, rounds=rounds)
    prompt_rate, prompt_auto = _rate_of(args, "prompt_prune_rate")
    rate, auto = _rate_of(args, "completion_prune_rate")
    completions = method.completions.at_rate(rate)
    design = DESIGNS[args.sampling_design]
    if isinstance(completions, Pruning):
        completions = replace(
            completions,
            score=_score(args, method, sampler_log_probs),
            floor=_floor(args, rate, auto),
            least=LEAST if args.prune_floor is None and completions.rule is proportional else None,
            auto=auto,
            budget=args.completion_budget,
            design=design if completions.design.unbiased else completions.design,
        )
    floor = _floor(args, prompt_rate, prompt_auto, DEFAULT_FLOOR if prompt_auto is None else PROMPT_FLOOR)
    prompts = replace(method.prompts, rate=prompt_rate, floor=floor, auto=prompt_auto)
    if prompts.design.unbiased and design.fixed_size:  # a random number may be none, and does not divide over ranks
        prompts = replace(prompts, design=design)
    return replace(
        method,
        completions=completions,
        tokens=_tokens(args, method.tokens),
        prompts=prompts,
        rounds=rounds,
        schedule=_schedule(args, method.schedule),
    )


def _tokens(args: Any, own: TokenPruning) -> TokenPruning:
    """What a run leaves out of completions: nothing on an engine without the settings."""
    if not hasattr(args, "token_prune_rate"):
        return own
    rate, auto = _rate_of(args, "token_prune_rate")
    head, floor = args.head_prune_rate, own.floor if args.prune_floor is None else args.prune_floor
    return replace(
        own,
        rate=rate,
        auto=auto,
        head_rate=head,
        floor=min(floor, (1 - rate) / 2),
        head_floor=min(own.head_floor, (1 - head) / 2),
    )


def row_method(args: Any) -> RowMethod:
    """The method that settings of a trainer on rows describe."""
    base = ROW_METHODS[args.method]
    rate = row_rate(args)
    floor = min(DEFAULT_FLOOR, (1 - rate) / 2) if args.prune_floor is None else args.prune_floor
    design = base.rows.design if base.per_epoch else DESIGNS[args.sampling_design]
    return replace(
        base,
        rows=replace(base.rows, rate=rate, floor=floor, design=design),
        score=base.score if args.row_score == AUTO else args.row_score,
        schedule=_schedule(args, base.schedule),
    )


def row_rate(args: Any) -> float:
    """The rate of a run on rows: as given, or the method's own."""
    return ROW_METHODS[args.method].rows.rate if args.row_prune_rate is None else args.row_prune_rate


def _rate_of(args: Any, name: str) -> tuple[float, Auto | None]:
    """The rate of a level, or the most that it may choose and how it chooses."""
    rate = getattr(args, name)
    if rate != AUTO:
        return rate, None
    auto = RATES[name]
    if name != "prompt_prune_rate" and args.rollout_cost is not None:
        auto = replace(auto, rollout_cost=args.rollout_cost)
    # A floor that was asked for is kept at every rate: at a higher one it would give way.
    return min(auto.largest, 1 - 2 * (args.prune_floor or 0.0)), auto


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


def _floor(args: Any, rate: float, auto: Auto | None, usual: float = DEFAULT_FLOOR) -> float:
    if args.prune_floor is not None:
        return args.prune_floor
    # A rate that is chosen lowers the floor by itself where it must.
    return min(usual, (1 - rate) / (2 if auto is None else 1))


def _schedule(args: Any, own: Schedule) -> Schedule:
    schedule = own if args.prune_schedule == AUTO else SCHEDULES[args.prune_schedule]
    return schedule if schedule is constant else partial(schedule, until=args.prune_until)
