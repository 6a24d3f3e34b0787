"""``dppo report``: where the page goes, what is printed, and bad input."""

import sys
from pathlib import Path

from dppo_lab.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
import report_folders as made


def small_run(folder, steps=(1, 2)):
    """Logs that make one figure."""
    made.write_lines(folder / "metrics.jsonl", [{"step": step, "prune/kept_share": 0.5} for step in steps])
    return folder


def test_a_run_gets_a_page_in_its_own_folder(tmp_path, capsys):
    run = small_run(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert (run / "report.html").is_file()
    assert (run / "report_figures" / "prune-kept_share.svg").is_file()
    printed = capsys.readouterr().out
    assert f"wrote {run / 'report.html'}, and 2 figure files into report_figures beside it" in printed


def test_output_names_the_page_and_its_figures(tmp_path, capsys):
    runs = [small_run(tmp_path / name) for name in ("a\x1b[31m", "b")]
    words = ["report", *map(str, runs), "--output", str(tmp_path / "new" / "both.html")]
    assert main(words) == 2
    assert f"there is no folder {tmp_path / 'new'}. Make it first." in capsys.readouterr().err
    (tmp_path / "new").mkdir()
    assert main(words) == 0
    page = (tmp_path / "new" / "both.html").read_text(encoding="utf-8")
    assert "and b: dppo report</title>" in page
    assert (tmp_path / "new" / "both_figures" / "prune-kept_share.png").is_file()
    printed = capsys.readouterr().out
    assert "both_figures" in printed and "\x1b" not in printed
    assert "not drawn, for lack of records (the page says which): Accuracy against seconds" in printed


def test_a_page_of_another_ending_is_refused_in_one_line(tmp_path, capsys):
    assert main(["report", str(small_run(tmp_path / "run")), "--output", str(tmp_path / "page.txt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dppo report: ") and "page.html" in error and error.count("\n") == 1
