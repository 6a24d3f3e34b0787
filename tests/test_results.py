"""docs/results.md and the README say what the files of results say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import map as regime_map
from benchmarks.learning import tables
from dppo_lab.statistics import seed_interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()
README = (ROOT / "README.md").read_text()


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


HEADLINE = (("trl_g8", "trl_g8"), ("trl", "trl_g8"), ("grpo_rows", "trl_g8"), ("grpo_rows", "grpo_rows"))
"""Opponents of the first table, and whose final accuracy is the target."""
CALLED = {**tables.LABELS, "grpo_rows": "the control"}
MAIN = ("trl_g8", "trl", "grpo_rows", "dppo_default", "dppo_completions")
OTHERS = ("trl_g8", "grpo_rows", "fewer_prompts", "dppo_default", "cppo", "greso", "dapo")
PARTS = ("dppo_default_16x4", "grpo_rows_16x4", "without_packing", "without_shared_prefixes", "without_score")


def headline(record):
    """How many times sooner the default is at a target than an opponent, on every task."""
    against = [task["default_against"] for task in record["tasks"].values()]
    rows = [
        [CALLED[opponent], CALLED[target], *(sooner(found[opponent][target]) for found in against)]
        for opponent, target in HEADLINE
    ]
    tasks = [f"`{task}`" for task in record["tasks"]]
    return tables.table(("dppo is sooner than", "at the final accuracy of", *tasks), rows)


def sooner(found, form="{:.2f}"):
    """A ratio with its interval, to one place where that is asked for."""
    if form == "{:.2f}":
        return tables.speedup(found, found["missing"])
    return tables.cell(found, "median", form)


def sizes(task):
    """The control and the default at equal sizes of a step, and means over the sizes."""
    rows = []
    for size, level in task["sizes"].items():
        final = [task["methods"][f"{name}_{size}"]["final"] for name in task["pair"]] if size != "mean" else []
        rows.append(
            [
                size.replace("x", " x "),
                *([tables.cell(each, "mean", "{:.3f}") for each in final] or ["", ""]),
                tables.cell(level["difference"], "mean", "{:+.1f}", 100),
                tables.cell(level["step"], "mean", "{:.2f}"),
            ]
        )
    headings = ("the control", "dppo, default", "difference, pp", "step, times as fast")
    return tables.table(("prompts x completions", *headings), rows)


@pytest.mark.parametrize(
    ("name", "shown"), [("embedded_compare", MAIN), ("embedded_others", OTHERS), ("embedded_sizes", ("trl_g8", *PARTS))]
)
def test_the_tables_are_those_of_the_file(name, shown):
    for task, found in read(name)["tasks"].items():
        if set(shown) <= found["methods"].keys():
            assert tables.summary(found, shown) in PAGE
            found["methods"][shown[-1]]["final"]["mean"] += 0.01
            assert tables.summary(found, shown) not in PAGE
        else:
            assert (name, task) == ("embedded_sizes", "embedded_sparse")


def test_the_tables_of_equal_sizes_are_those_of_their_file():
    for task in read("embedded_sizes")["tasks"].values():
        assert list(task["sizes"]) == ["16x4", "22x4", "32x4", "mean"]
        assert sizes(task) in PAGE
        level = tables.cell(task["sizes"]["mean"]["difference"], "mean", "{:+.1f}", 100).replace(" ", " pp ", 1)
        assert level in README and level in PAGE
        task["sizes"]["mean"]["step"]["mean"] += 0.1
        assert sizes(task) not in PAGE


def test_the_first_table_is_that_of_the_file():
    record = read("embedded_compare")
    assert headline(record) in PAGE
    for task in record["tasks"].values():
        task["default_against"]["trl_g8"]["trl_g8"]["median"] += 1
    assert headline(record) not in PAGE


REGIME_NAMES = {
    "trl_g8": "TRL, groups of 8",
    "control": "GRPO, packed: **the control**",
    "default": "dppo, default",
    "tokens": "dppo, `token_prune_rate: auto`",
}


def regime_table(point):
    """Final accuracies of a regime after equal seconds, and what those that share the control's steps have of it."""
    rows = []
    for name, label in REGIME_NAMES.items():
        own = point["overrides"][name]
        shape = f"{own['per_device_train_batch_size'] // own['num_generations']} x {own['num_generations']}"
        cells = [shape, str(own["max_steps"]), tables.cell(point["final_accuracy"][name], "mean", "{:.3f}")]
        if name in point["step_ratio"]:
            cells += [tables.cell(point["equal_seconds"][name]["difference"], "mean", "{:+.1f}", 100)]
            cells += [tables.cell(point["step_ratio"][name], "mean", "{:.2f}")]
        rows.append([label, *cells, *[""] * (5 - len(cells))])
    headings = ("prompts x completions", "steps", "final accuracy", "difference, pp", "step, times as fast")
    return tables.table(("trainer", *headings), rows)


