"""Tables of the pages, drawn from ``benchmarks/results``.

Pages call these functions in marked blocks. ``make lint`` fails if a page is outdated, ``make tables`` redraws all.
Imports are light, because every check draws all tables. Functions that need more than numpy import it themselves.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import tables
from benchmarks.learning.tables import cell, speedup, table

RESULTS = Path(__file__).with_name("results")
BASELINE, DEFAULT = tables.LABELS["grpo_rows"], tables.LABELS["dppo_default"]
Found = Mapping[str, Any]


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def regimes() -> dict[str, Any]:
    """Measured points of the map by regime."""
    return read("regimes")["regimes"]


def points(difference: Found) -> str:
    """A difference in percentage points, with its interval."""
    return cell(difference, "mean", "{:+.1f}", 100)


def faster(found: Found | None) -> str:
    """A ratio of seconds with its interval, bold if the interval is above 1; empty if it was not measured."""
    if found is None:
        return ""
    return bold_above_1(speedup(found, found.get("missing")))


def bold_above_1(text: str) -> str:
    """A ratio with its interval, bold if the printed interval is above 1."""
    ratio, bracket, interval = text.partition(" [")
    return f"**{ratio}**{bracket}{interval}" if bracket and float(interval.split(",")[0]) > 1 else text


def short(value: float) -> str:
    """A figure without the 0 before its point, three digits above 1."""
    return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:#.3g}"


def with_error(value: float, error: float) -> str:
    """A value and its standard error, both to the first digit of the error."""
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


# README.md

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
"""Regimes whose task has a comparison with TRL in which every method is tuned by itself."""
COMPARED = ("embedded_compare", "embedded_others", "embedded_sizes")
"""Comparisons with TRL: the first, and two repeats on other machines."""


def against_stock(task: str) -> list[Found]:
    """The default against TRL with groups of 8 on a task, in each of the comparisons."""
    first, *repeats = (read(name)["tasks"][task] for name in COMPARED)
    return [each["trl_g8"]["trl_g8"] for each in (first["default_against"], *(one["best_against"] for one in repeats))]


def measured() -> str:
    """Training with the default against plain GRPO and TRL, and with pass rates in the data."""
    found, rows = regimes(), []
    for name, setting in MEASURED.items():
        point = found[name]
        stock = faster(point.get("against_trl_g8"))
        if name in TRL_RUNS:
            first, *repeats = against_stock(TRL_RUNS[name])
            stock = f"{faster(first)}; repeats {', '.join(speedup(each, None) for each in repeats)}"
        ahead = points(point["equal_seconds"]["default"]["difference"])
        rows.append([setting, str(point["seeds"]), faster(point["against_control"]), ahead, stock])
    prior = found["silent"]["at_same_steps"]["prior_same_steps"]
    curves = bold_above_1(cell(prior["pooled"], "ratio", "{:.2f}"))
    gain = f"median seed {faster(prior['against_control'])}, mean curve {curves}"
    ahead = f"{points(prior['difference'])}, equal steps"
    seeds = str(prior["pooled"]["seeds"])
    rows.append(["no KL term, pass rates in the data, `embedded_silent`", seeds, gain, ahead, ""])
    headings = ("training with", "seeds", "times faster than plain GRPO, packed", "accuracy after equal seconds, pp")
    return table((*headings, "times faster than TRL"), rows)


def bias() -> str:
    """A sentence with the squared bias of the pruned gradient, and of one that is biased."""
    checks = {check["name"]: check for check in read("verify")["checks"]}
    drawn, cppo = checks["2 both levels, dppo, grpo: 2000 draws on the model"], checks[CPPO_RULE]
    error = float(drawn["what"].rpartition(" ")[2])
    return (
        f"Squared bias of the pruned gradient, relative: {drawn['figure']:.4f} ± {error:.4f} (0 is right). "
        f"CPPO's rule, which is biased, has {cppo['figure']:.2f}."
    )


CPPO_RULE = "5 control: CPPO's rule: 500 draws on the model"

# docs/results.md


def map_of_regimes() -> str:
    """Every regime: gain, accuracy, what was planned, and against TRL."""
    from benchmarks.learning import map  # the plan needs torch

    return map.show(regimes())


def biased_methods() -> str:
    """CPPO and GRESO against plain GRPO after equal seconds."""
    from benchmarks.learning import map

    return map.biased(regimes())


def groups_of_16() -> str:
    """A sentence: groups of 16 against groups of 4 on the same task."""
    from dppo_lab.statistics import seed_interval

    large, plain = (regimes()[name]["final_accuracy"] for name in ("large_groups", "plain"))
    per_seed = plain["control"]["per_seed"]
    ahead = seed_interval({int(seed): end - per_seed[seed] for seed, end in large["default"]["per_seed"].items()})
    return (
        f"dppo with groups of 16 ends at {large['default']['mean']:.3f}, plain GRPO with groups of 16 at "
        f"{large['control']['mean']:.3f} and with groups of 4 at {plain['control']['mean']:.3f} "
        f"(other machines; dppo {points(ahead.as_json()).replace(' ', ' pp ', 1)} to the last)."
    )


def with_kl() -> str:
    """`embedded` with a KL term: after equal seconds, and after equal steps."""
    point, rows = regimes()["kl"], []
    same = point["at_same_steps"]["same_steps"]
    for name, label in {"control": BASELINE, "default": DEFAULT}.items():
        cells = [str(point["overrides"][name]["max_steps"]), cell(point["final_accuracy"][name], "mean", "{:.3f}")]
        if name in point["step_ratio"]:
            cells += [points(point["equal_seconds"][name]["difference"])]
            cells += [cell(point["step_ratio"][name], "mean", "{:.2f}")]
        rows.append([label, *cells, *[""] * (4 - len(cells))])
    cells = [rows[0][1], cell(same["final_accuracy"], "mean", "{:.3f}"), points(same["difference"])]
    rows.append([f"{DEFAULT}, equal steps", *cells, cell(same["step_ratio"], "mean", "{:.2f}")])
    return table(("trainer", "steps", "final accuracy", "difference, pp", "step, times as fast"), rows)


def zero_variance() -> str:
    """`embedded_silent` without a KL term, after equal steps: pass rates in the data, and twice the prompts."""
    found = regimes()["silent"]["at_same_steps"]
    prior, twice = found["prior_same_steps"], found["twice_same_steps"]
    control = prior["control"]

    def live(one: Found, prompts: int) -> str:
        return f"{prompts * (1 - one['chosen']['silent_share']):.2f} of {prompts}"

    against, curves = prior["against_control"], cell(prior["pooled"], "ratio", "{:.2f}")
    gains = f"median seed {speedup(against, None)}, mean curve {curves}; {against['reached']} seeds reach it"
    rows = [[BASELINE, live(control, 16), f"{control['final_accuracy']['mean']:.3f}", "1.00", ""]]
    for label, one, prompts, gain in (
        ("*prior*", prior, 16, gains),
        (f"{BASELINE}, twice the prompts", twice, 32, "not measured"),
    ):
        step = cell(one["step_ratio"], "mean", "{:.2f}")
        rows.append([label, live(one, prompts), points(one["difference"]), step, gain])
    headings = ("trainer", "groups with signal", "final accuracy, pp", "step, times as fast")
    return table((*headings, "times faster to the same accuracy"), rows)


FROZEN = {
    "dppo": "`dppo`",
    "dppo_threshold": "`dppo_threshold`",
    "uniform": "`uniform`",
    "oracle": "`oracle`, true gradient norms",
    "infobatch": "`infobatch`",
    "dppo_unweighted": "`dppo_unweighted`",
    "dppo_deterministic": "`dppo_deterministic`",
    "cppo": "`cppo`",
    "cppo_trl": "`cppo_trl`",
    "cppo_verl": "`cppo_verl`",
    "pods": "`pods`",
}
ROUNDS = ("dapo", "greso")
"""Methods that roll out until enough groups count."""


def bias_and_variance() -> str:
    """Bias and added variance of each method at half of the completions, or of the prompts."""
    found = {
        (row["name"], row["level"], row["completion_rate"], row["prompt_rate"]): row for row in read("frozen")["rows"]
    }

    def cells(row: Found | None) -> list[str]:
        if row is None:
            return ["-", "-"]
        text = f"{row['relative_bias']:.3f}"
        if row["bias_low"] is not None:
            text += f" [{row['bias_low']:.3f}, {row['bias_high']:.3f}]"
        return [f"**{text}**" if row["verdict"] == "biased" else text, f"{row['added_variance']:.2f}"]

    rows = []
    for name, label in FROZEN.items():
        levels = (("completions", 0.5, 0.0), ("prompts", 0.0, 0.5))
        rows.append([label, *(text for level in levels for text in cells(found.get((name, *level))))])
    rows += [[f"`{name}`, rounds of groups", "-", "-", *cells(found[name, "nothing", 0.0, 0.0])] for name in ROUNDS]
    headings = ("method", "bias, completions", "added variance", "bias, prompts", "added variance")
    return table(headings, rows)


def against_trl() -> str:
    """Every method tuned by itself, on two tasks."""
    rows = []
    for task, record in read("embedded_compare")["tasks"].items():
        found = tables.summary_rows(record, ("trl_g8", "trl", "grpo_rows", "dppo_default"))
        rows += [[f"`{task}`", *row] for row in found]
    return table(("task", *tables.SUMMARY), rows)


def repeats_against_trl() -> str:
    """The default against TRL in each of the comparisons."""
    tasks = ("embedded", "embedded_sparse")
    found = {task: against_stock(task) for task in tasks}
    rows = []
    for place, label in enumerate(("table above", "repeat", "second repeat")):
        cells = [f"{speedup(found[task][place], None)}, {found[task][place]['reached']} seeds" for task in tasks]
        rows.append([label, *cells])
    return table(("times faster than TRL, groups of 8", *(f"`{task}`" for task in tasks)), rows)


FOUR_UPDATES = (
    ("silent_kl_two_passes", "four_updates", "dppo, default"),
    ("silent_kl_two_passes", "control_four_updates", "plain GRPO, packed"),
    ("silent_kl_two_passes", "prior_four_updates", "dppo, *prior*"),
    ("silent_two_passes", "four_updates", "plain GRPO, packed (`auto` drops nothing)"),
    ("silent_two_passes", "prior_four_updates", "dppo, *prior*"),
    ("silent_kl", "prior_four_updates", "dppo, *prior*"),
)


def four_updates() -> str:
    """Against TRL with ``steps_per_generation: 4``."""
    found, rows = regimes(), []
    for regime, method, label in FOUR_UPDATES:
        against = found[regime]["beside_stock"][method]["against_trl_g8"]
        rows.append([f"`{regime}`", label, str(len(against["per_seed"])), faster(against)])
    return table(("regime", "trainer with `steps_per_generation: 4`", "seeds", "times faster than TRL"), rows)


def no_gain() -> str:
    """Settings that did not help: accuracy against plain GRPO after equal seconds."""
    found = regimes()
    low, rare, kl = (found[name] for name in ("sparse_kl_two_passes", "rare", "kl"))
    tokens, default = (kl["equal_seconds"][name]["difference"] for name in ("tokens", "default"))
    rows: list[tuple[str, Found, str]] = [
        ("`prompt_prune_rate: auto` without pass rates, `rare`", rare["equal_seconds"]["prompts"]["difference"], ""),
        ("`token_prune_rate: auto`, `kl` (earlier runs)", tokens, f"the default: {points(default)}"),
        (
            "dppo with `beta: 0.01`, `sparse_kl_two_passes`",
            low["lower_beta"]["default_ahead"],
            f"plain GRPO gains {points(low['lower_beta']['control_ahead'])} by that `beta`",
        ),
    ]
    for name in ("plain", "sparse", "silent"):
        rows.append((f"the default without a KL term, groups of 4, `{name}`", _ahead(found[name]), ""))
    cells = [[what, str(len(each["per_seed"])), points(each), note] for what, each, note in rows]
    return table(("tried", "seeds", "accuracy against plain GRPO, pp", "compare"), cells)


def _ahead(point: Found) -> Found:
    return point["equal_seconds"]["default"]["difference"]


def chat_model() -> str:
    """The section on SmolLM2."""
    return f"{CHAT_MODEL}\n\n{tables.chat_model(read('smollm2')['regimes'])}\n"


def chat_model_silent() -> str:
    """A sentence: the gradient of the chat model's zero-variance groups under a KL term."""
    (late,) = (row for row in read("silent")["rows"] if row["policy"] == "50 steps")
    return (
        f"With `beta: {late['beta']:g}`, after 50 steps, {late['silent']:.0%} of {late['prompts']} groups were\n"
        f"silent. They held {late['square_share']:.4%} of the sum of squared gradient norms\n"
        "([silent.json](../benchmarks/results/silent.json), by `python -m benchmarks.learning.silent`)."
    )


