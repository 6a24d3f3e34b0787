"""Functions with stated properties: what a score, a rule or a schedule needs is data on it, not its identity."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A named function. Subclasses state properties of it, which a test checks. Call it as the function."""

    name: str
    compute: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.compute(*arguments)

    @property
    def __name__(self) -> str:  # what reports call a function
        return self.name
