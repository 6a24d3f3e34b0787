"""Units: their names, their products, and taking them off an answer."""

import re
from fractions import Fraction
from itertools import pairwise

from dppo.data.grading.numbers import read_number
from dppo.data.grading.text import Unreadable
from dppo.data.grading.values import Unit

_TABLE: dict[str, tuple[str, dict[str, int], Fraction | int | str]] = {}


def _define(base: dict[str, int], **names: tuple[Fraction | int | str, str]) -> None:
    """Enter units that measure the same: ``name=(how many base units, "other names")``."""
    for name, (factor, others) in names.items():
        for spelling in (name, *others.split()):
            _TABLE[spelling] = (name, base, factor)


_define(
    {"m": 1},
    m=(1, "meter meters metre metres"),
    mm=("1/1000", "millimeter millimeters millimetre millimetres"),
    cm=("1/100", "centimeter centimeters centimetre centimetres"),
    km=(1000, "kilometer kilometers kilometre kilometres kms"),
    nm=("1/1000000000", "nanometer nanometers"),
    micron=("1/1000000", "microns micrometer micrometers µm"),
    inch=("254/10000", "inches in ins"),
    foot=("3048/10000", "feet ft"),
    yard=("9144/10000", "yards yd yds"),
    mile=("1609344/1000", "miles mi"),
    pc=("30856775814913673", "parsec parsecs"),
    AU=("149597870700", "au"),
)
_define(
    {"s": 1},
    s=(1, "sec secs second seconds"),
    ms=("1/1000", "millisecond milliseconds"),
    minute=(60, "minutes min mins"),
    hour=(3600, "hours hr hrs h"),
    day=(86400, "days"),
    week=(604800, "weeks wk"),
    month=(2629746, "months"),
    year=(31556952, "years yr yrs"),
)
_define(
    {"kg": 1},
    kg=(1, "kilogram kilograms kgs"),
    g=("1/1000", "gram grams gm"),
    mg=("1/1000000", "milligram milligrams"),
    pound=("45359237/100000000", "pounds lb lbs"),
    ounce=("45359237/1600000000", "ounces oz"),
    ton=(1000, "tons tonne tonnes"),
)
_define(
    {"m": 3},
    liter=("1/1000", "liters litre litres L l"),
    mL=("1/1000000", "ml milliliter milliliters"),
    gallon=("3785411784/1000000000000", "gallons gal"),
)
_define({"a.m.": 1}, am=(1, "AM"))
_define({"p.m.": 1}, pm=(1, "PM"))
_define({"$": 1}, dollar=(1, "dollars USD usd bucks"), cent=("1/100", "cents"))
_define({"€": 1}, euro=(1, "euros EUR"))
_define({"degree": 1}, degree=(1, "degrees deg"))
_define({"radian": 1}, radian=(1, "radians rad"))
_define({"m": 1, "s": -1}, mph=("44704/100000", ""), kph=("1000/3600", "kmh kmph"))
_define({"kg": 1, "m": 1, "s": -2}, N=(1, "newton newtons"), dyn=("1/100000", "dyne dynes"))
_define({"kg": 1, "m": 2, "s": -2}, J=(1, "joule joules"), kJ=(1000, ""), erg=("1/10000000", "ergs"))
_define({"kg": 1, "m": 2, "s": -3}, W=(1, "watt watts"), kW=(1000, ""), MW=(1000000, ""))
_define({"eV": 1}, eV=(1, ""), keV=(1000, ""), MeV=(1000000, ""))
_define({"K": 1}, K=(1, "kelvin kelvins"))
_define({"s": -1}, Hz=(1, "hertz"), kHz=(1000, ""), MHz=(1000000, ""))
_define({"mol": 1}, mol=(1, "mole moles mols"))
_define({"V": 1}, V=(1, "volt volts"))
_define({"A": 1}, A=(1, "amp amps ampere amperes"))

DEGREE = Unit((("degree", 1),))
RADIAN = Unit((("radian", 1),))
DOLLAR = Unit((("$", 1),))
PERCENT = Unit((("%", 1),), Fraction(1, 100))

_LINEAR = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_HALF_DAY = re.compile(r"(?<![A-Za-z])([AaPp])\.\s?[Mm](?:\.|\b)")
_RATE = re.compile(r"^\s*(\$|€|dollars?|cents?|USD|euros?)\s*(?:/|per\b).*$")
"""Money is money, whatever it is paid for."""
_PART = re.compile(r"(?P<slash>/|per\b)|(?P<word>[A-Za-zµ$€%]+)\.?\s*(?:\^?\s*\{?\s*(?P<power>-?\d)\s*\}?)?|\S")


def parse_unit(text: str) -> Unit:
    r"""The unit a text names; only a label where a word is not in the table.

    Args:
        text: such as ``km/h``, ``square inches``, ``kg \cdot m / s^2``, ``\text{cm}^{2}``.
    """
    words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).replace(r"\cdot", " ").replace("^\\circ", " degree ")
    words = re.sub(r"\\[$%]", lambda match: f" {match[0][1]} ", words)
    words = _RATE.sub(r"\1", _HALF_DAY.sub(lambda match: f" {match[1].lower()}m ", words))
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
    """Base units and factor of one word."""
    if word in ("$", "€"):
        return {word: 1}, Fraction(1)
    if word == "%" or (word and word.lower() in ("percent", "pct", "percentage")):
        return {"%": 1}, Fraction(1, 100)
    entry = _TABLE.get(word or "") or _TABLE.get((word or "").lower() if len(word or "") > 2 else "")
    return (entry[1], Fraction(entry[2])) if entry else None


