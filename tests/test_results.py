"""Pages and the README say what the files of results say."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import map as regime_map
from benchmarks.learning import tables
from benchmarks.learning.beside import ROUGH
from benchmarks.learning.regimes import NEAR
from dppo_lab.statistics import seed_interval

ROOT = Path(__file__).parents[1]
CONTROL = tables.LABELS["grpo_rows"]
TASKS = ("embedded", "embedded_sparse")


def read(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


GIVEN = ("strength", "completion_rate", "prompt_rate", "beta", "entropy_coef", "router_coef")
"""Fractions in the files that were chosen, and not found."""


def wrong(found, name=""):
    """The same with every figure changed, and so nothing that a page may say."""
    if isinstance(found, dict):
        return {name: wrong(value, name) for name, value in found.items()}
    if isinstance(found, list):
        return [wrong(value) for value in found]
    figure = (name == "median" and found is not None) or (isinstance(found, float) and name not in GIVEN)
    return 0.9 * found + 0.01 if figure else found


def there(words, page):
    """Whether a page has these words, with any breaks of lines; ``...`` are others of the same line."""
    pattern = r"\s+".join(map(re.escape, words.split()))
    return re.search(pattern.replace(r"\s+\.\.\.\s+", r"[^\n]* "), page)


def share(found):
    """A difference with its interval, in percentage points."""
    return tables.cell(found, "mean", "{:+.1f}", 100)


def points(found):
    """The same as prose has it."""
    return share(found).replace(" ", " pp ", 1)


def once(found, form="{:.1f}"):
    """A median with its interval, as prose has it."""
    return "{} times sooner{{}} [{}, {}]".format(*(form.format(found[end]) for end in ("median", "low", "high")))


HEADLINE = (("trl_g8", "trl_g8"), ("trl", "trl_g8"), ("grpo_rows", "trl_g8"), ("grpo_rows", "grpo_rows"))
"""Opponents of the first table, and whose final accuracy is the target."""
CALLED = {**tables.LABELS, "grpo_rows": "the control"}
SHOWN = {
    "embedded_compare": ("trl_g8", "trl", "grpo_rows", "dppo_default", "dppo_completions"),
    "embedded_others": ("trl_g8", "grpo_rows", "fewer_prompts", "dppo_default", "cppo", "greso", "dapo"),
}
"""Methods in the tables of docs/results.md."""


def first_table(read):
    """How many times sooner the default is at a target than an opponent, on every task."""
    found = read("embedded_compare")["tasks"]
    cells = {pair: [task["default_against"][pair[0]][pair[1]] for task in found.values()] for pair in HEADLINE}
    rows = [[*map(CALLED.get, pair), *(tables.speedup(of, of["missing"]) for of in cells[pair])] for pair in HEADLINE]
    yield tables.table(("dppo is sooner than", "at the final accuracy of", *(f"`{task}`" for task in found)), rows)


def other_tables(read):
    for name, shown in SHOWN.items():
        for found in read(name)["tasks"].values():
            yield tables.summary(found, shown)


def equal_sizes(read):
    """The default against the control at equal sizes of a step, means over the sizes."""
    rows = []
    for name, task in read("embedded_sizes")["tasks"].items():
        mean = task["sizes"]["mean"]
        rows.append([f"`{name}`", share(mean["difference"]), tables.cell(mean["step"], "mean", "{:.2f}")])
    yield tables.table(("mean over the sizes", "difference, pp", "step, times as fast"), rows)


def kl_term(read):
    """Final accuracies of the control and the default after equal seconds, and after equal steps."""
    point, rows = read("regimes")["regimes"]["kl"], []
    same = point["at_same_steps"]["same_steps"]
    labels = {"control": CONTROL, "default": tables.LABELS["dppo_default"]}
    for name, label in labels.items():
        cells = [str(point["overrides"][name]["max_steps"])]
        cells += [tables.cell(point["final_accuracy"][name], "mean", "{:.3f}")]
        if name in point["step_ratio"]:
            cells += [share(point["equal_seconds"][name]["difference"])]
            cells += [tables.cell(point["step_ratio"][name], "mean", "{:.2f}")]
        rows.append([label, *cells, *[""] * (4 - len(cells))])
    cells = [rows[0][1], tables.cell(same["final_accuracy"], "mean", "{:.3f}"), share(same["difference"])]
    rows.append(["the same, with the control's steps", *cells, tables.cell(same["step_ratio"], "mean", "{:.2f}")])
    yield tables.table(("trainer", "steps", "final accuracy", "difference, pp", "step, times as fast"), rows)
    yield once(point["against_control"], "{:.2f}").format("")
    yield f"{point['silent_share']:.0%} of the groups"
    yield f"that adds {point['chosen']['default']['added_variance']:.0%} to the variance"
    yield f"dppo ends {points(same['difference'])} from the control"
    told = points(point["equal_seconds"]["tokens"]["difference"])
    yield f"{point['step_ratio']['tokens']['mean']:.2f} times as fast and the difference {told}"


def silent_groups(read):
    point = read("regimes")["regimes"]["silent"]
    prior, twice = (point["at_same_steps"][name] for name in ("prior_same_steps", "twice_same_steps"))
    control = prior["control"]
    live = f"{16 * (1 - control['chosen']['silent_share']):.2f} of 16"
    yield f"| {CONTROL} | {live} | {control['final_accuracy']['mean']:.3f} | 1.00 |"
    for label, found, prompts in (("*prior*", prior, 16), ("the control with twice the prompts", twice, 32)):
        live = f"{prompts * (1 - found['chosen']['silent_share']):.2f} of {prompts}"
        step = tables.cell(found["step_ratio"], "mean", "{:.2f}")
        yield f"| {label} | {live} | {share(found['difference'])} | {step} |"
    sooner, rate = prior["against_control"], prior["chosen"]["prompt_rate"]
    seeds = prior["pooled"]["seeds"]
    missed = COUNTS[seeds - int(sooner["reached"].split(" of ")[0])]
    times, curves = tables.speedup(sooner, sooner["missing"]), tables.cell(prior["pooled"], "ratio", "{:.2f}")
    yield f"***prior* is {times} times sooner at the control's accuracy**, which {missed} of {seeds} seeds miss"
    yield f"by mean curves (one seed's last accuracy is noise) {curves} times. `auto` dropped {rate:.0%} of the prompts"
    after = [points(point[what]["default"]["difference"]) for what in ("equal_updates", "equal_seconds")]
    yield f"The default, at 4e-4: {after[0]} after equal steps, {after[1]} after equal seconds"


TWO_PASSES = ("silent_two_passes", "silent_kl_two_passes")
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


FALLEN = {"TRL": "trl_g8", "dppo": "default"}
"""Where a run of TRL fell below its start."""


def of_16_ahead(found):
    """The default with groups of 16 to plain groups of 4, by seed."""
    of_16, plain = (found[name]["final_accuracy"] for name in ("large_groups", "plain"))
    ends = of_16["default"]["per_seed"].items()
    return seed_interval({int(seed): end - plain["control"]["per_seed"][seed] for seed, end in ends}).as_json()


def lower(ahead):
    return f"end {100 * ahead['mean']:.1f} pp lower"


def regimes(read):
    found = read("regimes")["regimes"]
    yield from regime_map.show(found).split("\n\n")
    fallen = [found[name]["beside_stock"]["default"]["final_accuracy"] for name in ("large_steps", "large_groups")]
    ends = {label: " and ".join(f"{each[name]['mean']:.3f}" for each in fallen) for label, name in FALLEN.items()}
    yield f"({', '.join(f'{label} {accuracies}' for label, accuracies in ends.items())})"
    spent = [
        steps["default"]["max_steps"] / steps["control"]["max_steps"] / point["step_ratio"]["default"]["mean"]
        for point in found.values()
        if "default" not in point.get("seconds", {}) and (steps := point["overrides"])
    ]
    yield f"{min(spent):.2f} to {max(spent):.2f}."
    beside = {name: found[name]["beside_stock"] for name in ("silent_kl", *TWO_PASSES)}
    four = [each for methods in beside.values() for name, each in methods.items() if name != "prior"]
    seconds = sorted(each["seconds"]["mean"] for each in four)
    yield f"{seconds[0]:.2f} to {seconds[-1]:.2f} of TRL's seconds"
    for method, start in (("four_updates", "the default"), ("prior_four_updates", "were then drawn once,")):
        told = {name: beside[name][method]["against_trl_g8"] for name in TWO_PASSES}
        yield f"{start} " + ", ".join(
            f"`{name}` {tables.cell(each, 'median', '{:.2f}')}" for name, each in told.items()
        )
        assert all(each["median"] > 5 and each["reached"] == "10 of 10" for each in told.values())
    dropped = beside["silent_two_passes"]["four_updates"]["chosen"]
    assert dropped["completion_rate"] == dropped["prompt_rate"] == 0
    plain = beside["silent_kl_two_passes"]["control_four_updates"]["against_trl_g8"]
    yield f"the same setting has {tables.cell(plain, 'median', '{:.2f}')}, {COUNTS[len(plain['per_seed'])]} seeds."
    third = beside["silent_kl"]["prior_four_updates"]["against_trl_g8"]
    yield f"`silent_kl` {tables.cell(third, 'median', '{:.2f}')}, {COUNTS[len(third['per_seed'])]} seeds."
    same = [points(found[name]["at_same_steps"]["same_steps"]["difference"]) for name in ("kl", "silent_kl")]
    yield f"the default ends at {same[0]} to the control on `kl` and {same[1]} on `silent_kl`"
    yield regime_map.biased(found)
    yield f"ends {points(found['rare']['equal_seconds']['prompts']['difference'])} from the control, no loss"
    ends = {name: found[name]["equal_updates"]["default"]["difference"] for name in ("sparse_two_passes", "rare")}
    alike = [COUNTS[list(each["per_seed"].values()).count(0.0)] for each in ends.values()]
    yield f"{' and '.join(map(points, ends.values()))}; in {' and '.join(alike)} of ten seeds `auto` dropped nothing"
    large = found["large_groups"]
    yield f"{once(large['against_control'], '{:.2f}').format('')}; the update is {large['step_share']:.0%} of"
    plain, of_16 = (found[name]["final_accuracy"] for name in ("plain", "large_groups"))
    ends = f"`large_groups` at {of_16['control']['mean']:.3f} and dppo at {of_16['default']['mean']:.3f}"
    yield from (f"`plain`, groups of 4, ends at {plain['control']['mean']:.3f}, the control of", ends)
    ahead = of_16_ahead(found)
    yield from (f"{points(ahead)} to `plain`", f"not run beside it, {lower(ahead)}")
    finals = found["sparse_kl"]["final_accuracy"]["control"]["per_seed"]
    ahead = found["sparse_kl"]["equal_seconds"]["default"]["difference"]["per_seed"]
    best, stuck = [seed for seed in finals if finals[seed] > 0.92], [seed for seed in finals if finals[seed] < 0.67]
    further = [f"{gain:+.0f}" for seed in stuck if (gain := 100 * ahead[seed]) > 2]
    counts = [COUNTS[len(seeds)] for seeds in (best, stuck, further)]
    yield f"{counts[0]} of the control's ten seeds end above 0.92; of the {counts[1]} that stay below"
    yield f"0.67, `dppo` got {counts[2]} further ({' and '.join(further)} pp)"
    once_twice = [found[name] for name in ("sparse_kl", "sparse_kl_two_passes")]
    steps = " and ".join(f"{each['step_ratio']['default']['mean']:.1f}" for each in once_twice)
    seeds = once_twice[1]["seeds"]
    yield f"`embedded_sparse` (two passes: {seeds} seeds) steps are {steps} times as fast, it is"
    sooner = [tables.cell(each["against_control"], "median", "{:.2f}") for each in once_twice]
    sooner = " and ".join(each.replace(" ", " times ", 1) for each in sooner)
    yield f"{sooner} sooner, and accuracy after equal seconds is not shown better"
    low, greso = once_twice[1]["lower_beta"], once_twice[1]["final_accuracy"]["greso"]["mean"]
    ahead, final = points(low["control_ahead"]), low["final_accuracy"]["control"]["mean"]
    yield f"it ends {ahead} higher, at {final:.3f} (GRESO with 0.04: {greso:.3f}; five seeds)"
    yield f"steps {low['step_ratio']['mean']:.2f} times as fast, {points(low['default_ahead'])}"


def test_methods_of_a_regime_take_the_controls_seconds():
    """Where runs were corrected for it: the page says how far off runs of earlier versions were."""
    found = {name: point["seconds"] for name, point in read("regimes")["regimes"].items() if "seconds" in point}
    ratios = {(name, method): ratio["mean"] for name, each in found.items() for method, ratio in each.items()}
    near = {"cppo": ROUGH, "greso": ROUGH}
    off = {which: abs(ratio - 1) for which, ratio in ratios.items()}
    assert ratios and [which for which, much in off.items() if round(much, 2) > near.get(which[1], NEAR)] == []


def frozen(read):
    rows = {(row["name"], row["level"], row["completion_rate"]): row for row in read("frozen")["rows"]}
    bias = "{relative_bias:.3f} [{bias_low:.3f}, {bias_high:.3f}]"
    yield f"| `dppo` | {bias} | {{added_variance:.2f}} |".format(**rows["dppo", "completions", 0.5])
    dapo, greso = (next(row for key, row in rows.items() if key[:2] == (name, "nothing")) for name in ("dapo", "greso"))
    yield f"bias **{dapo['relative_bias']:.3f}** and **{bias.format(**greso)}**"


REGIMES_SHOWN = ("kl", "kl_two_passes", "silent_kl", "silent_kl_two_passes", "large_groups")
"""On the front page."""


OF_PRIOR = (("pooled", "ratio"), ("against_control", "median"))


def readme(read):
    against = {name: read(name)["tasks"] for name in (*SHOWN, "embedded_sizes")}
    first, repeats = [], []
    for task in TASKS:
        found = against["embedded_compare"][task]["default_against"]["trl_g8"]["trl_g8"]
        first.append(f"**{once(found).format('**')}")
        others = [against[name][task]["best_against"]["trl_g8"]["trl_g8"] for name in list(against)[1:]]
        repeats.append(f"`{task}` " + ", ".join(f"{each['median']:.1f}" for each in others))
        yield points(against["embedded_sizes"][task]["sizes"]["mean"]["difference"])
    yield f"| {'; '.join(first)}. Repeats, four or five seeds: {'; '.join(repeats)} (intervals from 0.0)"
    regimes = [read("regimes")["regimes"][name] for name in REGIMES_SHOWN]
    for point in regimes:
        ahead = points(point["equal_seconds"]["default"]["difference"])
        yield f"| **{once(point['against_control']).format('**')}, {ahead} |"
    prior = read("regimes")["regimes"]["silent"]["at_same_steps"]["prior_same_steps"]
    curves, seed = (tables.cell(prior[what], centre, "{:.1f}") for what, centre in OF_PRIOR)
    curves = curves.replace(" ", " times sooner** ", 1)
    yield f"{prior['pooled']['seeds']} seeds | **{curves} by mean curves, the median seed {seed}"
    yield f"; {points(prior['difference'])} after equal steps |"
    once_twice = [read("regimes")["regimes"][name] for name in ("sparse_kl", "sparse_kl_two_passes")]
    steps = [f"{each['step_ratio']['default']['mean']:.1f}" for each in once_twice]
    gains = [points(each["equal_seconds"]["default"]["difference"]) for each in once_twice]
    yield f"no gain in accuracy is shown: {gains[0]}, steps {steps[0]} times as fast"
    yield f"two passes ({once_twice[1]['seeds']} seeds) {gains[1]}, {steps[1]} times"
    yield f"plain groups of 4, on another machine, {lower(of_16_ahead(read('regimes')['regimes']))}"
    sooner = sorted(point["against_trl_g8"]["median"] for point in regimes[:4])
    yield f"The first four rows are {sooner[0]:.1f} to {sooner[-1]:.1f} times sooner"
    four = read("regimes")["regimes"]["silent_kl_two_passes"]["beside_stock"]["four_updates"]["against_trl_g8"]
    yield f"`steps_per_generation: 4`](docs/results.md#the-map) is {once(four).format('')}"
    said = {check["name"]: check for check in read("verify")["checks"]}
    drawn = said["2 both levels, dppo, grpo: 2000 draws on the model"]
    yield f"| {drawn['figure']:.4f} +- {float(drawn['what'].rpartition(' ')[2]):.4f} |"
    cppo = said["5 control: CPPO's rule: 500 draws on the model"]
    yield f"which is biased: {cppo['figure']:.2f} |"


def tokens(read):
    added = read("tokens")["added_variance"]
    for name, kind in (
        ("completions by score", "completions"),
        ("cuts", "cuts"),
        ("NAT's random prefix", "random prefix"),
    ):
        found = [added[stage]["draws"][f"{kind} 0.5"] for stage in ("start", "later", "later_kl")]
        yield f"| {name} | {' | '.join(with_error(each['value'], each['error']) for each in found)} |"
        if kind == "cuts":
            ratios = [with_error(each["value"] / each["alone"], each["error"] / each["alone"]) for each in found]
            yield f"| cuts, over what independent tokens would add | {' | '.join(ratios)} |"
    stages = [added[name]["draws"] for name in added if name != "environment"]
    cuts = [stage[f"cuts {kept}"] for stage in stages for kept in (0.7, 0.5, 0.3)]
    ratios = sorted(each["value"] / each["alone"] for each in cuts)
    yield f"at the other stages and shares that ratio is {ratios[0]:.2f} to {ratios[-1]:.2f}"
    half, most = (
        "{:.2f} and {:.2f}".format(*(read("tokens")["passes"][name][kind]["share_median"] for kind in PASSES))
        for name in ("cuts 0.5", "cuts 0.7")
    )
    yield f"TRL's old and reference pass take {half} of their seconds at a rate of 0.5, {most} at 0.7"
    off, alike = (read("tokens")["left_off"][name] for name in ("auto", "again"))
    ends = [" to ".join(f"{each[f'ratio_quartile_{end}']:.3f}" for end in ("low", "high")) for each in (off, alike)]
    yield f"took {off['ratio_median']:.3f} times one without it (quartiles {ends[0]}; two alike: {ends[1]})"


def floors(read):
    """Added variance under a KL term, and under a router loss."""
    found = read("floors")["rows"]
    rates = dict(zip(sorted({row["rate"] for row in found}), (0.5, 0.7, 0.8, 0.9), strict=True))
    names = ("policy", "beta", "entropy_coef", "router_coef", "use_bias_correction_kl")
    rows = {(*(row[name] for name in names), rates[row["rate"]]): row for row in found}

    def short(value):
        return f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:#.3g}"

    for state, ratio, rate in (
        *(("start", True, 0.8), ("60 steps", True, 0.8), *(("120 steps", True, rate) for rate in (0.5, 0.8, 0.9))),
        *(("far reference", True, 0.8), ("120 steps", False, 0.8), ("far reference", False, 0.8)),
    ):
        row = rows[state, 0.04, 0.0, 0.0, ratio, rate]
        one, blind, learned, best = (short(row[n]) for n in ("one_floor", "blind_0.02", "learned_0.02", "true_norms"))
        yield f"| {state}{'' if ratio else ', k3 alone'}, {rate} | {one} | {blind} | **{learned}** | {best} |"
    near, far = (
        [rows[state, beta, 0.0, 0.0, True, 0.8]["flat_share"] for beta in (0.04, 0.4, 2.0)]
        for state in ("120 steps", "far reference")
    )
    yield f"hold {near[0]:.1%} of the squared gradient at 120 steps and {far[0]:.1%} with the far reference"
    yield f"at `beta: 0.4` {near[1]:.0%} and {far[1]:.0%}, at 2 {near[2]:.0%} and {far[2]:.0%}"
    mixed = {which: row for which, row in rows.items() if which[0].startswith("mixture") and which[3]}
    yield f"hold at most {max(row['flat_share'] for row in mixed.values()):.2%} of the squared gradient"
    ends = [sorted(row[n] for which, row in mixed.items() if which[-1] == 0.8) for n in ("one_floor", "blind_0.02")]
    added = [" to ".join(f"{each:.2f}".removeprefix("0") for each in (end[0], end[-1])) for end in ends]
    yield f"at a rate of 0.8 this floor adds {added[0]}, and 0.02 would add {added[1]}"


def _of_bfloat16(row):
    return row["figure"] == "exactness" and row["layout"] in ("padded", "shared")


def on_a_gpu(read):
    """Kernels, and the gradient of each layout against float32."""
    rows = read("gpu")["rows"]
    (off,) = {f"{row['gradient_difference']:.1e}" for row in rows if _of_bfloat16(row)}
    yield f"gradients are {off.replace('e-0', 'e-')} off float32"
    taken = {row["kernel"]: row["median"] for row in rows if row["figure"] == "kernel time"}
    one, other, last = (taken[name] for name in ("torch varlen", "flex", "sdpa per segment"))
    yield f"{one:.2f} s with `torch varlen`, {other:.2f} s with `flex`, {last:.2f} s by segments"


PASSES = ("old", "reference")


def with_error(value, error):
    """A value and its standard error, both to the first digit of the error."""
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def predicted_steps(read):
    errors = [abs(row["error"]) for row in read("plan")["rows"] if "error" in row]
    yield f"off by {np.median(errors):.1%} (median) and {max(errors):.1%} (worst)"


def ranks(read):
    found = {(row["figure"], row["size"]): row["median"] for row in read("scale")["rows"]}
    for size, prompts in ((8, 2), (8, 8), (64, 8), (512, 8)):
        names = ("idle_share_at_home", "idle_share_dealt", "share_of_tokens_moved")
        shares = [f"{found[f'{name}_{prompts}_prompts_a_rank', size]:.2f}".removeprefix("0") for name in names]
        yield f"| {size} | {prompts} | {' | '.join(shares)} |"
    taken = [found[name, 2**20] / 1e3 for name in ("plan_step", "deal_to_512_ranks")]
    yield "takes {:.1f} s and {:.1f} s on one core".format(*taken)
    yield f"{found['memory_of_history', 10**8] / 1e9:.1f} GB"


ROWS_SHOWN = ("stock, 1/4 batch", "dense rows", "dense rows, 1/2 batch", "dppo 0.5", "uniform 0.5")


def supervised(read):
    rows = read("supervised")["rows"]
    took = {(r["contestant"], r["seed"]): r["cpu_seconds"] for r in rows if r["what"] == "race"}
    rate = {r["contestant"]: r["rate"] for r in rows if r["what"] == "tuning" and r["chosen"]}
    assert len(rate) == 10
    for name in ROWS_SHOWN:
        found = seed_interval({seed: took["stock", seed] / took[name, seed] for seed in range(5)}, np.median)
        yield f"| {name} | {rate[name]:g} | {found.centre:.2f} [{found.low:.2f}, {found.high:.2f}] |"


def values(read):
    """Areas under the curve by epoch, and mean squares of advantages by group size and epoch."""
    rows = read("values")["rows"]
    priors = ("mean over all", "reference, 2 samples", "reference, 8 samples")

    def figure(name, **of):
        (row,) = [row for row in rows if row["figure"] == name and of.items() <= row.items()]
        return row["value"]

    for prior in priors:
        cells = [f"{figure('auc', prior=prior, own_history=True, epoch=epoch):.2f}" for epoch in range(3)]
        yield f"| {prior}, with own history | {' | '.join(cells)} |"
    for epoch in (0, 1):
        for size in (1, 2, 4):
            of = {"completions": size, "epoch": epoch}
            cells = [f"{figure('advantage_square', prior=prior, **of):.3f}" for prior in priors]
            yield f"| {size} | {epoch + 1} | {' | '.join(cells)} |"


CASES = {
    "first table": ("docs/results.md", first_table),
    "other tables": ("docs/results.md", other_tables),
    "equal sizes": ("docs/results.md", equal_sizes),
    "KL term": ("docs/results.md", kl_term),
    "silent groups": ("docs/results.md", silent_groups),
    "regimes": ("docs/results.md", regimes),
    "frozen": ("docs/results.md", frozen),
    "readme": ("README.md", readme),
    "tokens": ("docs/estimators.md", tokens),
    "floors": ("docs/estimators.md", floors),
    "on a gpu": ("docs/packing.md", on_a_gpu),
    "predicted steps": ("docs/savings.md", predicted_steps),
    "ranks": ("docs/ranks.md", ranks),
    "supervised": ("docs/supervised.md", supervised),
    "values": ("docs/a_star_po.md", values),
}


@pytest.mark.parametrize("case", CASES)
def test_a_page_says_what_the_files_say(case):
    """The wrong twin of each file has none of it."""
    name, said = CASES[case]
    page = (ROOT / name).read_text()
    lines = list(said(read))
    assert lines and [line for line in lines if not there(line, page)] == []
    assert [line for line in said(lambda name: wrong(read(name))) if there(line, page)] == []


def test_the_example_of_a_real_model_has_the_curve_of_its_runs():
    """Held-out accuracy of three seeds, mean (lowest to highest), and mean seconds; a figure changed is not there."""
    page = (ROOT / "examples" / "smollm2" / "README.md").read_text()

    def rows(found):
        runs = [run["curve"] for run in found["regimes"]["no_kl"]["methods"]["default"]["runs"]]
        steps = (0, 5, 10, 15, 20)
        points = [[next(each for each in curve if each["step"] == step) for curve in runs] for step in steps]
        right = [np.array([each["accuracy"] for each in place]) for place in points]
        bare = lambda value: f"{value:.2f}".removeprefix("0")  # noqa: E731
        cells = [f"{bare(each.mean())} ({bare(each.min())} to {bare(each.max())})" for each in right]
        seconds = [f"{np.mean([each['seconds'] for each in place]):.0f}" for place in points]
        return [f"| right | {' | '.join(cells)} |", f"| CPU seconds of training | {' | '.join(seconds)} |"]

    found = read("smollm2_example")
    assert all(row in page for row in rows(found)), rows(found)
    found["regimes"]["no_kl"]["methods"]["default"]["runs"][0]["curve"][2]["accuracy"] += 0.1
    assert rows(found)[0] not in page
