"""Checks of settings, values of those left out, and lines about a run: the same for every engine."""

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from numbers import Real
from types import MappingProxyType
from typing import Any, get_type_hints

from dppo.errors import did_you_mean, in_words
from dppo.methods.from_settings import RATES, prunes_anything, row_rate, schedule_of
from dppo.methods.method import Method
from dppo.methods.own import is_own, own_settings, settle
from dppo.methods.registry import METHODS, ROW_METHODS
from dppo.pruning import DESIGNS, PIVOTAL, SCHEDULES, SCORES, Schedule, constant
from dppo.pruning.ceiling import GRID
from dppo.pruning.level import floor_problems
from dppo.pruning.probabilities import stated
from dppo.settings import AUTO, FULL_SHARE, TABLE, Setting
from dppo.typed import mismatch, within

CHOICES: dict[str, Collection[str]] = {
    "method": METHODS,
    "completion_score": (AUTO, *SCORES),
    "prune_schedule": (AUTO, *SCHEDULES),
    "sampling_design": tuple(name for name, design in DESIGNS.items() if design.unbiased),
}
"""Settings that name a part; other choices are in the table."""
ROW_CHOICES = CHOICES | {
    "method": ROW_METHODS,
    "sampling_design": tuple(name for name, each in DESIGNS.items() if each.unbiased and each.fixed_size),
}
"""The same of trainers on the rows of a dataset."""


