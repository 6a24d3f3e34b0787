"""Words around an answer, and numbers in groups: text that is put aside or joined before anything is read."""

from dppo.data.grading.patterns import pattern
from dppo.data.grading.text import brackets
from dppo.data.grading.units import changes_value

_CONDITION = pattern(
    r",?\s*(?:\\text\{\s*,?\s*)?(?<![A-Za-z])for (?:all|any|every|each)\b.*$",
    {r"f(x)=0\text{ for all }x": r"\text{ for all }x", "2n, for each n": ", for each n"},
)
_PREAMBLE = pattern(
    r"^(?:\\text\{(?:[^{}]*\b(?:is|are|equals|=|:)|\s*(?:about|approximately|approx\.?|roughly|around))\s*\}\s*[:=]?"
    r"|(?:about|approximately|roughly)\b)\s*(?=\S)",
    {r"\text{The area is } 5": r"\text{The area is } ", "about 5": "about "},
)
_AGAIN = pattern(
    r"\s*\(\s*(or\b|=|\\approx(?![A-Za-z]))([^()]*)\)$", {"1/2 (or 0.5)": " (or 0.5)", "1/2 (= 0.5)": " (= 0.5)"}
)

ASKED = pattern(
    r"\\(?:sum|int|prod|lim|det|max|min|gcd|lcm|Pr|mathbb)(?![A-Za-z])|P\s*\(",
    {r"\sum_{k}k=5": r"\sum", "P(A|B)=1": "P("},
)
"""How a left side begins that we cannot read, but which says what was asked for."""

THOUSANDS = pattern(r"[-+]?\s*\d{1,3}(?:,\d{3})+", {"-1,250,000": "-1,250,000"})
WITH_DECIMALS = pattern(rf"{THOUSANDS.pattern}(?:\.\d+)?", {"1,250.5": "1,250.5"})
_GROUPED = r"[-+]?\d{1,3}(?:,\d{3})*(?:\.\d+)?"
_GROUPED_LIST = pattern(
    rf"{_GROUPED}(?:(?:[,;] (?:and |or )?| and | or ){_GROUPED})+", {"1,234, 5,678 and 9": "1,234, 5,678 and 9"}
)
_GROUP_OF_ZEROS = pattern(
    r"(?<![\d.])([1-9]\d{0,2})((?:,0\d\d)+)(?![\d.]*\d)", {"1,000, 2": "1,000", "2,1,050": "1,050"}
)
_COMMA_IN_NUMBER = pattern(r",(?=\d)", {"1, 2,345": ","})


def answer_alone(text: str) -> str:
    """A tidy text without "the answer is" or "about" before it, "for all x" after it, and brackets around "or 0.5"."""
    text = _AGAIN.sub(r" \1\2", _CONDITION.sub("", text))
    found = _PREAMBLE.match(text)
    return text[found.end() :].strip() if found and not changes_value(found[0]) else text.strip()


def joined_groups(text: str) -> str:
    """``1,000, 2`` as ``1000, 2``, since no item of a list begins with a 0 it does not need, and ``1,234, 5,678``."""
    if _GROUPED_LIST.fullmatch(text):
        return _COMMA_IN_NUMBER.sub("", text)
    return _GROUP_OF_ZEROS.sub(lambda found: found[1] + found[2].replace(",", ""), text)


def outer_brackets(text: str) -> tuple[str, str] | None:
    """The brackets around a whole text, or None.

    Raises:
        Unreadable: brackets that do not match.
    """
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    ending = r"\}" if text.endswith(r"\}") else text[-1:]
    if opening not in ("(", "[", "{", r"\{") or ending not in (")", "]", "}", r"\}") or len(text) < 2:
        return None
    outer = [position for position, depth, _ in brackets(text) if depth == 0]
    return (opening, ending) if outer == [0, len(text) - len(ending)] else None
