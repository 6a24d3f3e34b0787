"""``dppo report``: where the page goes, what is printed, and bad input."""

from small_runs import write_lines

from dppo.lab.cli.main import main


def test_a_run_gets_a_page_in_its_own_folder_or_where_output_says(tmp_path, capsys):
    run, page = tmp_path / "run", tmp_path / "new" / "page.html"
    write_lines(run / "metrics.jsonl", [{"step": step, "prune/kept_share": 0.5} for step in (1, 2)])
    assert main(["report", str(run)]) == 0 and (run / "report.html").is_file()
    words = ["report", str(run), "--output", str(page)]
    assert main(words) == 2
    assert f"there is no folder {page.parent}. Make it first." in capsys.readouterr().err
    page.parent.mkdir()
    assert main(words) == 0 and "<title>run: dppo report</title>" in page.read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert f"wrote {page}" in printed
    assert "not drawn, for lack of records (the page says which): Accuracy against seconds" in printed
    assert main([*words[:-1], str(tmp_path / "page.txt")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dppo report: ") and "page.html" in error and error.count("\n") == 1