def test_the_table_of_the_kl_term_is_that_of_its_file():
    point = read("regimes")["regimes"]["kl"]
    sooner = [
        f"{point[f'against_{name}'][end]:.2f}" for name in ("control", "trl_g8") for end in ("median", "low", "high")
    ]
    assert regime_table(point) in PAGE
    assert (
        "{} times sooner [{}, {}]".format(*sooner[:3]) in PAGE
        and "{} times sooner [{}, {}]".format(*sooner[3:]) in PAGE
    )
    ahead = tables.cell(point["equal_seconds"]["default"]["difference"], "mean", "{:+.1f}", 100).replace(" ", " pp ", 1)
    once = "**{:.1f} times sooner** [{:.1f}, {:.1f}]".format(
        *(point["against_control"][end] for end in ("median", "low", "high"))
    )
    assert ahead in README and once in README
    assert f"{point['silent_share']:.0%} of the groups" in PAGE
    point["final_accuracy"]["control"]["mean"] += 0.01
    assert regime_table(point) not in PAGE


def test_the_table_of_silent_groups_is_that_of_its_file():
    point = read("regimes")["regimes"]["silent"]
    for name, label in (
        ("control", "GRPO, packed: **the control**"),
        ("default", "dppo, default"),
        ("prior", "*prior*"),
    ):
        groups = 16 * (1 - point["silent_shares"][name])
        found = point["equal_updates"].get(name)
        cell = tables.cell(found["difference"], "mean", "{:+.1f}", 100) if found else ""
        assert f"| {label} | {groups:.2f} | {cell} |" in PAGE
    step = point["step_ratio"]["default"]["mean"]
    assert f"took {1 / step:.2f} times the control's seconds" in PAGE


def test_the_map_of_the_page_is_that_of_its_file():
    points = read("regimes")["regimes"]
    rows, error = regime_map.show(points).split("\n\n")
    assert rows in PAGE and error in PAGE
    for name in ("default", "tokens"):
        difference = points["plain"]["equal_seconds"][name]["difference"]
        assert tables.cell(difference, "mean", "{:+.1f}", 100).replace(" ", " pp ", 1) in " ".join(PAGE.split())
    points["plain"]["step_share"] = 0.6
    assert regime_map.show(points).split("\n\n")[0] not in PAGE


def readme_cells(tasks, points, checks):
    """What the README's table of results says, from the files."""
    for task in ("embedded", "embedded_sparse"):
        found = tasks["embedded_compare"][task]["default_against"]["trl_g8"]["trl_g8"]
        repeats = [
            tasks[name][task]["best_against"]["trl_g8"]["trl_g8"] for name in ("embedded_others", "embedded_sizes")
        ]
        once, spread = sooner(found, "{:.1f}").split(" ", 1)
        again = " and ".join(sooner(each, "{:.1f}") for each in repeats)
        yield f"| **{once} times sooner** {spread}; repeats: {again} |"
    for name in ("kl", "silent_kl"):
        found = points[name]["against_control"]
        once = "**{:.1f} times sooner** [{:.1f}, {:.1f}]".format(*(found[end] for end in ("median", "low", "high")))
        ahead = points[name]["equal_seconds"]["default"]["difference"]
        yield once
        yield tables.cell(ahead, "mean", "{:+.1f}", 100).replace(" ", " pp ", 1)
    said = {check["name"]: check for check in checks}
    drawn = said["2 both levels, dppo, grpo: 2000 draws on the model"]
    spread = float(drawn["what"].rpartition(" ")[2])
    yield f"| {drawn['figure']:.4f} +- {spread:.4f} |"
    cppo = said["5 control: CPPO's rule: 500 draws on the model"]
    yield f"which is biased: {cppo['figure']:.2f} |"


