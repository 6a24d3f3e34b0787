"""``dppo example [NAME]``: what examples there are, or one of them written into the current folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dppo.lab.shipped import HERE, described, examples, write_example


def main(words: Sequence[str]) -> int:
    """List the examples, or write one into ``examples`` of the current folder; 0."""
    parser = argparse.ArgumentParser(
        prog="dppo example",
        description=f"Without a name, list the examples; else write one to {HERE}/NAME in the current folder.",
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the list")
    name = parser.parse_args(list(words)).name
    if name is None:
        found = examples()
        width = max(map(len, found))
        for each, path in found.items():
            print(f"{each:{width}}  {described(path)}")
        print(f"\ndppo example NAME writes one to {HERE}/ in the current folder.")
        return 0
    written = write_example(name, Path())
    print("\n".join(map(str, written)))
    page = next((path for path in written if path.name == "README.md"), None)
    print(f"\nHow to run it: {page}" if page else "\nHow to run it is in its first lines.")
    return 0