CHAT_MODEL = """
## A real chat model

SmolLM2-135M-Instruct (135 million parameters, all trained, float32) learns sums and differences of two digits on one
CPU thread ([tutorial](chat_model.md)): 4 prompts x 8 completions a step, TRL's default loss, learning rate 2e-5. TRL's
`GRPOTrainer` computes 8 completions at a time. All read a prompt once for its completions.

*times TRL* and *times the control*: seconds of that trainer until 45% of 51 held-out questions are right, over those of
the row's trainer, median over the seeds that both have. The control is plain GRPO, packed. Without a KL term the
default drops nothing that has a gradient here, so the two are one run up to the clock. *silent* is the share of
zero-variance groups, *kept* the share of completions trained on. Other regimes are not measured yet.
[smollm2.json](../benchmarks/results/smollm2.json), by `python -m benchmarks.learning.smollm2`"""

# docs/estimators.md

POINTS = (
    *(("start", True, 0.8), ("120 steps", True, 0.8), ("120 steps", True, 0.9), ("far reference", True, 0.8)),
    *(("120 steps", False, 0.8), ("far reference", False, 0.8)),
)
"""Policy, bias correction of the KL term, rate."""


def _floors() -> dict[tuple[object, ...], Found]:
    found = read("floors")["rows"]
    rates = dict(zip(sorted({row["rate"] for row in found}), (0.5, 0.7, 0.8, 0.9), strict=True))
    names = ("policy", "beta", "entropy_coef", "router_coef", "use_bias_correction_kl")
    return {(*(row[name] for name in names), rates[row["rate"]]): row for row in found}


