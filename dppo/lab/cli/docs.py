"""``dppo docs [PAGE]``: what pages there are, or one of them, of the installed version."""

import argparse
import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markdown import Markdown

from dppo.errors import ConfigError, did_you_mean
from dppo.lab.cli.words import print_names
from dppo.lab.shipped import PAGES


def main(words: Sequence[str]) -> int:
    """List the pages, or print one: as Markdown into a file or a pipe, laid out on a terminal; 0."""
    parser = argparse.ArgumentParser(prog="dppo docs", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("page", nargs="?", metavar="PAGE", help="of the list")
    name = parser.parse_args(list(words)).page
    pages = {path.stem: path for path in sorted(PAGES.glob("*.md"))}
    if name is None:
        print_names({each: path.read_text("utf-8").splitlines()[0].strip("# ") for each, path in pages.items()})
        return 0
    if name not in pages:
        raise ConfigError(f"there is no page {name!r}. {did_you_mean(name, pages)}List them: dppo docs")
    text = re.sub(r"<!--.*?-->\n?", "", pages[name].read_text("utf-8"), flags=re.DOTALL)
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text)
    return 0
