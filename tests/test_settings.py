"""The texts of fields are in one place, and can be read there without running it."""

import ast
from dataclasses import fields
from pathlib import Path

import dppo.settings
from dppo.settings import OwnSettings, with_default


def written(code: str) -> dict[str, str]:
    """The texts of fields as whoever reads code finds them, docs/fields.py for one: by name, where they are literal."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            words = {word.arg: word.value for word in node.value.keywords}
            if "default" in words and isinstance(words.get("metadata"), ast.Dict):
                found[ast.unparse(node.target)] = ast.literal_eval(words["metadata"])["help"]
    return found


def test_texts_are_literal_so_that_the_reference_has_them_too():
    texts = written(Path(dppo.settings.__file__).read_text())
    assert texts == {each.name: each.metadata["help"] for each in fields(OwnSettings)} and len(texts) > 25


def test_a_text_that_is_computed_would_be_missing():
    assert written("class A:\n    a: int = field(default=1, metadata=told('x'))") == {}


def test_a_default_is_said_once():
    assert with_default("A share.", 0.5) == "A share. (default: 0.5)"
    assert with_default("A share. Default: the method's.", None) == "A share. Default: the method's."
    assert with_default("A share.", None) == with_default("A share.", "") == "A share. (default: none)"
    assert with_default("A switch.", True) == "A switch. (default: true)"
    assert with_default("A count.", 1) == "A count. (default: 1)" and with_default("A sum.", 0.0).endswith(": 0.0)")
