"""Names of symbols, with their subscripts and derivatives, as letters and digits alone."""

import re

_SIGN = re.compile(r"[^A-Za-z0-9]")
_D = r"(?:d|\\partial)"
_OF = r"(?:\\?[A-Za-z]+(?:_(?:\{[^{}]*\}|\w))?)"
DERIVATIVE = re.compile(
    rf"\\frac\{{{_D}(?:\^(?P<n>\d|\{{\d\}}))?(?P<of>{_OF})\}}\{{{_D}(?P<wrt>\\?[A-Za-z]+)(?:\^(?P<m>\d|\{{\d\}}))?\}}"
)


def symbol_name(base: str, below: str = "", primes: int = 0, wrt: str = "") -> str:
    """A name of letters and digits alone, for a symbol with its subscript or a derivative."""
    name = _plain(base) + (f"SUB{_plain(below)}" if below else "")
    if primes:
        name = f"DER{primes}OF{name}" + (f"WRT{_plain(wrt)}" if wrt else "")
    return name


def _plain(text: str) -> str:
    r"""Letters and digits of a name; other signs by their code."""
    text = re.sub(r"\\(?:text|mathrm)(?![A-Za-z])|[\\{}\s]", "", text)
    return _SIGN.sub(lambda match: f"Q{ord(match[0]):x}", text)
