"""The tables of ``embedded_summary.py``: what the grid chose, what was reached, and where the seconds went."""

from collections.abc import Mapping, Sequence
from typing import Any

PHASES = ("rollout", "forward_backward")


def show_grid(found: Mapping[str, Any]) -> str:
    """What the grid of a task chose.

    Args:
        found: the record of a task in the file of settings.
    """
    headings = (
        "method",
        "learning rate",
        "completions a step",
        "group",
        "accuracy",
        "seconds per step",
        "edge of grid",
    )
    rows = [
        [
            *(f"`{name}`", f"{each['learning_rate']:g}", str(each["completions"]), str(each["group"])),
            *(f"{each['accuracy']:.3f}", f"{each['seconds_per_step']:.2f}", ", ".join(each["at_edge"]) or "-"),
        ]
        for name, each in found["settings"].items()
    ]
    left = f"\n\nnot finished: {', '.join(found['unfinished'])}" if found["unfinished"] else ""
    ours = ", ".join(f"`{name}` {accuracy:.3f}" for name, accuracy in found["ours"].items())
    said = f" ({ours}, at the length of reported runs)" if ours else ""
    return f"{table(headings, rows)}\n\nbest of ours: `{found['best']}`{said}{left}"


def show_all(record: Mapping[str, Any]) -> str:
    """All tables of all tasks.

    Args:
        record: the file of results.
    """
    tasks = [f"{task}\n\n{show_task(each)}" for task, each in record["tasks"].items()]
    return "\n\n".join([headline(record), *tasks])


def show_task(record: Mapping[str, Any]) -> str:
    """All tables of a task.

    Args:
        record: of the task in the file of results.
    """
    parts = [f"best of ours: `{record['best']}`", against(record)]
    if record.get("sizes"):
        parts += ["sizes", sizes(record)]
    for stage in ("main", "ablation", "sizes"):
        names = [name for name in record["stages"].get(stage, ()) if name in record["methods"]]
        if names:
            parts += [f"{stage}: accuracy", accuracies(record, names)]
            parts += [f"{stage}: to the {target['what']}\n\n{to_target(record, key, names)}"
                      for key, target in record["targets"].items()]  # fmt: skip
            parts += [f"{stage}: seconds", seconds(record, names)]
    return "\n\n".join(parts)


HEADLINE = (("trl_g8", "trl_g8"), ("trl", "trl_g8"), ("grpo_rows", "trl_g8"), ("grpo_rows", "grpo_rows"))
"""Opponents of the first table, and whose final accuracy is the target."""


def headline(record: Mapping[str, Any]) -> str:
    """How many times sooner the default, and the best of ours, are at a target than an opponent, on every task.

    Args:
        record: the file of results.
    """
    columns = {}
    for task, found in record["tasks"].items():
        if found["default_against"]:
            columns[f"`{task}`, `{found['default']}`"] = found["default_against"]
        columns[f"`{task}`, `{found['best']}`"] = found["best_against"]
    rows = []
    for opponent, target in HEADLINE:
        if not all(target in each.get(opponent, ()) for each in columns.values()):
            continue
        found = [each[opponent][target] for each in columns.values()]
        rows.append([f"`{opponent}`", f"`{target}`", *(speedup(each, each["missing"]) for each in found)])
    return table(("sooner than", "at the final accuracy of", *columns), rows)


def against(record: Mapping[str, Any]) -> str:
    """The best of ours against each opponent, at each target.

    Args:
        record: of the task.
    """
    headings = ("opponent", "to the final accuracy of", "seconds", "reached", "restricted mean", *AMOUNTS.values())
    rows = []
    for opponent, by_target in record["best_against"].items():
        for target, found in by_target.items():
            mean = {**found["restricted_mean"], "median": found["restricted_mean"]["ratio"]}
            amounts = [speedup(found[over], found["missing"]) for over in AMOUNTS]
            first = (f"`{opponent}`", f"`{target}`", speedup(found, found["missing"]), found["reached"])
            rows.append([*first, cell(mean, "median", "{:.2f}"), *amounts])
    return table(headings, rows)


AMOUNTS = {"rollouts": "completions", "rollout_tokens": "their tokens", "tokens_trained": "tokens trained"}
"""What else than seconds is spent, and what tables call it."""


