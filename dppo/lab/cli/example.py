"""``dppo example [NAME]``: list the examples, or write one into the current folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dppo.lab.cli.words import print_names
from dppo.lab.shipped import described, examples, write_example


def main(words: Sequence[str]) -> int:
    """List the examples, or write one into ``examples`` of the current folder; 0."""
    parser = argparse.ArgumentParser(prog="dppo example", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the list")
    name = parser.parse_args(list(words)).name
    if name is None:
        print_names({each: described(path) for each, path in examples().items()})
        print("\ndppo example NAME writes one to examples/ in the current folder.")
        return 0
    written = write_example(name, Path())
    print("\n".join(map(str, written)))
    page = next((path for path in written if path.name == "README.md"), "in its first lines")
    print(f"\nHow to run it: {page}")
    return 0