def test_the_readme_has_the_figures_of_the_files():
    tasks = {name: read(name)["tasks"] for name in ("embedded_compare", "embedded_others", "embedded_sizes")}
    files = tasks, read("regimes")["regimes"], read("verify")["checks"]
    assert [cell for cell in readme_cells(*files) if cell not in README] == []
    for task in ("embedded", "embedded_sparse"):
        tasks["embedded_sizes"][task]["best_against"]["trl_g8"]["trl_g8"]["median"] += 1
    for name in ("kl", "silent_kl"):
        files[1][name]["against_control"]["median"] += 0.2
        files[1][name]["equal_seconds"]["default"]["difference"]["mean"] += 0.2
    for check in files[2]:
        check["figure"] += 0.2 if isinstance(check.get("figure"), float) else 0
    assert not any(cell in README for cell in readme_cells(*files))


def test_how_well_steps_were_predicted_is_that_of_the_file():
    errors = [abs(row["error"]) for row in read("plan")["rows"] if "error" in row]
    page = (ROOT / "docs" / "savings.md").read_text()
    assert f"off by {np.median(errors):.1%} (median) and {max(errors):.1%} (worst)" in page


def test_the_frozen_table_is_that_of_the_file():
    rows = read("frozen")["rows"]
    (row,) = [r for r in rows if (r["name"], r["level"], r["completion_rate"]) == ("dppo", "completions", 0.5)]
    bias = f"{row['relative_bias']:.3f} [{row['bias_low']:.3f}, {row['bias_high']:.3f}]"
    assert f"| `dppo` | {bias} | {row['added_variance']:.2f} |" in PAGE
    dapo, greso = (next(r for r in rows if (r["name"], r["level"]) == (name, "nothing")) for name in ("dapo", "greso"))
    bias = f"{greso['relative_bias']:.3f} [{greso['bias_low']:.3f}, {greso['bias_high']:.3f}]"
    assert f"bias **{dapo['relative_bias']:.3f}** and **{bias}**" in PAGE


def drafts_table(rows):
    """The lines of docs/drafts.md, from the file."""
    return [
        f"| {r['prompts']} x {r['samples']} | {r['age_steps'] or 'no drafts'} | {r['accepted_share']:.0%} "
        f"| {r['whole_share']:.0%} | {r['plain_cpu_median']:.2f} | {r['drafted_cpu_median']:.2f} "
        f"| {r['speedup_cpu_median']:.2f} [{r['speedup_cpu_low']:.2f}, {r['speedup_cpu_high']:.2f}] |"
        for r in rows
    ]


def test_the_table_of_drafts_is_that_of_the_file():
    rows = read("drafts")["rows"]
    page = (ROOT / "docs" / "drafts.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| \d+ x", line)]
    rows = [row for row in rows if row["age_steps"] in (None, 0, 12)]
    assert lines == drafts_table(rows) and len(rows) == 6
    assert drafts_table([{**rows[1], "speedup_cpu_median": 3.0}])[0] not in lines
    epoch = [r["speedup_cpu_median"] for r in rows if r["age_steps"] == 12]
    said = "{:.1f} times at 8 completions, {:.1f} at 4, {:.1f} at 2.".format(*epoch)
    assert said in " ".join(page.split())


