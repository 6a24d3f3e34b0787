"""``dppo report RUN_OR_COMPARISON [--output FILE.html]``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dppo.lab.runs.words import check_output


def main(words: Sequence[str]) -> int:
    """Write the page, and say where it is and the figures that lack their records."""
    parser = argparse.ArgumentParser(
        prog="dppo report",
        description="One page about a run or a comparison that opens without a network. Its panels: dppo docs compare.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN_OR_COMPARISON", help="output_dir of a run, or of dppo compare")
    add("--output", type=Path, metavar="FILE.html", help="the page (default: report.html in the folder)")
    options = parser.parse_args(words)
    check_output(options.output)
    from dppo.lab.report import write_report

    output = options.output or options.folder / "report.html"
    written = write_report(options.folder, output)
    print(f"wrote {written.page}")
    if written.missing:
        print(f"not drawn, for lack of records (the page says which): {', '.join(written.missing)}")
    return 0
