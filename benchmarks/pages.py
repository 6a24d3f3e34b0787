"""Tables of the pages, drawn from ``benchmarks/results``: ``make tables`` redraws the marked blocks.

Imports are light, because every check draws all tables.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import tables
from benchmarks.learning.tables import cell, from_below, speedup, table

RESULTS = Path(__file__).with_name("results")
WORSE = 0.03
"""Accuracy that the default may lose to plain GRPO and still count as no worse."""
Found = Mapping[str, Any]


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def points(difference: Found) -> str:
    """A difference in percentage points, with its interval."""
    return cell(difference, "mean", "{:+.1f}", 100)


def bold_above_1(text: str) -> str:
    """A ratio with its interval, bold if the printed interval is above 1."""
    ratio, bracket, interval = text.partition(" [")
    return f"**{ratio}**{bracket}{interval}" if bracket and float(interval.split(",")[0]) > 1 else text


def sooner(found: Found | None) -> str:
    """A ratio of seconds with its interval; empty if it was not measured."""
    return "" if found is None else speedup(found, found.get("missing"))


def ends(row: Found, form: str, *, name: str = "{}") -> str:
    """A median or share with its lowest and highest value; ``name`` makes keys of their names."""
    low, high = (form.format(row[name.format(end)]) for end in ("lowest", "highest"))
    return f"({low} to {high})"


# README.md and docs/results.md

MEASURED = {
    "kl": "a KL term (`beta: 0.04`), `embedded`",
    "kl_two_passes": "the same, two passes (`num_iterations: 2`)",
    "silent_kl": "a KL term, `embedded_silent`",
    "silent_kl_two_passes": "the same, two passes",
    "sparse_kl": "a KL term, `embedded_sparse`",
    "sparse_kl_two_passes": "the same, two passes",
    "large_groups": "no KL term, groups of 16, `embedded`",
    "plain": "no KL term, groups of 4, `embedded`",
    "sparse": "no KL term, groups of 4, `embedded_sparse`",
}
"""Rows of the README's table, by regime."""
TRL_RUNS = {"plain": "embedded", "sparse": "embedded_sparse"}
"""Regimes whose task has comparisons with TRL in which every method is tuned by itself: one and two repeats."""


def measured() -> str:
    """Training with the default against plain GRPO and TRL, and with pass rates in the data."""
    found, against, rows = read("regimes")["regimes"], read("against_trl")["tasks"], []
    for name, setting in MEASURED.items():
        point = found[name]
        stock = bold_above_1(sooner(point.get("against_trl_g8")))
        if name in TRL_RUNS:
            first, *repeats = against[TRL_RUNS[name]]
            stock = f"{bold_above_1(sooner(first))}; repeats {', '.join(speedup(each, None) for each in repeats)}"
        ahead = points(point["equal_seconds"]["default"]["difference"])
        rows.append([setting, str(point["seeds"]), bold_above_1(sooner(point["against_control"])), ahead, stock])
    prior = found["silent"]["at_same_steps"]["prior_same_steps"]
    curves = bold_above_1(cell(prior["pooled"], "ratio", "{:.2f}"))
    gain = f"median seed {bold_above_1(sooner(prior['against_control']))}, mean curve {curves}"
    ahead = f"{points(prior['difference'])}, equal steps"
    seeds = str(prior["pooled"]["seeds"])
    rows.append(["no KL term, pass rates in the data, `embedded_silent`", seeds, gain, ahead, ""])
    headings = ("training with", "seeds", "times faster than plain GRPO, packed", "accuracy after equal seconds, pp")
    return table((*headings, "times faster than TRL"), rows)


def bias() -> str:
    """A sentence with the squared bias of the pruned gradient, and of one that is biased."""
    checks = {check["name"]: check for check in read("verify")["checks"]}
    drawn = checks["2 both levels, dppo, grpo: 2000 draws on the model"]
    cppo = checks["5 control: CPPO's rule: 500 draws on the model"]
    error = float(drawn["what"].rpartition(" ")[2])
    return (
        f"Squared bias of the pruned gradient, over the squared gradient: {drawn['figure']:.4f} ± {error:.4f}, where "
        f"unbiased is 0. CPPO's rule, which is biased, has {cppo['figure']:.2f}."
    )


def scores_on_the_chat_model() -> str:
    """Added variance of each rule and score with half of the completions kept, on both models."""
    of_model = read("smollm2_verify")
    sources = (of_model["no_kl"], of_model["kl"], read("verify"))
    rows: dict[tuple[str, str], list[str]] = {}
    for source in sources:
        for row in source["variance"]:
            if row["normaliser"] == "dr_grpo" and row["keep"] == 0.5:
                figure = f"{row['added_variance']:.2f}" + (", biased" if row["biased"] else "")
                rows.setdefault((row["rule"], row["score"]), []).append(figure)
    headings = ("rule", "score", "SmolLM2, no KL term", "SmolLM2, `beta: 0.04`", "`embedded`")
    return table(headings, [[*name, *figures] for name, figures in rows.items()])


