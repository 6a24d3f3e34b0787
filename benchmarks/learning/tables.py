"""The table of the pages, in Markdown, from the record of ``compare.py``, and its cells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

PHASES = ("rollout", "forward_backward")
LABELS = {
    "trl_g8": "TRL, groups of 8",
    "trl": "TRL, group size tuned",
    "grpo_rows": "plain GRPO, packed",
    "grpo_rows_centred": "plain GRPO, packed, `scale_rewards: none`",
    "fewer_prompts": "plain GRPO, packed, larger steps",
    "dppo_default": "dppo, default",
    "dppo_auto": "dppo, `prompt_prune_rate: auto` too",
    "dppo_completions": "dppo, half of the completions",
    "dppo": "dppo, half of the completions, 30% of the prompts",
    "dppo_threshold": "the rule of the paper, same rates",
    "dppo_history": "dppo, baseline from history",
    "dppo_history_sizes": "dppo, baseline and group sizes from history",
    "dppo_predicted": "dppo, baseline from history and prompt lengths (removed)",
    "dppo_everything": "the same, `prompt_prune_rate: auto`",
    "cppo": "CPPO (biased)",
    "greso": "GRESO (biased)",
    "dapo": "DAPO (biased)",
    "dppo_default_16x4": "dppo, default",
    "grpo_rows_16x4": "nothing drawn: plain GRPO, packed",
    "without_packing": "dppo, padded",
    "without_shared_prefixes": "dppo, prompts not shared",
    "without_score": "dppo, drawn without a score",
}
"""Contestants of the files of results, as docs/results.md calls them."""
Found = Mapping[str, Any]


SUMMARY = (
    *("trainer", "prompts x completions, learning rate", "final accuracy", "times faster", "reached"),
    *("s / step", "rollout"),
)
"""Headings of ``summary``."""


def summary(record: Found, names: Iterable[str]) -> str:
    """A row for each method: setting, final accuracy, times faster to the first target, seconds of a step."""
    return table(SUMMARY, summary_rows(record, names))


def summary_rows(record: Found, names: Iterable[str]) -> list[list[str]]:
    """Rows of ``summary``."""
    target = next(iter(record["targets"]))
    rows = []
    for name in names:
        fields, found = record["methods"][name]["overrides"], record["speedup"][target][name]
        whole, rollout, _ = step_seconds(record["methods"][name])
        group = fields["num_generations"]
        setting = f"{fields['per_device_train_batch_size'] // group} x {group}, {fields['learning_rate']:g}"
        final = cell(record["methods"][name]["final"], "mean", "{:.3f}")
        sooner = speedup(found, record["targets"][target]["missing"])
        spent = (f"{whole:.2f}", f"{rollout / whole:.0%}") if whole else ("-", "-")  # no run was finished
        rows.append([LABELS.get(name, name), setting, final, sooner, found["reached"], *spent])
    return rows


REGIMES = {
    "no_kl": "no KL term",
    "kl": "`beta: 0.04`",
    "large_groups": "groups of 16",
    "explained": "step by step, no KL term",
    "explained_kl": "step by step, `beta: 0.04`",
}
CHAT_METHODS = {
    "trl": "TRL",
    "control": "the control",
    "default": "dppo, default",
    "half": "half of the completions",
    "three_quarters": "a quarter of the completions",
}


def chat_model(regimes: Mapping[str, Found]) -> str:
    """A row for each method of each regime of ``smollm2.py``, in Markdown."""
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
            place = REGIMES.get(regime, regime), CHAT_METHODS.get(name, name)
            rows.append([*place, len(each["runs"]), *sooner, *parts, *shares, final])
    headings = ("regime", "trainer", "seeds", "times TRL", "times the control", "s / step", "rollout", "update")
    return table((*headings, "silent", "kept", "final accuracy"), [list(map(str, row)) for row in rows])


LASTING: dict[str, Sequence[str]] = {
    "zero-variance groups of 8 at the start, at the end": ("dead_at_8", "dead_end"),
    "of these, still so after the next epoch, of 8 epochs": ("still_dead",),
    "share right at the start: mastered, live": ("right_mastered_start", "right_live_start"),
    "the same at the end": ("right_mastered_end", "right_live_end"),
    "held-out accuracy: start, end": ("accuracy_start", "accuracy_end"),
}
"""Lines on tasks whose zero-variance groups last, and the figures of each."""


def of_tasks(lines: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[Found]]) -> str:
    """A column for each task and a row for each line: its figures over the seeds of ``tasks.py``."""
    rows = [
        [what] + [", ".join(spread_of([seed[name] for seed in seeds]) for name in names) for seeds in found.values()]
        for what, names in lines.items()
    ]
    return table(("", *(f"`{task}`" for task in found)), rows)


def spread_of(values: ArrayLike) -> str:
    """Mean (lowest to highest)."""
    found = np.asarray(values, dtype=float)
    return f"{found.mean():.2f} ({found.min():.2f} to {found.max():.2f})"


def step_seconds(method: Found) -> tuple[float, float, float]:
    """Seconds of a step, of its rollout, of forward and backward: means over all steps of all finished runs."""
    runs = [run for run in method["runs"] if run["status"] == "finished"]
    steps = sum(run["curve"][-1]["step"] for run in runs) or 1
    whole = sum(run["curve"][-1]["seconds"] for run in runs) / steps
    rollout, update = (sum(run["phases"].get(phase, 0.0) for run in runs) / steps for phase in PHASES)
    return whole, rollout, update


def speedup(found: Found, missing: str | None) -> str:
    """A ratio as ``survival.Ratio`` writes it; of one without an upper end, since the baseline missed, the least."""
    if missing or not any(found["per_seed"].values()):
        return "-"
    if found["median"] is None:
        return "not reached"
    return (">= " if from_below(found) else "") + cell(found, "median", "{:.2f}")


def from_below(found: Found) -> bool:
    """Whether a ratio is the least that it can be: the baseline missed the target in runs near the median."""
    return found["at_most"] is None or found["at_most"] > found["median"]


def cell(figure: Found, centre: str, form: str, times: float = 1.0) -> str:
    """A figure with its interval, where it has one."""
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
