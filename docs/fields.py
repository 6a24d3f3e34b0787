"""What the reference makes of settings: the text of a field is in its metadata, where its help comes from, too.

griffe, which reads the code for mkdocstrings, calls this by its name (``extensions`` in mkdocs.yml): ``make docs``.
"""

import ast
from typing import Any

import griffe  # pyright: ignore[reportMissingImports]


class FieldTexts(griffe.Extension):
    """Takes ``field(default=..., metadata={"help": ...})`` apart: its text becomes the docstring."""

    def on_attribute_instance(self, *, node: Any, attr: Any, **kwargs: Any) -> None:
        """Called by griffe for every attribute that it has read."""
        call = getattr(node, "value", None)
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "field"):
            return
        words = {word.arg: word.value for word in call.keywords}
        if "metadata" in words and "default" in words:
            text = ast.literal_eval(words["metadata"])["help"]
            attr.docstring = griffe.Docstring(text, parent=attr)
            attr.value = next(argument.value for argument in attr.value.arguments if argument.name == "default")