def map_of_regimes() -> str:
    """Every regime: gain, accuracy, what was planned, and against TRL; and the median error of the plans."""
    rows, errors = [], {"planned": dict[str, float](), "from_logs": dict[str, float]()}
    for name, each in read("regimes")["regimes"].items():
        found, ahead = each["against_control"], each["equal_seconds"]["default"]["difference"]
        for plan, off in errors.items():
            if each.get(plan) and found["median"] and not from_below(found):
                off[name] = abs(each[plan] / found["median"] - 1)
        cells = [cell(each["step_ratio"]["default"], "mean", "{:.2f}"), sooner(found), points(ahead)]
        cells += ["yes" if ahead["low"] > -WORSE else "not shown"]
        cells += ["" if each.get(plan) is None else f"{each[plan]:.2f}" for plan in errors]
        cells += [f"{each[share]:.0%}" for share in ("step_share", "silent_share")]
        rows.append([f"`{name}`: {each['described']}", *cells, sooner(each.get("against_trl_g8"))])
    headings = ("regime", "step", "to the same accuracy", "after equal seconds, pp", "within 3 pp", "planned")
    rest = ("from logs", "pruning can reach", "zero-variance", "than TRL")
    of_map, of_logs = errors.values()
    median, logs, same = (
        f"{np.median(off):.1%}" for off in ([*of_map.values()], [*of_logs.values()], [of_map[n] for n in of_logs])
    )
    told = f"{median} over {len(of_map)} points; from logs {logs} over {len(of_logs)}, where the map is {same} off"
    return f"{table((*headings, *rest), rows)}\n\nMedian error of the plan: {told}"


FROZEN = ("dppo", "dppo_threshold", "uniform", "oracle", "infobatch", "dppo_unweighted", "dppo_deterministic")
FROZEN += ("cppo", "cppo_trl", "cppo_verl", "pods")
ROUNDS = ("dapo", "greso")
"""Methods that roll out until enough groups count."""


def bias_and_variance() -> str:
    """Bias and added variance of each method at half of the completions, or of the prompts."""
    keys = ("name", "level", "completion_rate", "prompt_rate")
    found = {tuple(row[key] for key in keys): row for row in read("frozen")["rows"]}

    def cells(row: Found | None) -> list[str]:
        if row is None:
            return ["-", "-"]
        text = f"{row['relative_bias']:.3f}"
        if row["bias_low"] is not None:
            text += f" [{row['bias_low']:.3f}, {row['bias_high']:.3f}]"
        return [f"**{text}**" if row["verdict"] == "biased" else text, f"{row['added_variance']:.2f}"]

    rows = []
    for name in FROZEN:
        levels = (("completions", 0.5, 0.0), ("prompts", 0.0, 0.5))
        label = f"`{name}`" + (", true gradient norms" if name == "oracle" else "")
        rows.append([label, *(text for level in levels for text in cells(found.get((name, *level))))])
    rows += [[f"`{name}`, rounds of groups", "-", "-", *cells(found[name, "nothing", 0.0, 0.0])] for name in ROUNDS]
    return table(("method", "bias, completions", "added variance", "bias, prompts", "added variance"), rows)


def repeats_against_trl() -> str:
    """The default against TRL in each of the comparisons."""
    found, rows = read("against_trl")["tasks"], []
    for place, label in enumerate(("table above", "repeat", "second repeat")):
        runs = [each[place] for each in found.values()]
        rows.append([label, *(f"{speedup(each, None)}, {each['reached']} seeds" for each in runs)])
    return table(("times faster than TRL, groups of 8", *(f"`{task}`" for task in found)), rows)


def chat_model() -> str:
    """Runs of SmolLM2."""
    return tables.learned(read("smollm2")["regimes"])


def chat_model_curve() -> str:
    """Share of held-out questions that are right, and seconds, by step: docs/chat_model.md and the example."""
    runs = [run["curve"] for run in read("smollm2_example")["regimes"]["no_kl"]["methods"]["default"]["runs"]]
    steps = (0, 5, 10, 15, 20)
    places = [[next(each for each in curve if each["step"] == step) for curve in runs] for step in steps]
    right, seconds = [], []
    for place in places:
        share = np.array([each["accuracy"] for each in place])
        mean, low, high = (f"{value:.2f}".removeprefix("0") for value in (share.mean(), share.min(), share.max()))
        right.append(f"{mean} ({low} to {high})")
        seconds.append(f"{np.mean([each['seconds'] for each in place]):.0f}")
    return table(("steps", *map(str, steps)), [["right", *right], ["CPU seconds of training", *seconds]])