def floors() -> str:
    """Added variance under a KL term, by the floor of the probabilities."""
    found, rows = _floors(), []
    for state, ratio, rate in POINTS:
        row = found[state, 0.04, 0.0, 0.0, ratio, rate]
        one, blind, learned, best = (short(row[n]) for n in ("one_floor", "blind_0.02", "learned_0.02", "true_norms"))
        rows.append([f"{state}{'' if ratio else ', k3 alone'}, {rate}", one, blind, f"**{learned}**", best])
    headings = ("state, rate", "one floor for all", "nothing learned", "learned (default)", "scored by true norms")
    return table(headings, rows)


def without_advantage() -> str:
    """Share of the squared gradient in completions without an advantage, by ``beta``."""
    found, states = _floors(), ("120 steps", "far reference")
    rows = [
        [f"{beta:g}", *(f"{found[state, beta, 0.0, 0.0, True, 0.8]['flat_share']:.1%}" for state in states)]
        for beta in (0.04, 0.4, 2.0)
    ]
    return table(("`beta`", *states), rows)


def tokens() -> str:
    """Variance that each way to leave out half of the tokens adds."""
    added, rows = read("tokens")["added_variance"], []
    draws = {"completions by score": "completions", "cuts": "cuts", "NAT's random prefix": "random prefix"}
    for name, kind in draws.items():
        found = [added[stage]["draws"][f"{kind} 0.5"] for stage in ("start", "later", "later_kl")]
        rows.append([name, *(with_error(each["value"], each["error"]) for each in found)])
    return table(("`embedded`", "start", "60 steps", "60 steps, KL"), rows)


