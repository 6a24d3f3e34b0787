"""Units: their names, their products, and taking them off an answer.

``units.tsv`` says what each measures, how many base units it is, and which symbol takes which prefixes. Names that are
units among words alone are none in a formula, where ``cd`` is a product; those with a prefix too.
"""

import csv
from fractions import Fraction
from pathlib import Path

from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.changes import CHANGES, MONEY
from answer_judge.grading.patterns import pattern, rewritings, rewritten
from answer_judge.grading.values import Unit

IN_FORMULAS: set[str] = set()
TABLE: dict[str, tuple[dict[str, int], Fraction]] = {}
"""Base units and the factor of every spelling."""
_PREFIXES = {
    "p": ("pico", -12), "n": ("nano", -9), **dict.fromkeys("µμu", ("micro", -6)), "m": ("milli", -3),
    "c": ("centi", -2), "d": ("deci", -1), "h": ("hecto", 2), "k": ("kilo", 3),
    "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12),
}  # fmt: skip
"""Their names and powers of ten."""


def _read_table() -> None:
    """Fill the table; what it says of a spelling counts before what a prefix would make of it."""
    prefixed: dict[str, tuple[dict[str, int], Fraction]] = {}
    with Path(__file__).with_name("units.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""):
            base = {name: int(power or 1) for name, _, power in (unit.partition("^") for unit in row["base"].split())}
            spellings, factor = row["spellings"].split(), Fraction(row["factor"])
            for each in spellings:
                TABLE.setdefault(each, (base, factor))
            if row["where"] == "formulas":
                IN_FORMULAS.update(spellings)
            *symbols, letters = row["prefixed"].split() or [""]
            for letter in letters:
                name, power = _PREFIXES[letter]
                words = [name + each for each in spellings if len(each) > 2]
                words += [letter + each for symbol in symbols if len(symbol) > 2 for each in spellings]  # mmols
                for each in (*words, *(letter + symbol for symbol in symbols)):
                    prefixed.setdefault(each, (base, factor * Fraction(10) ** power))
    for each, unit in prefixed.items():
        TABLE.setdefault(each, unit)


_read_table()

DEGREE = Unit((("degree", 1),))
DOLLAR = Unit((("$", 1),))
PERCENT = Unit((("%", 1),), Fraction(1, 100))

_LINEAR = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
# In this order: money is seen among bare words alone.
_BARE = rewritings(
    (r"\\text\{([^{}]*)\}", r" \1 ", r"\text{cm}^2", " cm ^2"),
    (r"\\cdot", " ", r"N\cdot m", "N  m"),
    (r"\^\\circ", " degree ", r"5^\circ", "5 degree "),
    (r"\\([$%])", r" \1 ", r"\$/day", " $ /day"),
    (r"^\s*(\$|€|dollars?|cents?|USD|euros?)\s*(?:/|per\b).*$", r"\1", "cents per mile", "cents"),
)
"""Units without commands; money is money, whatever it is paid for."""
_PART = pattern(
    r"(?P<slash>/|per\b)|(?P<word>[^\W\d_]+|[$€£¥₹%])\.?\s*(?:\^?\s*\{?\s*(?P<power>-?\d)\s*\}?)?|\S",
    {"/s": "/", "per hour": "per", "cm^{2}": "cm^{2}", "ft. 3": "ft. 3"},
)


def parse_unit(text: str) -> Unit:
    r"""The unit a text names, such as ``km/h`` or ``\text{cm}^{2}``; only a label where a word is not in the table."""
    words = rewritten(text, _BARE)
    powers: dict[str, int] = {}
    factor, sign, dimension = Fraction(1), 1, 1
    for part in _PART.finditer(words):
        if part["slash"]:
            sign = -1
            continue
        word = part["word"]
        if word and word.lower() in _LINEAR:
            dimension = _LINEAR[word.lower()]
            continue
        known = _known(word)
        if known is None:
            return Unit(label=" ".join(words.split()).lower())
        power = sign * int(part["power"] or dimension)
        sign = dimension = 1
        factor *= known[1] ** power
        for base, exponent in known[0].items():
            powers[base] = powers.get(base, 0) + exponent * power
    return Unit(tuple(sorted((base, power) for base, power in powers.items() if power)), factor)


def _known(word: str | None) -> tuple[dict[str, int], Fraction] | None:
    """Base units and factor of one word; a short one must be spelt as in the table, since ``mm`` is not ``MM``."""
    word = word or ""
    return TABLE.get(word) or (TABLE.get(word.lower()) if len(word) > 2 else None)


_LAST = pattern(
    r"(?:(?:/|\\cdot)\s*)?"
    r"(?:\\text\{([^{}]*)\}|(?<!\\)(?<![^\W\d_])([^\W\d_]{2,}|(?<=[ /])[msghNJWKVAL]|[\u3400-\u9fff\uac00-\ud7a3])\.?)"
    r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d))?\s*$",
    {r"5 \text{ cm}^2": r"\text{ cm}^2", "5 km/h": "/h", "5 square feet": "feet"},
)
_PERCENT = pattern(
    r"(?<!\s)\s*(?:\\?%|\\text\{\s*(?:per ?cent|pct|percentage)\s*\}|(?<![A-Za-z])(?:per ?cent|pct|percentage))\s*$",
    {r"5\%": r"\%", "5 per cent": " per cent", r"5\text{ percent}": r"\text{ percent}"},
)
_DEGREES = pattern(r"(?<!\s)\s*\^\\circ\s*$", {r"30^\circ ": r"^\circ "})
_OF_ANGLES = pattern(r"\\(?:sin|cos|tan|cot|sec|csc|cis)(?![A-Za-z])", {r"2\sin 30^\circ": r"\sin"})
_END_OF_VALUE = pattern(r"(?:[\d)}\]!%]|\\pi)$", {"(x+1)": ")", "5": "5", r"36\pi": r"\pi"})
_PLAIN = pattern(r"\\text|[{}\s]", {r"\text{K}": r"\text"})
_AROUND = (*_LINEAR, "per")
_UNIT_WORDS = 6
_MONEY = pattern(r"^([-+]?)\s*\\\$\s*(?=(?:- ?)?[\d.\\])", {r"-\$5": r"-\$"})
_WORDS = pattern(r"[a-zà-öø-ÿœ .'-]+", ("élèves", "cats and dogs"))
"""Letters of the languages whose numerals are known."""
_ONE_LETTER = pattern(r"[abd-eg-su-z]|\([a-z]\)", ("x", "(b)"))
"""No name of a thing; C, F and T are units."""