# docs/packing.md

LAYOUTS = {"sorted": "sorted", "packed": "packed", "shared": "packed, prompts shared"}


def fewer_tokens() -> str:
    """Tokens that TRL forwards, and how many times fewer each layout forwards."""
    found = {(r["group_size"], r["prune"], r["layout"]): r for r in read("dense")["rows"] if r["figure"] == "tokens"}
    rows = []
    for group, rate in ((8, 0.0), (8, 0.5), (16, 0.5)):
        cells = [f"{found[group, rate, layout]['fewer_median']:.2f}x" for layout in LAYOUTS]
        rows.append([f"{group}, {rate:g}", f"{found[group, rate, 'trl']['tokens']:,.0f}", *cells])
    return table(("completions per prompt, prune rate", "TRL, tokens", *LAYOUTS.values()), rows)


CONTESTANTS = {
    "TRL": "TRL",
    "DPPO, rate 0": "exact skipping alone",
    "DPPO, completions": "half the completions",
    "DPPO, demo's rates": "and 30% of the prompts",
}


def training_step() -> str:
    """Milliseconds of a whole step and its parts, and TRL's step over it."""
    found, rows = {row["contestant"]: row for row in read("step")["rows"]}, []
    for name, label in CONTESTANTS.items():
        row = found[name]
        cells = [f"{1e3 * row[part]:,.0f}" for part in ("median", "phase_rollout", "phase_forward_backward")]
        cells.append(f"{row['tokens']:,.0f}")
        ratio = ""
        if name != "TRL":
            mark = "" if row["same_completions"] else "**"
            ratio = f"{mark}{row['trl_over_this_median']:.2f}{mark} " + ends(row, "{:.2f}", name="trl_over_this_{}")
        rows.append([label, *cells, ratio])
    return table(("trainer", "step, ms", "rollout", "forward and backward", "tokens", "TRL / this"), rows)


def kernels() -> str:
    """Seconds of forward and backward on a GPU, by kernel."""
    rows = [
        [f"`{each['kernel']}`", f"{each['median']:.2f} ({each['quartile_low']:.2f} to {each['quartile_high']:.2f})"]
        for each in read("gpu")["rows"]
        if each["figure"] == "kernel time"
    ]
    return table(("kernel", "s, median (quartiles)"), rows)


# docs/ranks.md


def ranks() -> str:
    """Share of time that ranks wait, with rows at home and dealt."""
    found, rows = {(row["figure"], row["size"]): row["median"] for row in read("scale")["rows"]}, []
    for size, prompts in ((8, 2), (8, 8), (64, 8), (512, 8)):
        names = ("idle_share_at_home", "idle_share_dealt", "share_of_tokens_moved")
        shares = [f"{found[f'{name}_{prompts}_prompts_a_rank', size]:.2f}".removeprefix("0") for name in names]
        rows.append([str(size), str(prompts), *shares])
    return table(("ranks", "prompts a rank", "rows stay at home", "dealt", "tokens that move"), rows)


# docs/verify.md, docs/verl.md

VERIFIED = {
    "every outcome of small draws, all levels: relative bias": (": every outcome", "{:.0e}"),
    "2000 draws over the model's gradients, both levels, `dppo`: squared bias": ("2 both levels, dppo, grpo", "{:.4f}"),
    "nothing pruned, gradient against TRL's, six losses, float32": ("nothing pruned", "{:.0e}"),
    "packed against padded, log-probabilities in nats": ("3 dense rows, equal to padding: log-prob", "{:.1e}"),
    "how often rows are kept against the stated probability, standard deviations": (
        " completions in 2000 draws",
        "{:.1f}",
    ),
}
"""Checks by the page's words: a part of their names, and the form of the worst figure."""
BIASED = {
    "CPPO's rule": "CPPO's rule: 500",
    "the deterministic rule": "the deterministic rule: 500",
    "weights left out": "completion weights forgotten: 500",
}
"""Biased rules, and a part of the name of their check."""


def verified() -> str:
    """The worst figure of each kind of check, and its bound."""
    checks, rows = read("verify")["checks"], []
    passing = [check for check in checks if not check["name"].startswith("5 ")]
    for what, (part, form) in VERIFIED.items():
        worst = max((check for check in passing if part in check["name"]), key=lambda check: check["figure"])
        rows.append([what, form.format(worst["figure"]), f"below {worst['bound']:.2g}"])
    for what, part in BIASED.items():
        (check,) = (check for check in checks if part in check["name"])
        figures = [f"{check['figure']:.2f}", f"above {check['bound']:.2g}"]
        rows.append([f"biased on purpose, {what}: squared bias", *figures])
    return table(("check", "figure", "must be"), rows)