_PART_OF_COMPOUND = re.compile(
    r"(?P<value>\d[\d.]*) ?(?:\\text\{ ?(?P<set>[A-Za-z]+)\.?(?: and)? ?\}|(?P<typed>[A-Za-z]+)\.?),? ?(?:and )?"
)


def compound(text: str) -> tuple[Fraction, Unit] | None:
    r"""The sum and the unit of ``5 \text{ ft } 6 \text{ in}`` or ``1 hour and 30 minutes``, in the first unit; or None.

    Args:
        text: a tidy text.
    """
    parts = list(_PART_OF_COMPOUND.finditer(text))
    if not 2 <= len(parts) <= 4 or "".join(part[0] for part in parts) != text:
        return None
    units = [parse_unit(part["set"] or part["typed"]) for part in parts]
    values = [read_number(part["value"]) for part in parts]
    falling = all(one.factor > other.factor for one, other in pairwise(units))
    if not (falling and all(same_dimension(units[0], unit) for unit in units)):
        return None
    total = sum((value.value * unit.factor for value, unit in zip(values, units, strict=True) if value), Fraction(0))
    return (total / units[0].factor, units[0]) if all(values) else None


_LAST = re.compile(
    r"(?:(?:/|\\cdot)\s*)?"
    r"(?:\\text\{([^{}]*)\}|(?<![\\A-Za-z])([A-Za-z]{2,}|(?<=[ /])[msghNJWKVAL])\.?)"
    r"\s*(?:\^\s*(?:\{\s*-?\d\s*\}|\d))?\s*$"
)
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\text\{\s*(?:per ?cent|pct|percentage)\s*\}|(?<![A-Za-z])(?:per ?cent|pct|percentage))\s*$"
)
_MONEY = re.compile(r"^([-+]?)\s*(?:\\\$|€|£|\\text\{(?:USD|Rs\.?)\s*\})\s*(?=[\d.\\])")
_DEGREES = re.compile(r"\s*\^\\circ\s*$")
_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|cis)(?![A-Za-z])")
_UNIT_WORDS = 6
_CHANGES = re.compile(
    r"(?<![\^{-])\d|\b(?:(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?|tenths?|thirds|halves|half|squared|cubed|factorial"
    r"|(?:four|fif|six|seven|eigh|nin)ths|one|two|three|four|five|six|seven|eight|nine|ten|twenty|plus|minus|divided"
    r"|multiplied|over|mod|modulo|remainder|base|or|than|least|most|if|unless|when|but|except|maybe|perhaps|possibly"
    r"|not|wrong|incorrect|false|never|between)\b|n't\b",
    re.IGNORECASE,
)


def split_unit(text: str, labels: bool) -> tuple[str, Unit] | None:
    r"""The text before a unit, and the unit; None when there is none.

    Args:
        text: a tidy text.
        labels: whether plain words that are not in the table count too, as in ``17 students``.
    """
    if found := _PERCENT.search(text):
        return _rest(text[: found.start()], PERCENT)
    if (found := _DEGREES.search(text)) and not _OF_ANGLES.search(text):
        return _rest(text[: found.start()], DEGREE)
    money = _MONEY.match(text)
    if money:
        text = money[1] + text[money.end() :]
    value, names = text, ""
    for _ in range(_UNIT_WORDS):
        found = _LAST.search(value)
        if not found or not (found[1] is not None or labels or _is_unit_word(found[2])):
            break
        value, names = value[: found.start()].rstrip(), value[found.start() :] + " " + names
    if names and value and parse_unit(names).label and changes_value(names):
        raise Unreadable(f"{names.strip()[:60]!r} behind a value")
    if names and (percent := _PERCENT.search(value)):
        return _rest(value[: percent.start()], PERCENT)  # 20\% off
    if money:
        return _rest(value, DOLLAR if "\\$" in money[0] or "€" not in money[0] else parse_unit("€"))
    if not names or (names.lstrip()[:1].isalpha() and not re.search(r"[\d)}\]!%]$", value)):
        return None
    return _rest(value, parse_unit(names))


def changes_value(words: str) -> bool:
    """Whether words around a number make another of it, or take it back: they are no unit and no introduction."""
    return _CHANGES.search(words) is not None


def _is_unit_word(word: str) -> bool:
    """Whether a plain word is a unit in any formula; a single letter is one only where words are units anyway."""
    return len(word) > 1 and (_known(word) is not None or word in (*_LINEAR, "per"))


def _rest(value: str, unit: Unit) -> tuple[str, Unit] | None:
    """The value and its unit, unless there is no value."""
    return (value.strip(), unit) if value.strip() else None


def same_dimension(one: Unit, other: Unit) -> bool:
    """Whether two units of the table measure the same."""
    return one.powers == other.powers and not one.label and not other.label


def compatible_label(known: Unit, label: str) -> bool:
    """Whether a label that is not in the table may stand for a unit that is: "square units" for an area."""
    power = _unnamed(label)
    if power:
        return known.powers == (("m", power),)
    words = label.split()
    first = _known(words[0]) if words else None
    return first is not None and tuple(sorted(first[0].items())) == known.powers and first[1] == known.factor


def compatible_labels(one: str, other: str) -> bool:
    """Whether two labels that are not in the table can mean the same; only "units" and "square units" cannot."""
    powers = {_unnamed(one), _unnamed(other)} - {0}
    return len(powers) < 2


_UNNAMED = re.compile(r"(?:(square|sq|cubic|cu)\.? )?units?(?: ?\^ ?\{? ?([123]) ?\}?)?")


def _unnamed(label: str) -> int:
    """1, 2 or 3 for "units", "square units" and "cubic units", else 0."""
    found = _UNNAMED.fullmatch(label)
    return int(found[2] or _LINEAR.get(found[1] or "", 1)) if found else 0