def split_unit(text: str, labels: bool) -> tuple[str, Unit] | None:
    """A tidy text before its unit, and the unit; None without one. With ``labels`` words not in the table are units."""
    if found := _PERCENT.search(text):
        return _rest(text[: found.start()], PERCENT)
    if (found := _DEGREES.search(text)) and not _OF_ANGLES.search(text):
        return _rest(text[: found.start()], DEGREE)
    if money := _MONEY.match(text):
        text = money[1] + text[money.end() :]
    value, names = text, ""
    for _ in range(_UNIT_WORDS):
        found = _LAST.search(value)
        if not found or not (found[1] is not None or labels or _is_unit_word(found[2])):
            break
        value, names = value[: found.start()].rstrip(), value[found.start() :] + " " + names
    label = parse_unit(names).label if names else ""
    scales = MONEY.search(names) or (money and _PLAIN.sub("", names) in tuple("kKMB"))
    multiplied = label and names.lstrip().startswith(r"\cdot")
    if names and value and (scales or multiplied or not _counts_things(label)):
        raise Unreadable(f"{names.strip()[:60]!r} behind a value")
    if names and (percent := _PERCENT.search(value)):
        return _rest(value[: percent.start()], PERCENT)  # 20\% off
    if money:
        return _rest(value, DOLLAR)
    if not names or (names.lstrip()[:1].isalpha() and not _END_OF_VALUE.search(value)):
        return None
    if value.endswith(r"\pi") and len(names.strip()) == 1:  # 2\pi h is a formula
        return None
    return _rest(value, parse_unit(names))


def _counts_things(label: str) -> bool:
    """True if a label that is not in the table can be what is counted: words that leave the number as it is."""
    factors = any(word == "per" or _ONE_LETTER.fullmatch(word) for word in label.split())
    return not label or (_WORDS.fullmatch(label) is not None and not CHANGES.search(label) and not factors)


def _is_unit_word(word: str) -> bool:
    """True if a plain word is a unit in any formula; a single letter is one only where words are units anyway."""
    return len(word) > 1 and (word in IN_FORMULAS or (len(word) > 2 and word.lower() in IN_FORMULAS) or word in _AROUND)


def _rest(value: str, unit: Unit) -> tuple[str, Unit] | None:
    return (value.strip(), unit) if value.strip() else None
