"""Units: their names, their products, and taking them off an answer.

``units.tsv`` says what each measures, how many base units it is, and which symbol takes which prefixes. Names that are
units among words alone are none in a formula, where ``cd`` is a product; those with a prefix too.
"""

import csv
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.changes import changes_value, scales_money
from answer_judge.grading.numbers import read_number
from answer_judge.grading.patterns import pattern, rewritings, rewritten
from answer_judge.grading.values import Number, Quantity, Unit

IN_FORMULAS: set[str] = set()
TABLE: dict[str, tuple[dict[str, int], Fraction]] = {}
"""Base units and the factor of every spelling."""
ANY_CASE: dict[str, list[str]] = {}
"""By small letters the spellings with large ones, such as kHz."""
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
    for each in TABLE:
        if len(each) > 1 and each != each.lower():
            ANY_CASE.setdefault(each.lower(), []).append(each)


_read_table()

DEGREE = Unit((("degree", 1),))
RADIAN = Unit((("radian", 1),))
DOLLAR = Unit((("$", 1),))
POUND = Unit((("£", 1),))
PERCENT = Unit((("%", 1),), Fraction(1, 100))

_LINEAR = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
# In this order: half a day and money are seen among bare words alone.
_BARE = rewritings(
    (r"\\text\{([^{}]*)\}", r" \1 ", r"\text{cm}^2", " cm ^2"),
    (r"\\cdot", " ", r"N\cdot m", "N  m"),
    (r"\^\\circ", " degree ", r"5^\circ", "5 degree "),
    (r"\\([$%])", r" \1 ", r"\$/day", " $ /day"),
    (r"(?<![A-Za-z])[Aa]\.\s?[Mm](?:\.|\b)", " am ", "7 A.M.", "7  am "),
    (r"(?<![A-Za-z])[Pp]\.\s?[Mm](?:\.|\b)", " pm ", "7 p. m", "7  pm "),
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
    """Base units and factor of one word.

    A short one must be spelt as in the table, since ``mm`` is not ``MM``, unless one unit alone has large letters:
    ``KW`` and ``kw`` are kW, and ``mw`` is no unit.
    """
    word = word or ""
    if found := TABLE.get(word) or (TABLE.get(word.lower()) if len(word) > 2 else None):
        return found
    alike = [TABLE[each] for each in ANY_CASE.get(word.lower(), ())]
    return alike[0] if alike and all(each == alike[0] for each in alike) else None


_PART_OF_COMPOUND = pattern(
    r"(?<![\d.])(?P<value>\d[\d.]*) ?(?:\\text\{ ?(?P<set>[A-Za-z]+)\.?(?: and)? ?\}|(?P<typed>[A-Za-z]+)\.?)"
    r",? ?(?:and )?",
    {r"5 \text{ ft } 6 \text{ in}": r"5 \text{ ft } ", "1 hour and 30 minutes": "1 hour and "},
)


def compound(text: str) -> Quantity | None:
    r"""The sum of ``5 \text{ ft } 6 \text{ in}`` or ``1 hour and 30 minutes``, in the first unit; or None."""
    parts = list(_PART_OF_COMPOUND.finditer(text))
    if not 2 <= len(parts) <= 4 or "".join(part[0] for part in parts) != text:
        return None
    units = [parse_unit(part["set"] or part["typed"]) for part in parts]
    values = [read_number(part["value"]) for part in parts]
    falling = all(one.factor > other.factor for one, other in pairwise(units))
    if not (falling and all(same_dimension(units[0], unit) for unit in units)):
        return None
    total = sum((value.value * unit.factor for value, unit in zip(values, units, strict=True) if value), Fraction(0))
    return Quantity(Number(total / units[0].factor), units[0]) if all(values) else None


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
_MONEY = pattern(
    r"^([-+]?)\s*(?:\\\$|€|£|\\text\{(?:USD|EUR|GBP|Rs\.?|INR|US\\?\$)\s*\}"
    r"|(?:USD|EUR|GBP|INR|CHF|JPY|CAD|AUD|Rs\.?)(?![A-Za-z])|US\\\$|₹|¥)\s*(?=(?:- ?)?[\d.\\])",
    {r"-\$5": r"-\$", r"\text{Rs.} 5": r"\text{Rs.} "},
)
_OTHER_MONEY = pattern(r"[A-Z]{3}|Rs|[€£₹¥]", {"CHF 5": "CHF", "£5": "£"})
_PRICE = pattern(r"(?<=[\d}]) ?(\\\$|[€£¥₹])$", {r"5 \$": r" \$", "1,000€": "€"})
_DEGREES = pattern(r"(?<!\s)\s*\^\\circ\s*$", {r"30^\circ ": r"^\circ "})
_BEHIND_LETTER = pattern(r"(?<![A-Za-z\\])[a-z] ?(?:\\cdot ?)?\d+ ?\^", {r"k360^\circ": "k360^"})
"""A turn of 360 degrees, k times."""
_OF_ANGLES = pattern(r"\\(?:sin|cos|tan|cot|sec|csc|cis)(?![A-Za-z])", {r"2\sin 30^\circ": r"\sin"})
_END_OF_VALUE = pattern(r"(?:[\d)}\]!%]|\\pi)$", {"(x+1)": ")", "5": "5", r"36\pi": r"\pi"})
_AROUND = (*_LINEAR, "per")
_UNIT_WORDS = 6
_WESTERN = pattern(r"[\x00-\xd6\xd8-\xf6\xf8-\xffœ]+", ("élèves", "Äpfel"))
"""Letters of the languages whose numerals are known."""
_ONE_LETTER = pattern(r"[abd-eg-su-z]|\([a-z]\)", ("x", "(b)"))
"""No name of a thing; C, F and T are units."""
_SYMBOLS = rewritings(
    (r"(?<=[\d }])(?:\\text\{ ?([kM]) ?\}|([kM]))? ?\\Omega ?$", r" \\text{\1\2Ω}", r"12 \Omega", r"12 \text{Ω}"),
    (
        r"(?<=[\d }])\\mu ?(?:\\text\{ ?([A-Za-z]{1,2}) ?\}|([A-Za-z]{1,2})) ?$",
        r" \\text{µ\1\2}", r"12 \mu m", r"12  \text{µm}"
    ),
)  # fmt: skip
_OHMS = pattern(
    r"[-+]?\d[\d.,]* ?(?:\\text\{ ?[kM] ?\}|[kM])? ?\\Omega ?", (r"12 k\Omega", r"1.5 \text{k}\Omega", r"12\Omega")
)
"""A resistance, which is one in a gold answer too."""
"""Units with a Greek letter, where words behind a number are units."""


def split_unit(text: str, labels: bool) -> tuple[str, Unit] | None:
    """A tidy text before its unit, and the unit; None without one. With ``labels`` words not in the table are units."""
    text = rewritten(text, _SYMBOLS) if labels or _OHMS.fullmatch(text) else text
    if found := _PERCENT.search(text):
        return _rest(text[: found.start()], PERCENT)
    angles = _OF_ANGLES.search(text) or _BEHIND_LETTER.search(text)
    if (found := _DEGREES.search(text)) and not angles:
        return _rest(text[: found.start()], DEGREE)
    if found := _PRICE.search(text):
        return _rest(text[: found.start()], parse_unit(found[1]))
    if money := _MONEY.match(text):
        text = money[1] + text[money.end() :]
    value, names = text, ""
    for _ in range(_UNIT_WORDS):
        found = _LAST.search(value)
        if not found or not (found[1] is not None or labels or _is_unit_word(found[2])):
            break
        value, names = value[: found.start()].rstrip(), value[found.start() :] + " " + names
    label = parse_unit(names).label if names else ""
    if label and _calculates(names):
        return None
    if names and value and (scales_money(names) or not _counts_things(label)):
        raise Unreadable(f"{names.strip()[:60]!r} behind a value")
    if names and (percent := _PERCENT.search(value)):
        return _rest(value[: percent.start()], PERCENT)  # 20\% off
    if money:
        code = _OTHER_MONEY.search(money[0])
        return _rest(value, parse_unit(code[0]) if code else DOLLAR)
    if not names or (names.lstrip()[:1].isalpha() and not _END_OF_VALUE.search(value)):
        return None
    if value.endswith(r"\pi") and len(names.strip()) == 1:  # 2\pi h is a formula
        return None
    return _rest(value, parse_unit(names))


_BETWEEN = pattern(
    r"/|\bper\b|\\cdot|\\text\{|\}|\^\s*(?:\{\s*-?\d\s*\}|\d)", {"all/all": "/", "a per a": "per", "{all}^{-1}": "}"}
)


def _calculates(names: str) -> bool:
    r"""Whether words that are no known unit are factors of a formula: behind a ``\cdot``, or one cancels another."""
    words = [part.strip().lower().removesuffix("s") for part in _BETWEEN.split(names) if part.strip()]
    letters = len(words) > 1 and all(map(_ONE_LETTER.fullmatch, words))
    to_the_zeroth = "^0" in "".join(names.split()).replace("{", "")
    return names.lstrip().startswith(r"\cdot") or len(set(words)) < len(words) or letters or to_the_zeroth


def _counts_things(label: str) -> bool:
    """Whether a label that is not in the table can be what is counted: words that leave the number as it is."""
    return not label or (
        _WESTERN.fullmatch(label) is not None and not changes_value(label) and _ONE_LETTER.fullmatch(label) is None
    )


def _is_unit_word(word: str) -> bool:
    """Whether a plain word is a unit in any formula; a single letter is one only where words are units anyway."""
    return len(word) > 1 and (word in IN_FORMULAS or (len(word) > 2 and word.lower() in IN_FORMULAS) or word in _AROUND)


def _rest(value: str, unit: Unit) -> tuple[str, Unit] | None:
    return (value.strip(), unit) if value.strip() else None


def same_dimension(one: Unit, other: Unit) -> bool:
    return one.powers == other.powers and not one.label and not other.label


def compatible_label(known: Unit, label: str) -> bool:
    """Whether a label that is not in the table may stand for a unit that is: "square units" for an area."""
    if power := _unnamed(label):
        return known.powers == (("m", power),)
    words = label.split()
    first = _known(words[0]) if words else None
    return first is not None and tuple(sorted(first[0].items())) == known.powers and first[1] == known.factor


def compatible_labels(one: str, other: str) -> bool:
    """Whether two labels that are not in the table can mean the same.

    Not "units" and "square units", nor "pairs" and what they hold, nor degrees Celsius and Fahrenheit, north and south.
    """
    powers = {_unnamed(one), _unnamed(other)} - {0}
    ways = {way for label in (one, other) if (way := _ways(label))}
    alike = in_pairs(one) == in_pairs(other) or ("pair" in one and "pair" in other)
    return len(powers) < 2 and len(ways) < 2 and alike


_WAYS = {
    "centigrade": "celsius",
    **{word: word for word in ("celsius", "fahrenheit", "left", "right", "up", "down", "clockwise")},
    **dict.fromkeys(("counterclockwise", "anticlockwise"), "counterclockwise"),
    **{start + end: start for start in ("north", "south", "east", "west") for end in ("", "ward", "wards", "ern")},
    "upward": "up", "upwards": "up", "downward": "down", "downwards": "down",
}  # fmt: skip
_LETTERS = {
    "degree": {"c": "celsius", "f": "fahrenheit"},
    "of": {"n": "north", "s": "south", "e": "east", "w": "west"},
}
"""What letters mean beside a word."""


def _ways(label: str) -> tuple[str, ...]:
    """The scale of temperature or the directions that a label names, in its order."""
    words = label.replace("counter-", "counter").replace("degrees", "degree").removesuffix(".").split()
    letters = {letter: way for word, ways in _LETTERS.items() if word in words for letter, way in ways.items()}
    known = {**letters, **_WAYS}
    return tuple(known[word] for word in words if word in known)


_PAIRS = pattern(r"(?:pairs?|couples?)(?: of .*)?", ("pairs of shoes", "couple"))


def in_pairs(label: str) -> bool:
    """Whether a label counts by twos, so that the number alone may be another one: ordered pairs are counted by one."""
    return _PAIRS.fullmatch(label) is not None


_UNNAMED = pattern(r"(?:(square|sq|cubic|cu)\.? )?units?(?: ?\^ ?\{? ?([123]) ?\}?)?", ("sq. units", "units ^ {2}"))


def _unnamed(label: str) -> int:
    """1, 2 or 3 for "units", "square units" and "cubic units", else 0."""
    found = _UNNAMED.fullmatch(label)
    return int(found[2] or _LINEAR.get(found[1] or "", 1)) if found else 0


def says_how_much(unit: Unit) -> bool:
    """Whether a unit is in the table, counts by twos, or is "square units": no other word tells what it measures."""
    return not unit.label or _unnamed(unit.label) > 0 or in_pairs(unit.label)
