"""Numbers that are written out, exactly: integers, decimals, fractions, mixed numbers, powers of ten; and groups."""

import re
from fractions import Fraction

from answer_judge.grading.patterns import pattern
from answer_judge.grading.values import Number

_SIGN = r"(?P<sign>[-+]?)\s*"
_DIGITS = r"(?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d*)(?:\.(?P<part>\d*))?"
_POWER = (
    r"(?:\s*(?:\\cdot\s*)?(?P<ten>(?<=\d)[eE]|(?<![\d.])10\s*\^)\s*(?P<power>\{\s*[-+]?\s*\d{1,4}\s*\}|[-+]?\d{1,4}))?"
)
_DECIMAL = pattern(
    rf"{_SIGN}(?=[\d.]){_DIGITS}{_POWER}", ("-1,250.5", "1 250", ".5", "4.5e33", r"4.5 \cdot 10^{33}", "10^6")
)
_REPEATING = pattern(rf"{_SIGN}(\d*)\.(\d*)\\(?:overline|bar)\s*\{{(\d+)\}}", (r"0.1\overline{6}",))
_FRACTION = pattern(
    rf"{_SIGN}(?:(?P<whole>\d+)(?=[\s\\])\s*)?"
    r"(?:\\frac\s*(?:\{\s*(?P<a>(?:[-+]\s*)?\d+)\s*\}|(?P<c>\d))\s*(?:\{\s*(?P<b>(?:[-+]\s*)?\d+)\s*\}|(?P<d>\d+))"
    r"|(?P<e>\d+)\.?\s*/\s*(?P<f>-?\d+)\.?)",
    (r"3\frac{1}{2}", r"-\frac12", "3 1/2", "1./3", "7/ -2"),
)
_SEPARATORS = pattern(r"[,{}\s]", {"1,250": ","})
THOUSANDS = pattern(r"[-+]?\s*\d{1,3}(?:,\d{3})+", ("-1,250,000",))
WITH_DECIMALS = pattern(rf"{THOUSANDS.pattern}(?:\.\d+)?", ("1,250.5",))
_GROUPED = r"[-+]?\d{1,3}(?:,\d{3})*(?:\.\d+)?"
_GROUPED_LIST = pattern(rf"{_GROUPED}(?:(?:[,;] (?:and |or )?| and | or ){_GROUPED})+", ("1,234, 5,678 and 9",))
_GROUP_OF_ZEROS = pattern(
    r"(?<![\d.])([1-9]\d{0,2})((?:,0\d\d)+)(?![\d.]*\d)", {"1,000, 2": "1,000", "2,1,050": "1,050"}
)
_COMMA_IN_NUMBER = pattern(r",(?=\d)", {"1, 2,345": ","})
LONGEST = 1200
"""Characters of a number; arithmetic on longer ones is not linear."""


def read_number(text: str) -> Number | None:
    r"""The number a tidy text is, with a mixed number, separators of thousands and powers of ten; None for others."""
    if len(text) > LONGEST:
        return None
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1 and "," not in text:
        text = text[1:-1].strip()
    if found := _FRACTION.fullmatch(text):
        return _fraction(found)
    if found := _REPEATING.fullmatch(text):
        sign, whole, part, period = found.groups()
        value = Fraction(int(whole or 0)) + Fraction(int(part or 0), 10 ** len(part))
        value += Fraction(int(period), 10 ** len(part) * (10 ** len(period) - 1))
        return Number(-value if sign == "-" else value)
    found = _DECIMAL.fullmatch(text)
    return _decimal(found) if found else None


def joined_groups(text: str) -> str:
    """``1,000, 2`` as ``1000, 2``, since no item of a list begins with a 0 it does not need, and ``1,234, 5,678``."""
    if _GROUPED_LIST.fullmatch(text):
        return _COMMA_IN_NUMBER.sub("", text)
    return _GROUP_OF_ZEROS.sub(lambda found: found[1] + found[2].replace(",", ""), text)


def _fraction(found: re.Match[str]) -> Number | None:
    top, bottom = (
        int((found[x] or found[y] or found[z]).replace(" ", "")) for x, y, z in (("a", "c", "e"), ("b", "d", "f"))
    )
    if bottom == 0:
        return None
    value = Fraction(top, bottom)
    if found["whole"]:
        if not 0 < value < 1:
            return None  # 3\frac{5}{2} may be meant as a product or as a sum
        value += int(found["whole"])
    return Number(-value if found["sign"] == "-" else value)


def _decimal(found: re.Match[str]) -> Number | None:
    """An integer, a decimal, or either times a power of ten."""
    whole, part = _SEPARATORS.sub("", found["whole"]), found["part"] or ""
    power = int(_SEPARATORS.sub("", found["power"])) if found["power"] else 0
    if not whole and not part:
        if not found["power"] or found["ten"] in "eE" or found["part"] is not None:
            return None
        whole = "1"
    elif found["power"] and found["ten"] not in "eE" and "\\cdot" not in found[0]:
        return None  # 3 10^2
    scale = Fraction(10) ** power
    step = scale / 10 ** len(part)
    value = Fraction(int((whole or "0") + part)) * step
    digits = len((whole + part).lstrip("0"))
    value = -value if found["sign"] == "-" else value
    return Number(value, step, digits) if part or found["power"] else Number(value)