def test_what_ranks_wait_is_that_of_the_file():
    rows = read("scale")["rows"]
    found = {(row["figure"], row["size"]): row["median"] for row in rows}
    page = (ROOT / "docs" / "ranks.md").read_text()
    for ranks, prompts in ((8, 2), (8, 8), (64, 8), (512, 8)):
        names = ("idle_share_at_home", "idle_share_dealt", "share_of_tokens_moved")
        shares = [f"{found[f'{name}_{prompts}_prompts_a_rank', ranks]:.2f}".removeprefix("0") for name in names]
        assert f"| {ranks} | {prompts} | {' | '.join(shares)} |" in page
    taken = [found[name, 2**20] / 1e3 for name in ("plan_step", "deal_to_512_ranks")]
    assert "takes {:.1f} s and {:.1f} s on one core".format(*taken) in page
    assert f"{found['memory_of_history', 10**8] / 1e9:.1f} GB" in page


def supervised_table(rows):
    """The lines of docs/supervised.md, from the file."""
    took = {(r["contestant"], r["seed"]): r["cpu_seconds"] for r in rows if r["what"] == "race"}
    rate = {r["contestant"]: r["rate"] for r in rows if r["what"] == "tuning" and r["chosen"]}
    for name in list(rate)[1:]:
        sooner = {seed: took["stock", seed] / took[name, seed] for seed in range(5)}
        found = seed_interval(sooner, np.median)
        yield f"| {name} | {rate[name]:g} | {found.centre:.2f} [{found.low:.2f}, {found.high:.2f}] |"


def test_the_table_of_supervised_runs_is_that_of_the_file():
    rows = read("supervised")["rows"]
    page = (ROOT / "docs" / "supervised.md").read_text()
    assert all(line in page for line in supervised_table(rows)) and len(list(supervised_table(rows))) == 9
    for row in rows:
        if row["what"] == "race" and row["contestant"] != "stock":
            row["cpu_seconds"] /= 2
    assert not any(line in page for line in supervised_table(rows))


PRIORS = {
    "difficulty": ("docs/difficulty.md", ("mean over all", "length"), {"strength": 2.0}),
    "values": ("docs/a_star_po.md", ("mean over all", "reference, 2 samples", "reference, 8 samples"), {}),
}
"""Of the files that ask what is worth knowing before a prompt's first visit: the page, the priors, what else."""


def prior_lines(rows, priors, wanted):
    """Areas under the curve by epoch, and mean squares of advantages by group size and epoch."""
    figures = {"auc": {"own_history": True, "step": None}, "advantage_square": wanted}

    def figure(name, **of):
        of = {**{key: value for key, value in figures[name].items() if any(key in row for row in rows)}, **of}
        (row,) = [row for row in rows if row["figure"] == name and of.items() <= row.items()]
        return row["value"]

    for prior in priors:
        cells = [f"{figure('auc', prior=prior, epoch=epoch):.2f}" for epoch in range(3)]
        yield f"| {prior}, with own history | {' | '.join(cells)} |"
    for epoch in (0, 1):
        for size in (1, 2, 4):
            of = {"completions": size, "epoch": epoch}
            cells = [f"{figure('advantage_square', prior=prior, **of):.3f}" for prior in priors]
            yield f"| {size} | {epoch + 1} |", f" {' | '.join(cells)} |"


@pytest.mark.parametrize("name", PRIORS)
def test_the_tables_of_priors_are_those_of_their_files(name):
    page, priors, wanted = PRIORS[name]
    rows = read(name)["rows"]
    lines = (ROOT / page).read_text().splitlines()

    def there(found):
        ends = (found, found) if isinstance(found, str) else found
        return any(line.startswith(ends[0]) and line.endswith(ends[1]) for line in lines)

    assert all(map(there, prior_lines(rows, priors, wanted)))
    wrong = [{**row, "value": row.get("value", 0) + 0.1} for row in rows]
    assert not any(map(there, prior_lines(wrong, priors, wanted)))
