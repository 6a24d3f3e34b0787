"""Dimension letters: each that a name ends in is defined, once, and pages say the same."""

import ast
import re
from pathlib import Path

import dppo.types

HERE = Path(__file__).parent.parent
SOURCES = sorted(path for part in ("dppo", "answer_judge", "dppo_lab") for path in (HERE / part).rglob("*.py"))
DEFINED = dict(re.findall(r"^\| ``(\w)`` \| (.*) \|$", dppo.types.__doc__ or "", re.MULTILINE))


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
    assert len(DEFINED) == len(re.findall(r"^\| ``\w`` ", dppo.types.__doc__ or "", re.MULTILINE))


def test_the_glossary_has_the_same_table():
    rows = re.findall(r"^\| `(\w)` \| (.*) \|$", (HERE / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert dict(rows) == DEFINED and len(rows) == len(DEFINED)


def test_the_check_sees_a_letter():
    assert letters("x = weight_XN[0] + f(logp_N1=1, cap_1=a.b_ZZ)") == {"X": "weight_XN", "N": "logp_N1", "Z": "b_ZZ"}
    assert letters("X_N = MAX_T = sum_of = f_") == {}


HEADS = {"H", "Hkv"}
"""Heads of attention, as torch writes the shapes of its kernels."""
TRL = {"b", "Tp"}
"""Completions of one call, and tokens of a prompt: in ``dppo/trl`` alone, where TRL's tensors are cut up."""


def shape_letters(text: str) -> set[str]:
    """Dimensions of the shapes in a text that are written as letters: ``(N, T)``, ``(S + 1,)``, ``(1, H, T, D)``."""
    part = r"(?:[A-Z][a-z]{0,2}|[a-z]|\d+)(?: \+ 1)?"
    shapes = re.findall(rf"(?<![\w`@])\(({part}(?:, {part})+|{part},)\)(?!`)", text)
    found = {part.strip().removesuffix(" + 1") for shape in shapes for part in shape.split(",")}
    return {letter for letter in found if letter and not letter.isdigit()}


def test_shapes_in_docstrings_have_letters_of_the_table():
    seen = set()
    for path in SOURCES:
        part = path.relative_to(HERE).parts[1]
        if part in ("grading", "evaluation"):  # pairs of numbers, no arrays
            continue
        strings = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        found = {letter for text in strings if isinstance(text, str) for letter in shape_letters(text)}
        seen |= found
        allowed = set(DEFINED) | (HEADS if part == "packing" else TRL if part == "trl" else set())
        assert found <= allowed, (path, found - allowed)
    assert {"N", "P", "Q", "T", "H"} <= seen


def test_the_check_sees_a_shape():
    assert shape_letters("(n,) and (X, T), (1, Hkv, T, D), (S + 1,); (R,) but f(y, z), (a pair, or two), (B)") == {
        *("n", "X", "T", "Hkv", "D", "S", "R")
    }
