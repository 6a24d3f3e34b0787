"""Dimension letters: each that a name ends in is in the glossary, once."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent.parent
SOURCES = sorted(path for part in ("dppo", "answer_judge", "dppo_lab") for path in (HERE / part).rglob("*.py"))
DEFINED = re.findall(r"^\| `(\w)` \| ", (HERE / "docs" / "glossary.md").read_text(), re.MULTILINE)


def letters(code: str) -> dict[str, str]:
    """Letters of the dimensions in the names of a file, each with one name that has it."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
        suffix = re.fullmatch(r"_?[a-z][a-z0-9_]*_([A-Z0-9]+)", name or "")
        found |= dict.fromkeys(suffix[1], name) if suffix else {}
    return {letter: name for letter, name in found.items() if not letter.isdigit()}


def test_every_letter_that_a_name_ends_in_is_defined_once():
    found = {}
    for path in SOURCES:
        found |= letters(path.read_text())
    assert set(found) == set(DEFINED), {letter: found.get(letter) for letter in set(found) ^ set(DEFINED)}
    assert len(DEFINED) == len(set(DEFINED))


def test_the_check_sees_a_letter():
    assert letters("x = weight_XN[0] + f(logp_N1=1, cap_1=a.b_ZZ)") == {"X": "weight_XN", "N": "logp_N1", "Z": "b_ZZ"}
    assert letters("X_N = MAX_T = sum_of = f_") == {}
