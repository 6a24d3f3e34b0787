"""``dppo report``: where the page goes, what is printed, and bad input."""

import json

from dppo.lab.cli.main import main


def small_run(folder):
    """Logs that make one figure."""
    folder.mkdir()
    lines = [{"step": step, "prune/kept_share": 0.5} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_gets_a_page_in_its_own_folder_or_where_output_says(tmp_path, capsys):
    runs = [small_run(tmp_path / name) for name in ("a\x1b[31m", "b")]
    assert main(["report", str(runs[1])]) == 0 and (runs[1] / "report.html").is_file()
    words = ["report", *map(str, runs), "--output", str(tmp_path / "new" / "both.html")]
    assert main(words) == 2
    assert f"there is no folder {tmp_path / 'new'}. Make it first." in capsys.readouterr().err
    (tmp_path / "new").mkdir()
    assert main(words) == 0
    assert "and b: dppo report</title>" in (tmp_path / "new" / "both.html").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert f"wrote {tmp_path / 'new' / 'both.html'}" in printed and "\x1b" not in printed
    assert "not drawn, for lack of records (the page says which): Accuracy against seconds" in printed
    assert main([*words[:-1], str(tmp_path / "page.txt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dppo report: ") and "page.html" in error and error.count("\n") == 1
