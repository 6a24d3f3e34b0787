"""docs/results.md and the README say what the files of results say."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()


@pytest.fixture(scope="module")
def first():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import first_comparison

    yield first_comparison
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def record():
    return json.loads((RESULTS / "embedded_compare.json").read_text())


def test_the_tables_are_those_of_the_file(first, record):
    for stage in ("main", "ablation"):
        assert first.markdown(record, record["stages"][stage]) in PAGE
    assert first.rates(record) in PAGE
    wrong = {**record, "speedup": {**record["speedup"], "dppo": record["speedup"]["trl"]}}
    assert first.markdown(wrong, record["stages"]["main"]) not in PAGE


def test_the_headline_is_that_of_the_file(record):
    found = record["speedup"]["dppo"]["time_to_trl_final"]
    said = f"1 / {found['median']:.2f} (95% interval {found['low']:.2f} to {found['high']:.2f})"
    assert said in PAGE and found["median"] >= 2.37 and found["low"] > 2
    assert f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" in (ROOT / "README.md").read_text()
    assert len(found["per_seed"]) == 10 and record["methods"]["dppo"]["to_target"]["reached"] == "10 of 10"


def test_the_frozen_table_is_that_of_the_file():
    rows = json.loads((RESULTS / "frozen.json").read_text())["rows"]
    (row,) = [r for r in rows if (r["name"], r["level"], r["completion_rate"]) == ("dppo", "completions", 0.5)]
    bias = f"{row['relative_bias']:.3f} [{row['bias_low']:.3f}, {row['bias_high']:.3f}]"
    assert f"| `dppo` | {bias} | {row['added_variance']:.2f} |" in PAGE


def drafts_table(rows):
    """The lines of docs/drafts.md, from the file."""
    return [
        f"| {r['prompts']} x {r['samples']} | {r['age_steps'] or 'no drafts'} | {r['accepted_share']:.0%} "
        f"| {r['whole_share']:.0%} | {r['plain_cpu_median']:.2f} | {r['drafted_cpu_median']:.2f} "
        f"| {r['speedup_cpu_median']:.2f} [{r['speedup_cpu_low']:.2f}, {r['speedup_cpu_high']:.2f}] |"
        for r in rows
    ]


def test_the_table_of_drafts_is_that_of_the_file():
    rows = json.loads((RESULTS / "drafts.json").read_text())["rows"]
    page = (ROOT / "docs" / "drafts.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| \d+ x", line)]
    assert lines == drafts_table(rows) and len(rows) == 12
    assert drafts_table([{**rows[1], "speedup_cpu_median": 3.0}])[0] not in lines
    epoch = [r["speedup_cpu_median"] for r in rows if r["age_steps"] == 12]
    said = "{:.1f} times at 8 completions, {:.1f} at 4, {:.1f} at 2.".format(*epoch)
    assert said in " ".join(page.split())


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_no_page_has_a_place_left_to_fill(page):
    assert not re.search(r"@@|TODO|\?\?\?", page.read_text())


def test_what_ranks_wait_is_that_of_the_file():
    rows = json.loads((RESULTS / "scale.json").read_text())["rows"]
    found = {(row["figure"], row["size"]): row["median"] for row in rows}
    page = (ROOT / "docs" / "ranks.md").read_text()
    for ranks, prompts in ((8, 2), (8, 8), (64, 8), (512, 8)):
        names = ("idle_share_at_home", "idle_share_dealt", "share_of_tokens_moved")
        shares = [f"{found[f'{name}_{prompts}_prompts_a_rank', ranks]:.2f}".removeprefix("0") for name in names]
        assert f"| {ranks} | {prompts} | {' | '.join(shares)} |" in page
    taken = [found[name, 2**20] / 1e3 for name in ("plan_step", "deal_to_512_ranks")]
    assert "takes {:.1f} s and {:.1f} s on one core".format(*taken) in page
    assert f"{found['memory_of_history', 10**8] / 1e9:.1f} GB" in page