def accuracies(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Settings, final accuracy and differences to tuned TRL at equal seconds, to the first where that takes no part.

    Args:
        record: of the task.
        names: of the methods, in order.
    """
    baseline = "trl" if "trl" in record["methods"] else next(iter(record["methods"]))
    difference = f"difference to `{baseline}` at equal seconds, pp"
    headings, rows = ("method", "setting", "final accuracy", difference, "biased", "seeds"), []
    for name in names:
        method, setting = record["methods"][name], record["methods"][name]["setting"]
        prompts = method["overrides"]["per_device_train_batch_size"] // setting["group"]
        rows.append(
            [
                f"`{name}`",
                f"{prompts} x {setting['group']}, {setting['learning_rate']:g}",
                cell(method["final"], "mean", "{:.3f}"),
                cell(method["equal_seconds"]["difference"], "mean", "{:+.1f}", 100),
                "**yes**" if method["biased"] else "no",
                str(sum(run["status"] == "finished" for run in method["runs"])),
            ]
        )
    return table(headings, rows)


def to_target(record: Mapping[str, Any], target: str, names: Sequence[str]) -> str:
    """What each method spent to a target, and how many times less than the first target's contestant.

    Args:
        record: of the task.
        target: whose final accuracy it is.
        names: of the methods, in order.
    """
    baseline = next(iter(record["targets"]))
    headings = ("method", f"speedup to `{baseline}`", "reached", "seconds", *AMOUNTS.values())
    missing, rows = record["targets"][target]["missing"], []
    for name in names:
        spent, found = record["to_target"][target][name], record["speedup"][target][name]
        amounts = [cell(spent[over], "median", "{:,.0f}") for over in ("seconds", *AMOUNTS)]
        rows.append([f"`{name}`", speedup(found, missing), found["reached"], *amounts])
    return table(headings, rows) + (f"\n\nno target: {missing}" if missing else "")


def sizes(record: Mapping[str, Any]) -> str:
    """The control and the default at equal sizes of a step, and means over the sizes.

    Args:
        record: of the task.
    """
    sooner = [f"sooner, at `{name}`" for name in record["targets"]]
    headings = ("prompts x completions", "control", "default", "difference, pp", "step", *sooner)
    rows = []
    for size, level in record["sizes"].items():
        found = record["sooner_at_sizes"].get(size, {})
        methods = [record["methods"][f"{name}_{size}"] if found else None for name in record["pair"]]
        rows.append(
            [
                size,
                *(cell(method["final"], "mean", "{:.3f}") if method else "" for method in methods),
                cell(level["difference"], "mean", "{:+.1f}", 100),
                cell(level["step"], "mean", "{:.2f}"),
                *(speedup(found[name], found[name]["missing"]) if found else "" for name in record["targets"]),
            ]
        )
    return table(headings, rows)


def seconds(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Where a step's seconds go: means over all steps of all finished runs.

    Args:
        record: of the task.
        names: of the methods, in order.
    """
    rows = []
    for name in names:
        runs = [run for run in record["methods"][name]["runs"] if run["status"] == "finished"]
        steps = sum(run["curve"][-1]["step"] for run in runs) or 1
        whole = sum(run["curve"][-1]["seconds"] for run in runs) / steps
        parts = [sum(run["phases"].get(phase, 0.0) for run in runs) / steps for phase in PHASES]
        completions = sum(run["curve"][-1]["rollouts"] for run in runs) / steps
        rows.append([f"`{name}`", *(f"{value:.3f}" for value in (whole, *parts)), f"{completions:.0f}"])
    return table(("method", "seconds per step", "rollout", "forward and backward", "completions per step"), rows)


def speedup(found: Mapping[str, Any], missing: str | None) -> str:
    """A ratio with its interval; of one that may be any more, since the baseline missed the target, the least.

    Args:
        found: as ``dppo_lab.comparison.survival.Ratio`` writes it.
        missing: why there is no target, if there is none.
    """
    if missing or not any(found["per_seed"].values()):
        return "-"
    if found["median"] is None:
        return "not reached"
    more = ">= " if found["at_most"] is None or found["at_most"] > found["median"] else ""
    return more + cell(found, "median", "{:.2f}")


def cell(figure: Mapping[str, Any], centre: str, form: str, times: float = 1.0) -> str:
    """A figure with its interval, where it has one.

    Args:
        figure: as ``SeedInterval.as_json`` gives it.
        centre: the name of its middle.
        form: of a number.
        times: what it is multiplied by.
    """
    if figure[centre] is None:
        return "-"
    said = form.format(times * figure[centre])
    if figure["low"] is None:
        return said
    high = "no end" if figure["high"] is None else form.format(times * figure["high"])
    return f"{said} [{form.format(times * figure['low'])}, {high}]"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Args:
        headings: of the columns.
        rows: of cells, as many as there are headings.
    """
    return "\n".join(
        [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    )
