"""The tokens of a formula, and the sympy expression of canonical LaTeX by math-verify's grammar."""

from functools import lru_cache
from typing import Any

from dppo.grading.patterns import pattern
from dppo.grading.text import Unreadable

_TOKEN = pattern(
    r"(?P<number>\d*\.?\d*\\(?:overline|bar)\s*\{\d+\}|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,4}(?![\w.]))?)"
    r"|(?P<text>\\text\{[^{}]*\})"
    r"|(?P<accent>\\(?:d?dot|bar|hat|vec|tilde|widehat|widetilde|overline|overrightarrow)\s*(?:\{\s*\\?[A-Za-z]+\s*\}|[A-Za-z]))"
    r"|(?P<command>\\(?:[A-Za-z]+|.))|(?P<letter>[A-Za-z])|(?P<sign>[-+/:^_!|()\[\]{},'%])|(?P<space>\s+)",
    (r"0.\overline{6}", "1.5e-3", r"\text{max}", r"\vec{AB}", r"\sqrt", "x", "^", " "),
)
LETTERS = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu",
    "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "hbar", "ell", "partial", "odot",
    "nabla", "mho", "triangle", "angle",
))  # fmt: skip
"""Commands that stand for a letter or a name."""
TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
FUNCTIONS = TRIGONOMETRIC | {
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg", "exp", "cis",
}  # fmt: skip
"""Functions of one argument."""
OF_SEVERAL = frozenset(("max", "min", "gcd", "lcm"))
_LONGEST = 2000
_PROSE = pattern(r"(?<![\\A-Za-z{])(?![A-Z]{4,}(?![A-Za-z]))[A-Za-z]{4,}", {r"\alpha ABCD xyz where x": "where"})
"""A run of letters that is a word, not a product."""


def tokens(text: str) -> list[tuple[str, str]]:
    """The text as (kind, token) pairs, without spaces, and ("end", "") after them."""
    if len(text) > _LONGEST:
        raise Unreadable("too long")
    if word := _PROSE.search(text):
        raise Unreadable(f"the word {word[0]!r} in a formula")
    found_tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise Unreadable(f"character {text[position]!r}")
        position = found.end()
        if found.lastgroup != "space":
            found_tokens.append((str(found.lastgroup), found[0]))
    return [*found_tokens, ("end", "")]


_NUMBERS = pattern(r"(?<=\\variable\{)\d+(?=\})", {r"\variable{x}+\variable{12}": "12"})


def parse(latex: str) -> Any:
    """The sympy expression of what ``canonical`` wrote.

    Numbers, too, go through the grammar as names, and are put in their places afterwards: the library hands the text of
    a number to ``sympy.Number``, which evaluates it as Python. So formulas of one shape are parsed once.
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
