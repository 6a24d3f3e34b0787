"""The sympy expression of canonical LaTeX, by math-verify's grammar."""

from functools import lru_cache
from typing import Any

from dppo.data.grading.patterns import pattern
from dppo.data.grading.text import Unreadable

_NUMBERS = pattern(r"(?<=\\variable\{)\d+(?=\})", {r"\variable{x}+\variable{12}": "12"})


def parse(latex: str) -> Any:
    """The sympy expression of what ``canonical`` wrote.

    Numbers, too, go through the grammar as names, and are put in their places afterwards: the library hands the text of
    a number to ``sympy.Number``, which evaluates it as Python. So formulas of one shape are parsed once.

    Raises:
        Unreadable: the library's grammar does not have it.
    """
    from sympy import Integer, Symbol

    values = _NUMBERS.findall(latex)
    places = iter(range(len(values)))
    shape = _NUMBERS.sub(lambda _: str(next(places)), latex)
    try:
        return _shape(shape).xreplace({Symbol(str(place)): Integer(int(value)) for place, value in enumerate(values)})
    except MemoryError:
        raise
    except Exception as error:  # the generated parser raises bare Exception, sympy whatever its functions raise
        raise Unreadable(f"{type(error).__name__}: {str(error)[:80]}") from error


@lru_cache(maxsize=2048)
def _shape(latex: str) -> Any:
    """The sympy expression of canonical LaTeX whose numbers are names."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    config = ConversionConfig(
        interpret_as_mixed_fractions=False,
        interpret_simple_eq_as_assignment=False,
        interpret_contains_as_eq=False,
        lowercase_symbols=False,
    )
    return latex2sympy(latex, is_real=None, convert_degrees=False, normalization_config=None, conversion_config=config)
