"""The notebook of ``examples`` runs from top to bottom, and the figures of the proof are right."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from matplotlib import pyplot

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_look.ipynb"


def check(printed: str, pictures: int, fall: float) -> None:
    """Fail unless the unbiased rule's distance fell by this factor and the biased one's did not.

    A line of a rule has the distances to the full gradient from the mean of one draw, of some draws, and of all.
    """
    lines = dict(re.findall(r"^(\w+): (.* after .*)$", printed, flags=re.MULTILINE))
    unbiased, biased = ([float(part.split()[0]) for part in lines[name].split(", ")] for name in ("dppo", "cppo"))
    assert unbiased[-1] < unbiased[0] / fall and len(set(biased)) == 1 and biased[0] > 0.1
    exact = dict(re.findall(r"^(\w+) +relative bias over all outcomes: (\S+)$", printed, flags=re.MULTILINE))
    assert max(float(exact[name]) for name in ("dppo", "dppo_threshold")) < 1e-12
    assert min(float(exact[name]) for name in ("cppo", "dppo_unweighted")) > 0.1
    assert pictures == 3 and "no gradient" in printed and "of them on one core" in printed


@pytest.mark.slow
def test_its_cells_run_at_a_small_size(tmp_path, monkeypatch, capsys):
    pictures, names = [], {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(NOTEBOOK.parent)
    monkeypatch.setattr(pyplot, "show", lambda: pictures.append(pyplot.gcf()))
    text = NOTEBOOK.read_text().replace("SMALL = False", "SMALL = True").replace("(100, 50, 1, 12)", "(60, 50, 1, 6)")
    for cell in nbformat.reads(text, as_version=4)["cells"]:
        if cell["cell_type"] == "code":
            exec(cell["source"], names)
    pyplot.close("all")
    assert names["SMALL"] and names["WARM_UP"] == 60
    check(capsys.readouterr().out, len(pictures), fall=2)


def test_what_is_stored_is_of_a_whole_run_and_small():
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    check(printed, sum("image/png" in output.get("data", {}) for output in outputs), fall=8)
    assert NOTEBOOK.stat().st_size < 300_000
