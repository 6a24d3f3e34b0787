"""Tables in Markdown of what methods learn, and their cells."""

from collections.abc import Mapping, Sequence
from typing import Any

PHASES = ("rollout", "forward_backward")
REGIMES = {
    "no_kl": "no KL term",
    "kl": "`beta: 0.04`",
    "large_groups": "groups of 16, no KL term",
    "explained": "longer completions, no KL term",
    "explained_kl": "longer completions, `beta: 0.04`",
}
METHODS = {
    "trl": "TRL",
    "control": "the control",
    "default": "dppo, default",
    "half": "half of the completions",
    "three_quarters": "a quarter of the completions",
}
Found = Mapping[str, Any]


def learned(regimes: Mapping[str, Found]) -> str:
    """A row for each method of each regime of a file of ``smollm2.py``."""
    rows = []
    for regime, record in regimes.items():
        for name, each in record["methods"].items():
            sooner = [
                "" if name == opponent else speedup(found, found["missing"]) if found else "not run"
                for opponent in ("trl", "control")
                for found in (each.get(f"against_{opponent}"),)
            ]
            parts = [f"{each['step_seconds'][part]:.1f}" for part in ("whole", *PHASES)]
            silent, kept = (each["chosen"].get(part) for part in ("silent_share", "kept_share"))
            shares = ["" if share is None else f"{share:.0%}" for share in (silent, kept)]
            final = cell(each["final_accuracy"], "mean", "{:.2f}")
            place = REGIMES.get(regime, regime), METHODS.get(name, name)
            rows.append([*place, str(len(each["runs"])), *sooner, *parts, *shares, final])
    headings = ("regime", "trainer", "seeds", "times TRL", "times the control", "s / step", "rollout", "update")
    return table((*headings, "silent", "kept", "final accuracy"), rows)


def speedup(found: Found, missing: str | None) -> str:
    """A ratio of ``survival.ratio``; its least value if the baseline missed the target."""
    if missing or not any(found["per_seed"].values()):
        return "-"
    if found["median"] is None:
        return "not reached"
    return (">= " if from_below(found) else "") + cell(found, "median", "{:.2f}")


def from_below(found: Found) -> bool:
    """True if a ratio is only a lower bound: the baseline missed the target in runs near the median."""
    return found["at_most"] is None or found["at_most"] > found["median"]


def cell(figure: Found, centre: str, form: str, times: float = 1.0) -> str:
    """A figure with its interval, if it has one."""
    if figure[centre] is None:
        return "-"
    said = form.format(times * figure[centre])
    if figure["low"] is None:
        return said
    high = "no end" if figure["high"] is None else form.format(times * figure["high"])
    return f"{said} [{form.format(times * figure['low'])}, {high}]"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
