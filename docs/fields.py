"""What the reference makes of settings: the text of a field is where its help comes from, too.

griffe, which reads the code for mkdocstrings, calls this by its name (``extensions`` in mkdocs.yml): ``make docs``.
"""

import ast
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import griffe  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parents[1]))

from dppo import settings  # nothing but the standard library


class FieldTexts(griffe.Extension):
    """Gives settings their texts as docstrings: those of ``setting(default, text)``, ``same(name)`` and ``of_trl``."""

    def on_attribute_instance(self, *, node: Any, attr: Any, **kwargs: Any) -> None:
        """Called by griffe for every attribute that it has read."""
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call):
            return
        made = ast.unparse(call.func)
        if made == "setting":
            text, attr.value = ast.literal_eval(call.args[1]), ast.unparse(call.args[0])
        elif made in ("same", "of_trl"):
            told = {each.name: each for each in fields(getattr(settings, attr.parent.name))}[attr.name]
            text, attr.value = told.metadata["help"], repr(told.default)
        else:
            return
        attr.docstring = griffe.Docstring(text, parent=attr)
