"""Names of symbols, with their subscripts and derivatives, as letters and digits alone."""

from dppo.grading.patterns import pattern

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
    r"(?P<symbol>(?:\\(?:text|overline|angle|triangle|vec|bar|hat|dot|ddot)\s*)?(?:\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z])"
    r"(?:\s*_\s*(?:\{[^{}]*\}|\\?\w+))?'*)(?:\s*\((?P<argument>[^()]*)\))?"
    r"|(?P<size>\|\s*\\?[A-Za-z]+\s*(?:\{[^{}]*\})?\s*\|)"
    r"|(?P<described>\\text\{[A-Za-z ]+\}\s*(?:\\triangle\s*)?[A-Z]{1,5})"
    r"|(?P<segment>\|?\s*[A-Z]{1,5}\s*\|?|\[[A-Z]+\]|\\(?:angle|triangle|overline)\s*\{?(?:\s*[A-Z](?:_\{?\w+\}?)?)+\s*\}?)"
    r"|(?P<words>[A-Za-z]{3,}(?: [A-Za-z]+)*)"
    r"|(?P<point>\(\s*\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\s*,\s*\\?[A-Za-z]+\s*(?:_\{?\w+\}?)?)+\s*\))"
    r"|(?P<inverse>[A-Za-z]\s*\^\s*(?:\{\s*-1\s*\}|-1)\s*\(\s*[A-Za-z]\s*\))",
    (r"f_{1}'(x)", r"|\vec{a}|", r"\text{area of }\triangle ABC", r"\angle ABC", "side length", "(x, y)", "f^{-1}(x)"),
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
    if symbol in (r"\pi", "e", "i", r"\infty"):
        return None
    applied = _ONE_LETTER.fullmatch(argument) or symbol[:1] in _FUNCTION_LETTERS or symbol[:1] == "\\"
    if found["argument"] is not None and not applied:
        return None  # x(x+1) is a product
    return (symbol or _BARS.sub("", text)), argument