def setting_problems(
    args: Any, choices: Mapping[str, Collection[str]] = CHOICES, ranges: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """One sentence per field of another type than its annotation's, out of its range, or none of its choices.

    ``choices`` are of settings that name a part, and ``ranges`` of an engine's fields, which are not in the table. A
    field with its default is not checked.
    """
    problems, hints = [], get_type_hints(type(args))
    for each in fields(args):
        name, value = each.name, getattr(args, each.name)
        told = TABLE.get(each) or (Setting(range=ranges[name]) if name in ranges else None)
        if told is None or value is each.default:
            continue
        example = each.default if told.example is None else told.example
        if (number := _number_in(value)) is not None:
            example = f"{number:g}"
        advice = "leaving it out" if example is None else f"{name}: {example}"
        allowed = choices.get(name, told.choices)
        if wrong := mismatch(name, value, hints[name], f"{advice}."):
            problems.append(wrong)
        elif value is None or value in allowed or (name == "method" and is_own(value)):
            continue
        elif told.range and not within(value, told.range):
            shown, words = f"{value:g}" if isinstance(value, Real) else value, "".join(f", or {w}" for w in allowed)
            problems.append(f"{name}={shown} must be in {told.range}{words}. Try {advice}.")
        elif allowed and not told.range:
            known = f"Write one of {', '.join(map(repr, allowed))}."
            if len(allowed) > 16:  # too many to list
                known = f"The {len(allowed)} there are: dppo docs methods."
            problems.append(f"{name}={value!r} is not known. {did_you_mean(value, allowed)}{known}")
    return problems


def _number_in(value: Any) -> float | None:
    """The finite number that a text reads as, else None."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def fill_in(args: Any, base: Method) -> None:
    """Give settings that were left out the values of a preset."""
    if args.token_prune_rate and args.completion_prune_rate is None and not base.completions.bias:
        args.completion_prune_rate = 0.0  # what is cut at 0 is dropped: one draw does both
    own = {"completion_budget": "rows", "sampling_design": PIVOTAL.name} | own_settings(base)
    if base.completions == METHODS["dppo"].completions:
        own["completion_prune_rate"] = AUTO
    for name, value in own.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def completed(args: Any, base: Method) -> list[str]:
    """Fill in settings that were left out; one sentence for each that contradicts the method."""
    if is_own(args.method):  # the engine sets the objective: a method of one's own decides its pruning alone
        return settle(args, base, own_settings(base)) + fill_problems(args)
    fill_in(args, base)
    return method_problems(args, base)


def own_objective(method: Method) -> list[str]:
    """Parts of the objective that a method fixes or changes, by the name of its field."""
    plain = Method(name="plain", paper="")
    parts = ("token_loss", "normaliser", "kl", "beta", "entropy_coef", "statistics", "advantages")
    return [name for name in parts if name in method.fixes or getattr(method, name) != getattr(plain, name)]


def read_rates(args: Any) -> None:
    """Convert rates that flags give as text; other values stay."""
    for name in RATES:
        if (number := _number_in(getattr(args, name))) is not None:
            setattr(args, name, number)


def method_problems(args: Any, base: Method) -> list[str]:
    """One sentence per rate, floor or setting of draws that contradicts another or that a preset has no use for."""
    problems, prunes, pruned = [], prunes_anything(base), f"dppo_{args.method.removesuffix('_loss')}"
    for name in (*RATES, "head_prune_rate"):
        rate = getattr(args, name)
        text = f"{name}={rate if rate == AUTO else f'{rate:g}'}"
        if rate and not prunes:
            instead = pruned if pruned in METHODS else "dppo"
            problems.append(f"method={args.method!r} prunes nothing, but {text}. Use method={instead!r}, or {name}: 0.")
        elif args.prune_floor is not None:
            # A floor that is asked for is kept: of the rates that are looked at, the smallest must have room for it.
            taken, keeps = ((1 + GRID) / 2, "has room for") if rate == AUTO else (rate, "keeps")
            problems += floor_problems(args.prune_floor, taken, "prune_floor", f"{text} {keeps}")
        if rate == AUTO and prunes and (reason := not_chosen(name, base)):
            problems.append(f"{text}: {reason}. Use method='dppo', or write a rate, {name}: 0.")
    cuts, most = args.token_prune_rate, stated(base.tokens.cut_rule).largest_rate
    if cuts != AUTO and cuts > most:
        leaves = f"method={args.method!r} leaves out at most {most:g} of a completion, not token_prune_rate={cuts:g}"
        problems.append(f"{leaves}. Write token_prune_rate: {most}.")
    return problems + _unread_problems(args, base)


def not_chosen(name: str, base: Method) -> str:
    """The reason why a level of a method does not choose its own rate; empty if it does."""
    if name == "token_prune_rate":
        rule = base.tokens.cut_rule
        chooses = stated(rule).chooses_rate
        return "" if chooses else f"method={base.name!r} cuts by {in_words(rule)}, which chooses no rate"
    level = base.prompts if name == "prompt_prune_rate" else base.drawn
    if level is None:
        return f"method={base.name!r} ranks completions, and what it drops costs bias and no variance"
    biased = level.at_rate(RATES[name].largest).bias
    return f"what method={base.name!r} drops costs bias ({biased}), which a choice does not weigh" if biased else ""


def _unread_problems(args: Any, base: Method) -> list[str]:
    """One sentence per setting of draws that the method does not make."""
    level, prunes = base.drawn if prunes_anything(base) else None, prunes_anything(base)
    by_cost = level is not None and stated(level.rule).spends_budget
    any_level = prunes and (level is not None or args.prompt_prune_rate)
    floors = all(stated(rule).by_moments for rule in (base.tokens.cut_rule, base.tokens.head_rule))
    unread = {
        "completion_score": args.completion_score != AUTO and level is None,
        "completion_budget": args.completion_budget == "tokens" and not by_cost,
        "sampling_design": args.sampling_design != PIVOTAL.name and not any_level,
        "prune_floor": args.prune_floor is not None and not (any_level and floors),
        "prune_schedule": args.prune_schedule != AUTO and not prunes,
    }
    why = f"method={args.method!r} {'ranks completions by a rule of its own' if prunes else 'prunes nothing'}"
    problems = [
        f"{why}, but {name}={getattr(args, name)!r}. Leave {name} out, or use method='dppo'."
        for name, is_unread in unread.items()
        if is_unread
    ]
    return problems + (_schedule_problems(args, base.schedule) + fill_problems(args) if prunes else [])


def fill_problems(args: Any) -> list[str]:
    """The sentence that refuses longer blocks if no prompt is pruned."""
    wrong = args.prompt_mode == "fill" and not args.prompt_prune_rate
    return ["prompt_mode='fill', and no prompts are pruned. Write prompt_prune_rate: auto, or leave it out."] * wrong


def _schedule_problems(args: Any, own: Schedule) -> list[str]:
    """The sentence that refuses an end of constant rates."""
    wrong = args.prune_until != FULL_SHARE and schedule_of(args, own) is constant
    return [f"prune_until={args.prune_until:g}, and the rates are constant. Write prune_schedule: stop."] * wrong


def row_problems(args: Any) -> list[str]:
    """One sentence per setting of draws among rows that has no effect, or that contradicts another."""
    base, design = ROW_METHODS[args.method], f"sampling_design={args.sampling_design!r}"
    each = f"method={args.method!r} draws each row of an epoch by itself, and {design} is another draw. Leave it out."
    unread = base.per_epoch and args.sampling_design != PIVOTAL.name
    problems = _schedule_problems(args, base.schedule) + [each] * unread
    if args.prune_floor is not None:
        rate = row_rate(args)
        problems += floor_problems(args.prune_floor, rate, "prune_floor", f"row_prune_rate={rate:g} keeps")
    return problems


def bias_problems(args: Any, reasons: Collection[str]) -> list[str]:
    """The sentence that refuses a biased choice which was not accepted."""
    if args.accept_bias or not reasons:
        return []
    advice = "Set" if args.method == "dppo" else "Use method='dppo', or set"
    why = "; ".join(reasons)
    return [f"method={args.method!r} is biased: {why}. {advice} accept_bias=True to train with it on purpose."]


def start_lines(method: Method, reasons: Collection[str], prompts: str) -> list[str]:
    """Lines for the start of a run, from ``reasons`` for a biased gradient and words about the ``prompts``."""
    kept = f"{1 - method.completions.rate:.0%} of the others are kept, by {method.score_name}"
    if method.drawn is not None and method.drawn.auto is not None:
        kept = f"at least {kept}; each step chooses the share"
    elif not method.completions.rate:
        kept = "all others are kept"
    lines = [
        f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}",
        f"prompts: {prompts}",
        f"completions: those without a gradient are skipped; {kept}",
    ]
    if method.tokens.active:
        lines.append(f"tokens: {method.tokens}")
    if method.schedule is not constant:
        lines.append(f"rates follow a schedule over the run: {in_words(method.schedule)}")
    return lines