# docs/packing.md


def activations() -> str:
    """Memory of a token's activations, with and without gradient checkpointing."""
    rows = [
        [f"Qwen3-{row['model']}", f"{row['per_token_checkpointed'] / 1e3:.0f} kB", f"{row['per_token'] / 1e6:.1f} MB"]
        for row in read("activations")["rows"]
    ]
    return table(("model", "with gradient checkpointing", "without"), rows)


LAYOUTS = {"sorted": "sorted", "packed": "packed", "shared": "packed, prompts shared"}


def fewer_tokens() -> str:
    """Tokens that TRL forwards, and how many times fewer each layout forwards."""
    found = {(r["group_size"], r["prune"], r["layout"]): r for r in read("dense")["rows"] if r["figure"] == "tokens"}
    rows = []
    for group, rate in ((8, 0.0), (8, 0.5), (16, 0.5)):
        cells = [f"{found[group, rate, layout]['fewer_median']:.2f}x" for layout in LAYOUTS]
        rows.append([f"{group}, {rate:g}", f"{found[group, rate, 'trl']['tokens']:,.0f}", *cells])
    return table(("completions per prompt, prune rate", "TRL, tokens", *LAYOUTS.values()), rows)


def forward_and_backward() -> str:
    """Seconds of TRL's forward and backward pass, and how many times faster packed rows are."""
    keys = ("model", "group_size", "prune", "layout")
    found = {tuple(r[k] for k in keys): r for r in read("dense")["rows"] if r["figure"] == "layouts"}
    rows = []
    for model, group, rate in (("4x128", 8, 0.0), ("4x256", 16, 0.75)):
        trl, packed, shared = (found[model, group, rate, layout] for layout in ("trl", "packed", "shared"))
        low, high = (f"{shared[f'faster_quartile_{end}']:.2f}" for end in ("low", "high"))
        cells = [f"{trl['median'] / 1e3:.2f}", f"{packed['faster_median']:.2f}x"]
        cells += [f"**{shared['faster_median']:.2f}x** ({low} to {high})", f"{shared['less_memory']:.1f}x less"]
        rows.append([f"{model.partition('x')[2]}, {group}, {rate:g}", *cells])
    headings = ("width, completions per prompt, prune rate", "TRL, CPU s", "packed", "packed, prompts shared", "memory")
    return table(headings, rows)


