"""Answers in words: names, yes and no, the letter of an option, a clock time; and words around any answer.

The letter of an option is read where it stands alone or before its text, and refused where several are named.
"""

from answer_judge.grading.changes import UNSAID
from answer_judge.grading.patterns import pattern
from answer_judge.grading.text import TEXT, TYPED
from answer_judge.grading.values import Expression, Text, Value

_NOT_LETTERS = pattern(r"[^a-z ]", {"it's": "'"})
_PLAIN_WORDS = pattern(r"[A-Za-z][A-Za-z .'\"!?()-]*", ("John's (old) dog",))
_WRAPPED_WORDS = pattern(r"[A-Za-z][A-Za-z .,;'\"!?()-]*", ("yes, it is",))
POINT = pattern(r"^[A-Z]\s*\((?=[^()]*,)", {"P(1,2)": "P("})
"""A name before a tuple."""
_LONE_LETTER = pattern(r"\b[A-Za-z]\b(?<!\ba)", {"a line of x": "x"})


_PREAMBLE = pattern(
    r"^(?:\\text\{(?:[^{}]*\b(?:is|are|equals|=|:)|\s*(?:about|approximately|approx\.?|roughly|around))\s*\}\s*[:=]?"
    r"|(?:about|approximately|roughly)\b)\s*(?=\S)",
    {r"\text{The area is } 5": r"\text{The area is } ", "about 5": "about "},
)


def answer_alone(text: str) -> str:
    """A tidy text without "the answer is" or "about" before it."""
    found = _PREAMBLE.match(text)
    return text[found.end() :].strip() if found and not UNSAID.search(found[0]) else text.strip()


def words_of(text: str) -> Text | None:
    r"""The words of a text, where it has nothing else: no formula, no number except in a clock time."""
    bare = TEXT.sub(lambda match: f" {match[1]} ", text)
    bare = " ".join(bare.replace("{", " ").replace("}", " ").split())
    letter = option_alone(bare)
    if clock := _CLOCK.fullmatch(bare.lower().replace(".", "")):
        return Text(f"{int(clock[1])}:{clock[2] or '00'} {clock[3] or ''}".strip())
    wrapped = r"\text{" in text
    if letter:
        return Text(bare.lower(), letter)
    words = _NOT_LETTERS.sub(" ", bare.lower()).split()
    plain = (_WRAPPED_WORDS if wrapped else _PLAIN_WORDS).fullmatch(bare)
    if not plain or not words or (len(words) == 1 and len(words[0]) == 1) or words[0] in TYPED:
        return None
    if not wrapped and _LONE_LETTER.search(bare):
        return None  # letters of a formula between the words
    bare = " ".join(word for word in words if word not in ("a", "an", "the", "it", "is", "on"))
    return Text(_LONG_FORMS.get(bare, bare))


_COUNT = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
NUMBER_WORDS = {word: number for number, word in enumerate(_COUNT)}
"""Numbers that are read in words."""
_LONG_FORMS: dict[str, str] = dict.fromkeys(("dne", "undefined", "not defined"), "does not exist")
_CLOCK = pattern(r"([01]?\d|2[0-4])(?::([0-5]\d)(?=\s*[ap]m|$)|(?=\s*[ap]m))\s*([ap]m)?", ("12:30 pm", "7 am", "9:05"))


_ALONE = pattern(
    r"(?i:the )?(?i:correct )?(?i:option|choice|answer)?(?i: is)?[: ]*(?:\(([A-Ja-j])\)|([A-Ja-j]))[.:)]?",
    ("The correct option is (b)", "(D)", "c.", "Option: B"),
)
_ACCENTED = pattern(r"\\(?:vec|overrightarrow) ?\{? ?[A-J] ?\}?", (r"\vec{A}", r"\overrightarrow B"))
_WRAP = pattern(r"\\[A-Za-z]+ ?\{ ?|[{}$]", {r"\text{B}": r"\text{", "x}": "}"})
_NAMED = pattern(
    r"\(([A-Ja-j])\)|(?<![A-Za-z0-9\\_^({])([A-J])(?:[.:)](?=[ ,;]|$)|(?=[ ,;/&=<>|\\]|$)(?! +[a-z]))",
    {"(A) (B)": "(A)", "A, B": "A", "x. C.": "C.", "a B": "B"},
)
_SPACES = pattern(r"\s+|\\[,:;!> ]|\\q?quad(?![A-Za-z])|~", {"a  b": "  ", r"A\quad B": r"\quad"})


def option_alone(words: str) -> str:
    """The letter that words name and nothing else, or an empty text."""
    found = _ALONE.fullmatch(words)
    return (found[1] or found[2]).upper() if found else ""


def named_options(text: str) -> set[str]:
    r"""The letters from A to J that stand as options in a text: ``(B)``, ``B.``, ``\text{B}``, a B before no word."""
    bare = _WRAP.sub(" ", _SPACES.sub(" ", text))
    return {(found[1] or found[2]).upper() for found in _NAMED.finditer(_SPACES.sub(" ", bare))}


def names_one_option(text: str) -> bool:
    """True if an answer may name an option: not several letters, and no letter that is a vector."""
    return len(named_options(text)) < 2 and _ACCENTED.fullmatch(text.strip("$ ")) is None


_CAPITALS_OF_OPTIONS = frozenset("abcdefghij")
_SHORT_WORD = pattern(r"[^aeiou][aeiou][^aeiou]|no", ("cat", "no"))


def is_spelt(readings: tuple[Value, ...]) -> bool:
    """True if letters are a name, whose order counts, and no product: ``MAKE``, ``cat``; ``BDE`` may be options."""
    if len(readings) != 2 or not isinstance(readings[0], Text) or not isinstance(readings[1], Expression):
        return False
    words = readings[0].words
    if len(words) < 3 or not all(letter.name.isupper() for letter in readings[1].tree.free_symbols):
        return _SHORT_WORD.fullmatch(words) is not None
    return not (list(words) == sorted(set(words)) and _CAPITALS_OF_OPTIONS.issuperset(words))