SCORES = {
    "uniform": ("uniform", "none"),
    "the paper's threshold": ("threshold", "abs(A)"),
    "abs(A)": ("proportional", "abs(A)"),
    "abs(A) sqrt(tokens)": ("proportional", "abs(A) sqrt(length)"),
    "abs(A) s": ("proportional", "abs(A) s"),
    "true gradient norms": ("proportional", "oracle"),
}
"""Rule and score of each column."""


def scores() -> str:
    """Variance that one draw adds, by share kept and score."""
    of_dr_grpo = [row for row in read("verify")["variance"] if row["normaliser"] == "dr_grpo"]
    found = {(row["rule"], row["score"], row["keep"]): row["added_variance"] for row in of_dr_grpo}
    rows = []
    for keep in (0.75, 0.5, 0.25):
        added = [found[*which, keep] for which in SCORES.values()]
        rows.append([f"{keep:.2f}", *("out of reach" if each is None else f"{each:.3f}" for each in added)])
    return table(("share kept", *SCORES), rows)


CASES = {
    "0.5": "KL, 0.5",
    "0.7": "KL, 0.7",
    "cuts 0.5": "KL, tokens cut at 0.5",
    "cuts 0.7": "KL, tokens cut at 0.7",
    "0.5, no KL, 60% dead": "no KL, 60% zero-variance groups, 0.5 of the rest",
}
"""Cases of verl.json, as the page calls them."""


def verl_step() -> str:
    """Rows and tokens kept, and seconds of each pass over those of verl's own."""
    record = read("verl")
    found, rows = {(row["case"], row["phase"]): row for row in record["rows"]}, []
    for case, label in CASES.items():
        cells = [str(found[case, "old"]["rows"]), f"{found[case, 'old']['tokens_share']:.2f}"]
        for each in (found.get((case, phase)) for phase in ("old", "ref", "update")):
            cells.append("" if each is None else f"{each['share']:.2f} {ends(each, '{:.2f}', name='share_{}')}")
        rows.append([label, *cells, f"{record['step_without_rollout'][case]:.2f}"])
    headings = ("loss, rate", "rows of 128", "tokens", "old log-probabilities", "reference", "update")
    return table((*headings, "whole step without rollout, times as fast"), rows)


SPLITS: Sequence[tuple[int, ...]] = ((10, 29, 28, 31), (30, 17, 0, 49), (45, 14, 0, 34), (70, 6, 4, 17))
"""Percent of a step that users of verl logged: rollout, old log-probabilities, reference, update."""


def verl_splits() -> str:
    """Times as fast as verl's own step, computed from the measured passes for steps that users logged."""
    ratios, rows = read("verl")["step_without_rollout"], []
    for split in SPLITS:
        passes = sum(split[1:])
        *cells, without_kl = [f"{100 / (100 - passes + passes / ratios[c]):.2f}" for c in ("0.5", "0.7", [*CASES][-1])]
        rows.append([" / ".join(str(each or "-") for each in split), *cells, "-" if split[2] else without_kl])
    headings = ("rollout / old / reference / update", "KL, 0.5", "KL, 0.7")
    return table((*headings, CASES["0.5, no KL, 60% dead"]), rows)


def verl_rows() -> str:
    """Tokens and seconds of an update with shared prompts over those of verl's own engine."""
    rows = []
    for setting, each in read("verl")["shared_prompts"].items():
        if setting == "environment":
            continue
        seconds, attention = each["update_seconds"], each["attention_share"]
        shares = [f"{100 * attention[name]:.0f}%" for name in (each["against"], "rows")]
        cells = [f"{each['tokens']:.3f}", f"{seconds['median']:.2f} {ends(seconds, '{:.2f}')}", " / ".join(shares)]
        rows.append([setting.replace("/", " / "), *cells])
    headings = ("prompt / completion, tokens", "tokens", "seconds", "attention's share, verl / rows")
    return table(headings, rows)


# docs/asynchronous.md


def asynchronous() -> str:
    """Seconds of the trainer's side of a step against TRL's asynchronous trainer."""
    found = read("async")
    seconds = {(row["flat_share"], row["trainer"]): row["cpu_s_median"] for row in found["rows"]}
    rows = []
    for share, methods in found["trainer_seconds"].items():
        ratios = [
            f"**{each['ratio_median']:.2f}** [{each['ratio_quartile_low']:.2f}, {each['ratio_quartile_high']:.2f}]"
            for each in methods.values()
        ]
        rows.append([f"{float(share):.0%}", f"{seconds[float(share), 'trl']:.2f}", *ratios])
    return table(("groups with equal rewards", "TRL, CPU s a step", "`method: grpo`", "the default"), rows)