CONTESTANTS = {
    "TRL": "TRL",
    "DPPO, rate 0": "exact skipping alone",
    "DPPO, completions": "half the completions",
    "DPPO, demo's rates": "and 30% of the prompts",
}


def training_step() -> str:
    """Milliseconds of a whole step and its parts, and TRL's step over it; completions by transformers."""
    rows_of = [row for row in read("step")["rows"] if row["backend"] == "transformers"]
    found = {(row["figure"], row["contestant"], row["phase"]): row for row in rows_of}
    rows = []
    for name, label in CONTESTANTS.items():
        parts = (("step", None), ("phase", "rollout"), ("phase", "forward_backward"))
        cells = [f"{1e3 * found[figure, name, phase]['median']:,.0f}" for figure, phase in parts]
        cells.append(f"{found['tokens_forwarded', name, None]['median']:,.0f}")
        ratio = found.get(("ratio", name, None))
        mark = "" if ratio is None or ratio["same_completions"] else "**"
        ends = ratio and f"{mark}{ratio['median']:.2f}{mark} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
        rows.append([label, *cells, ends or ""])
    return table(("trainer", "step, ms", "rollout", "forward and backward", "tokens", "TRL / this"), rows)


def kernels() -> str:
    """Seconds of forward and backward on a GPU, by kernel."""
    found = {row["kernel"]: row for row in read("gpu")["rows"] if row["figure"] == "kernel time"}
    rows = [
        [f"`{name}`", f"{each['median']:.2f} ({each['quartile_low']:.2f} to {each['quartile_high']:.2f})"]
        for name, each in found.items()
    ]
    return table(("kernel", "s, median (quartiles)"), rows)


