"""Tables of a comparison against several opponents and targets, in Markdown, from the record of ``compare.py``."""

from collections.abc import Mapping, Sequence
from typing import Any

PHASES = ("rollout", "forward_backward")
AMOUNTS = {"rollouts": "completions", "rollout_tokens": "their tokens", "tokens_trained": "tokens trained"}
"""What else than seconds is spent, and what tables call it."""
LABELS = {
    "trl_g8": "TRL, groups of 8",
    "trl": "TRL, group size tuned",
    "grpo_rows": "GRPO, packed: **the control**",
    "grpo_rows_centred": "the control, `scale_rewards: none`",
    "fewer_prompts": "the control, larger steps",
    "dppo_default": "dppo, default",
    "dppo_auto": "dppo, `prompt_prune_rate: auto` too",
    "dppo_completions": "dppo, half of the completions",
    "dppo": "dppo, half of the completions, 30% of the prompts",
    "dppo_threshold": "the rule of the paper, same rates",
    "dppo_history": "dppo, baseline from history",
    "dppo_predicted": "dppo, baseline from history and prompt lengths",
    "dppo_history_sizes": "dppo, baseline and group sizes from history",
    "dppo_everything": "the same, `prompt_prune_rate: auto`",
    "cppo": "CPPO (biased)",
    "greso": "GRESO (biased)",
    "dapo": "DAPO (biased)",
    "dppo_default_16x4": "dppo, default",
    "grpo_rows_16x4": "nothing drawn: the control",
    "without_packing": "dppo, padded",
    "without_shared_prefixes": "dppo, prompts not shared",
    "without_score": "dppo, drawn without a score",
}
"""Contestants of the files of results, as docs/results.md calls them."""
Found = Mapping[str, Any]


def show_all(record: Found) -> str:
    """All tables of a comparison."""
    names = list(record["methods"])
    parts = [f"`{record['best']}` against each opponent", against(record), accuracies(record, names)]
    for key, target in record["targets"].items():
        parts += [f"To the {target['what']}:", to_target(record, key, names)]
    return "\n\n".join([*parts, seconds(record, names)])


def against(record: Found) -> str:
    """One method against each opponent, at each target."""
    headings = ("opponent", "to the final accuracy of", "seconds", "reached", "restricted mean", *AMOUNTS.values())
    rows = []
    for opponent, by_target in record["best_against"].items():
        for target, found in by_target.items():
            mean = {**found["restricted_mean"], "median": found["restricted_mean"]["ratio"]}
            amounts = [speedup(found[over], found["missing"]) for over in AMOUNTS]
            first = (f"`{opponent}`", f"`{target}`", speedup(found, found["missing"]), found["reached"])
            rows.append([*first, cell(mean, "median", "{:.2f}"), *amounts])
    return table(headings, rows)


def accuracies(record: Found, names: Sequence[str]) -> str:
    """Settings, final accuracy and differences to TRL at equal seconds, to the first where that takes no part."""
    baseline = "trl" if "trl" in record["methods"] else next(iter(record["methods"]))
    difference = f"difference to `{baseline}` at equal seconds, pp"
    headings, rows = ("method", "setting", "final accuracy", difference, "biased", "seeds"), []
    for name in names:
        method, fields = record["methods"][name], record["methods"][name]["overrides"]
        group = fields["num_generations"]
        setting = f"{fields['per_device_train_batch_size'] // group} x {group}, {fields['learning_rate']:g}"
        figures = (
            cell(method["final"], "mean", "{:.3f}"),
            cell(method["equal_seconds"]["difference"], "mean", "{:+.1f}", 100),
        )
        seeds = str(sum(run["status"] == "finished" for run in method["runs"]))
        rows.append([f"`{name}`", setting, *figures, "**yes**" if method["biased"] else "no", seeds])
    return table(headings, rows)


def to_target(record: Found, target: str, names: Sequence[str]) -> str:
    """What each method spent to a target, and how many times less than the first target's method."""
    baseline = next(iter(record["targets"]))
    headings = ("method", f"speedup to `{baseline}`", "reached", "seconds", *AMOUNTS.values())
    missing, rows = record["targets"][target]["missing"], []
    for name in names:
        spent, found = record["to_target"][target][name], record["speedup"][target][name]
        amounts = [cell(spent[over], "median", "{:,.0f}") for over in ("seconds", *AMOUNTS)]
        rows.append([f"`{name}`", speedup(found, missing), found["reached"], *amounts])
    return table(headings, rows) + (f"\n\nno target: {missing}" if missing else "")


def seconds(record: Found, names: Sequence[str]) -> str:
    """Where a step's seconds go: means over all steps of all finished runs."""
    rows = []
    for name in names:
        runs = [run for run in record["methods"][name]["runs"] if run["status"] == "finished"]
        steps = sum(run["curve"][-1]["step"] for run in runs) or 1
        completions = sum(run["curve"][-1]["rollouts"] for run in runs) / steps
        parts = step_seconds(record["methods"][name])
        rows.append([f"`{name}`", *(f"{value:.3f}" for value in parts), f"{completions:.0f}"])
    return table(("method", "seconds per step", "rollout", "forward and backward", "completions per step"), rows)


def summary(record: Found, names: Sequence[str], labels: Mapping[str, str] = LABELS) -> str:
    """A row for each method: its setting, final accuracy, how much sooner it is than the first target's, a step."""
    target = next(iter(record["targets"]))
    headings = ("trainer", "prompts x completions, learning rate", "final accuracy", "times sooner", "reached")
    rows = []
    for name in names:
        fields, found = record["methods"][name]["overrides"], record["speedup"][target][name]
        whole, rollout, _ = step_seconds(record["methods"][name])
        group = fields["num_generations"]
        setting = f"{fields['per_device_train_batch_size'] // group} x {group}, {fields['learning_rate']:g}"
        final = cell(record["methods"][name]["final"], "mean", "{:.3f}")
        sooner = speedup(found, record["targets"][target]["missing"])
        rows.append([labels[name], setting, final, sooner, found["reached"], f"{whole:.2f}", f"{rollout / whole:.0%}"])
    return table((*headings, "s / step", "rollout"), rows)


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
    more = ">= " if found["at_most"] is None or found["at_most"] > found["median"] else ""
    return more + cell(found, "median", "{:.2f}")


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
