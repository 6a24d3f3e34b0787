"""The tokens of a formula, names of symbols as letters and digits, and canonical LaTeX read by math-verify."""

from collections.abc import Mapping
from functools import lru_cache
from math import log10
from typing import Any

from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.patterns import pattern

_TOKEN = pattern(
    r"(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,4}(?![\w.]))?)"
    r"|(?P<text>\\text\{[^{}]*\})"
    r"|(?P<accent>\\(?:d?dot|bar|hat|vec|tilde|widehat|widetilde|overline|overrightarrow)\s*(?:\{\s*\\?[A-Za-z]+\s*\}|[A-Za-z]))"
    r"|(?P<command>\\(?:[A-Za-z]+|.))|(?P<letter>[A-Za-z])|(?P<sign>[-+/:^_!|()\[\]{},'%])|(?P<space>\s+)",
    ("1.5e-3", r"\text{max}", r"\vec{AB}", r"\sqrt", "x", "^", " "),
)
LETTERS = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu",
    "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "hbar", "ell", "partial", "odot",
    "nabla", "mho",
))  # fmt: skip
"""Commands that stand for a letter or a name."""
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


_SIGN = pattern(r"[^A-Za-z0-9]", {"a+b": "+"})
_COMMANDS = pattern(r"\\(?:text|mathrm)(?![A-Za-z])|[\\{}\s]", {r"\text{max}": r"\text", r"\alpha": "\\"})
_D = r"(?:d|\\partial)"
_OF = r"(?:\\?[A-Za-z]+(?:_(?:\{[^{}]*\}|\w))?)"
DERIVATIVE = pattern(
    rf"\\frac\{{{_D}(?:\^(?P<n>\d|\{{\d\}}))?(?P<of>{_OF})\}}\{{{_D}(?P<wrt>\\?[A-Za-z]+)(?:\^(?P<m>\d|\{{\d\}}))?\}}",
    {
        r"2\frac{dx}{dt}+1": r"\frac{dx}{dt}",
        r"\frac{\partial^{2}u}{\partialx^{2}}": r"\frac{\partial^{2}u}{\partialx^{2}}",
    },
)


def symbol_name(base: str, below: str = "", primes: int = 0, wrt: str = "") -> str:
    """A name of letters and digits alone, for a symbol with its subscript or a derivative."""
    name = _plain(base) + (f"SUB{_plain(below)}" if below else "")
    if primes:
        name = f"DER{primes}OF{name}" + (f"WRT{_plain(wrt)}" if wrt else "")
    return name


def _plain(text: str) -> str:
    r"""Letters and digits of a name; other signs by their code."""
    return _SIGN.sub(lambda match: f"Q{ord(match[0]):x}", _COMMANDS.sub("", text))


_FUNCTION_LETTERS = "fghFGHpPqQNSTVuvwWIrR"
_NAME = pattern(
    r"(?P<symbol>(?:\\(?:text|overline|angle|triangle|vec|bar|hat|dot|ddot)\s*(?:\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z])"
    r"|\{\s*\\?[A-Za-z]+(?:\s*_\s*\w+)?\s*\}|\\[A-Za-z]+|[A-Za-z])"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\\?\w+))?'*)(?:\s*\((?P<argument>[^()]*)\))?"
    r"|(?P<size>\|\s*\\?[A-Za-z]+\s*(?:\{[^{}]*\})?\s*\|)"
    r"|(?P<segment>\|?\s*[A-Z]{1,5}\s*\|?|\[[A-Z]+\]|\\(?:angle|triangle|overline)\s*\{?(?:\s*[A-Z](?:_\{?\w+\}?)?)+\s*\}?)"
    r"|(?P<words>[A-Za-z]{3,}(?: [A-Za-z]+)*)"
    r"|(?P<point>\(\s*\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\s*,\s*\\?[A-Za-z]+\s*(?:_\{?\w+\}?)?)+\s*\))",
    (
        r"f_{1}'(x)",
        r"|\vec{a}|",
        r"\angle ABC",
        "side length",
        "(x, y)",
    ),
)
_SPACING = pattern(r"[{}\s]|\\text(?![A-Za-z])", {r"\text{max}": r"\text", "x_{1}": "{"})
_ONE_LETTER = pattern(r"[A-Za-z]|\\[a-z]+", {"t": "t", r"\theta": r"\theta"})
_BARS = pattern(r"[{}\s|]", {"a|b": "|"})


def name_of(text: str) -> tuple[str, str] | None:
    """The name and the argument a side is, or None where it is more than a name."""
    found = _NAME.fullmatch(text)
    if not found:
        return None
    argument = (found["argument"] or "").strip()
    symbol = _SPACING.sub("", found["symbol"] or "")
    if symbol in (r"\pi", r"\infty"):
        return None
    applied = _ONE_LETTER.fullmatch(argument) or symbol[:1] in _FUNCTION_LETTERS or symbol[:1] == "\\"
    if found["argument"] is not None and not applied:
        return None  # x(x+1) is a product
    return (symbol or _BARS.sub("", text)), argument


_NUMBERS = pattern(r"(?<=\\variable\{)\d+(?=\})", {r"\variable{x}+\variable{12}": "12"})


def _is_odd_root(tree: Any) -> bool:
    """True if it is a power by a fraction with an odd denominator of a negative number, which is real here."""
    odd = tree.is_Pow and tree.exp.is_Rational and tree.exp.q > 1 and tree.exp.q % 2 == 1
    return bool(odd and tree.base.is_negative)


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
        tree, numbers = _shape(shape), {str(place): int(value) for place, value in enumerate(values)}
        _digits(tree, numbers)
        tree = tree.xreplace({Symbol(name): Integer(number) for name, number in numbers.items()})
        return tree.replace(_is_odd_root, lambda power: (-1) ** power.exp.p * (-power.base) ** power.exp)
    except (MemoryError, Unreadable):
        raise
    except Exception as error:  # the generated parser raises bare Exception, sympy many types
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


MOST_DIGITS = 20_000
"""sympy writes a tower of powers out: its digits are estimated before."""


def _digits(tree: Any, values: Mapping[str, int]) -> float | None:
    """No fewer than the digits of the numerator and the denominator of a constant; None of what stays a formula."""
    if tree.is_Symbol or tree.is_Rational:
        number = values.get(tree.name) if tree.is_Symbol else max(abs(tree.p), tree.q)
        return None if number is None else log10(max(abs(number), 1))
    sizes = [_digits(part, values) for part in tree.args]
    if not sizes or None in sizes:
        return 0.0 if tree.is_Atom and tree.is_algebraic else None
    found = _LARGEST[kind](*sizes) if (kind := type(tree).__name__) in _LARGEST else None
    if found is not None and found > MOST_DIGITS:
        raise Unreadable(f"a number of more than {MOST_DIGITS} digits")
    return found


def _times(digits: float, count: float) -> float:
    """Digits as many times as a number with ``count`` digits says."""
    return digits * 10 ** min(count, 9.0)


_LARGEST = {
    "Add": lambda *sizes: sum(sizes) + 1,
    "Mul": lambda *sizes: sum(sizes),
    "Pow": _times,
    "factorial": lambda size: _times(size, size),
    "binomial": lambda size, chosen: _times(size, min(size, chosen)),
}
"""The digits of a result by those of its arguments, by kind of expression; other functions are not written out."""