# docs/savings.md, docs/ranks.md, docs/supervised.md


def plan_errors() -> str:
    """How far predicted steps and gains were off."""
    from benchmarks.learning import map

    steps = [abs(row["error"]) for row in read("plan")["rows"] if "error" in row]
    gains = [abs(error) for error in map.errors(regimes()).values()]
    named = {"seconds of a step": steps, "gain over plain GRPO, [the map](results.md#the-map)": gains}
    rows = [[name, str(len(each)), f"{np.median(each):.1%}", f"{max(each):.1%}"] for name, each in named.items()]
    return table(("predicted", "cases", "off by, median", "worst"), rows)


def _scale() -> dict[tuple[str, int], float]:
    return {(row["figure"], row["size"]): row["median"] for row in read("scale")["rows"]}


def ranks() -> str:
    """Share of time that ranks wait, with rows at home and dealt."""
    found, rows = _scale(), []
    for size, prompts in ((8, 2), (8, 8), (64, 8), (512, 8)):
        names = ("idle_share_at_home", "idle_share_dealt", "share_of_tokens_moved")
        shares = [f"{found[f'{name}_{prompts}_prompts_a_rank', size]:.2f}".removeprefix("0") for name in names]
        rows.append([str(size), str(prompts), *shares])
    return table(("ranks", "prompts a rank", "rows stay at home", "dealt", "tokens that move"), rows)


def at_scale() -> str:
    """Cost of planning for many completions and prompts."""
    found = _scale()
    rows = [
        ["planning 1,048,576 completions, one core", f"{found['plan_step', 2**20] / 1e3:.1f} s"],
        ["dealing them over 512 ranks, one core", f"{found['deal_to_512_ranks', 2**20] / 1e3:.1f} s"],
        ["history of 100 million prompts, each rank", f"{found['memory_of_history', 10**8] / 1e9:.1f} GB"],
    ]
    return table(("what", "cost"), rows)


def supervised() -> str:
    """Contestants of supervised fine-tuning: times faster to the loss of TRL's trainer."""
    from dppo_lab.statistics import seed_interval

    rows = read("supervised")["rows"]
    took = {(r["contestant"], r["seed"]): r["cpu_seconds"] for r in rows if r["what"] == "race"}
    rate = {r["contestant"]: r["rate"] for r in rows if r["what"] == "tuning" and r["chosen"]}
    cells = []
    for name in list(rate)[1:]:
        found = seed_interval({seed: took["stock", seed] / took[name, seed] for seed in range(5)}, np.median)
        cells.append([name, f"{rate[name]:g}", f"{found.centre:.2f} [{found.low:.2f}, {found.high:.2f}]"])
    return table(("contestant", "learning rate", "times faster than stock"), cells)


# docs/a_star_po.md

PRIORS = ("mean over all", "reference, 2 samples", "reference, 8 samples")


def _value(name: str, **of: object) -> float:
    (row,) = [row for row in read("values")["rows"] if row["figure"] == name and of.items() <= row.items()]
    return row["value"]


def advantage_squares() -> str:
    """Mean squares of advantages, by group size, epoch and prior."""
    rows = [
        [str(size), str(epoch + 1)]
        + [f"{_value('advantage_square', prior=prior, completions=size, epoch=epoch):.3f}" for prior in PRIORS]
        for epoch in (0, 1)
        for size in (1, 2, 4)
    ]
    return table(("completions a prompt", "epoch", *PRIORS), rows)


