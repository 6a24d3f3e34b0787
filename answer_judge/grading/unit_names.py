"""Units of measure by name, from ``units.tsv``: what each measures, and how many base units it is.

Names that are units among words alone are none in a formula, where ``cd`` is a product.
"""

import csv
from fractions import Fraction
from pathlib import Path

Names = dict[str, tuple[dict[str, int], Fraction]]
IN_FORMULAS: Names = {}
TABLE: Names = {}
"""Base units and the factor of every spelling."""
with Path(__file__).with_name("units.tsv").open(encoding="utf-8", newline="") as _file:
    for _row in csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE):
        _base = {name: int(power or 1) for name, _, power in (unit.partition("^") for unit in _row["base"].split())}
        for _spelling in _row["spellings"].split():
            TABLE.setdefault(_spelling, (_base, Fraction(_row["factor"])))
            if _row["where"] == "formulas":
                IN_FORMULAS[_spelling] = TABLE[_spelling]