# examples/smollm2/README.md, docs/chat_model.md

STEPS = (0, 5, 10, 15, 20)


def chat_model_curve() -> str:
    """Share of held-out questions that are right, and seconds, by step."""
    runs = [run["curve"] for run in read("smollm2_example")["regimes"]["no_kl"]["methods"]["default"]["runs"]]
    places = [[next(each for each in curve if each["step"] == step) for curve in runs] for step in STEPS]

    def bare(value: float) -> str:
        return f"{value:.2f}".removeprefix("0")

    right, seconds = [], []
    for place in places:
        share = np.array([each["accuracy"] for each in place])
        right.append(f"{bare(share.mean())} ({bare(share.min())} to {bare(share.max())})")
        seconds.append(f"{np.mean([each['seconds'] for each in place]):.0f}")
    return table(("steps", *map(str, STEPS)), [["right", *right], ["CPU seconds of training", *seconds]])


# docs/tasks.md

OF_TASK: dict[str, Sequence[str]] = {
    "zero-variance groups of 8 at the start": ("dead_at_8",),
    "of these, still so after the first epoch": ("still_dead_first",),
    "zero-variance groups of 8 at the end": ("dead_end",),
    "share right at the start: easy, middle, hard": ("right_easy", "right_middle", "right_hard"),
    "held-out accuracy: start, end": ("accuracy_start", "accuracy_end"),
}


def _of_tasks(lines: Mapping[str, Sequence[str]], tasks: Sequence[str]) -> str:
    rows = read("tasks")["rows"]
    return tables.of_tasks(lines, {task: [row for row in rows if row["task"] == task] for task in tasks})


def tasks_of_chains() -> str:
    """Zero-variance groups and accuracy of two tasks, over three seeds."""
    return _of_tasks(OF_TASK, ("embedded_sparse", "embedded"))


def tasks_with_lasting_groups() -> str:
    """The same for the tasks whose zero-variance groups last."""
    return _of_tasks(tables.LASTING, ("embedded_silent", "embedded_rare"))


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
        rows.append(
            [f"biased on purpose, {what}: squared bias", f"{check['figure']:.2f}", f"above {check['bound']:.2g}"]
        )
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
    found = {
        (row["rule"], row["score"], row["keep"]): row["added_variance"]
        for row in read("verify")["variance"]
        if row["normaliser"] == "dr_grpo"
    }
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
        for phase in ("old", "ref", "update"):
            each = found.get((case, phase))
            ends = each and f"{each['share']:.2f} ({each['share_lowest']:.2f} to {each['share_highest']:.2f})"
            cells.append(ends or "")
        rows.append([label, *cells, f"{record['step_without_rollout'][case]:.2f}"])
    headings = ("loss, rate", "rows of 128", "tokens", "old log-probabilities", "reference", "update")
    return table((*headings, "whole step without rollout, times as fast"), rows)


SPLITS = ((10, 29, 28, 31), (30, 17, 0, 49), (45, 14, 0, 34), (70, 6, 4, 17))
"""Percent of a step that users of verl logged: rollout, old log-probabilities, reference, update."""


def verl_splits() -> str:
    """Times as fast as verl's own step, computed from the measured passes for steps that users logged."""
    ratios, rows = read("verl")["step_without_rollout"], []
    for split in SPLITS:
        passes = sum(split[1:])
        cells = [f"{100 / (100 - passes + passes / ratios[case]):.2f}" for case in ("0.5", "0.7")]
        without_kl = f"{100 / (100 - passes + passes / ratios['0.5, no KL, 60% dead']):.2f}"
        rows.append([" / ".join(str(each or "-") for each in split), *cells, "-" if split[2] else without_kl])
    headings = ("rollout / old / reference / update", "KL, 0.5", "KL, 0.7")
    return table((*headings, CASES["0.5, no KL, 60% dead"]), rows)
