"""Answers in words: names, yes and no, the letter of an option, a clock time; and words around any answer.

The letter of an option is read where it stands alone or before its text, and refused where several are named.
"""

from answer_judge.grading.changes import unsays
from answer_judge.grading.patterns import pattern
from answer_judge.grading.text import TEXT, TYPED, head
from answer_judge.grading.values import Text

_NOT_LETTERS = pattern(r"[^a-z ]", {"it's": "'"})
_PLAIN_WORDS = pattern(r"[A-Za-z][A-Za-z .'\"!?()-]*", ("John's (old) dog",))
_WRAPPED_WORDS = pattern(r"[A-Za-z][A-Za-z .,;'\"!?()-]*", ("yes, it is",))
_LATE_CAPITAL = pattern(r"(?<=\w) A\b", {"east A": " A"})
"""No article."""
_LONE_LETTER = pattern(r"\b[A-Za-z]\b(?<!\ba)", {"a line of x": "x"})


_CONDITION = pattern(
    r"(?<![A-Za-z])for (?:all|any|every|each)\b", {r"f(x)=0\text{ for all }x": "for all", "2n, for each n": "for each"}
)
_PREAMBLE = pattern(
    r"^(?:\\text\{(?:[^{}]*\b(?:is|are|equals|=|:)|\s*(?:about|approximately|approx\.?|roughly|around))\s*\}\s*[:=]?"
    r"|(?:about|approximately|roughly)\b)\s*(?=\S)",
    {r"\text{The area is } 5": r"\text{The area is } ", "about 5": "about "},
)
_AGAIN = pattern(
    r"(?<!\s)\s*\(\s*(or\b|=|\\approx(?![A-Za-z]))([^()]*)\)$", {"1/2 (or 0.5)": " (or 0.5)", "1/2 (= 0.5)": " (= 0.5)"}
)

_THERE_ARE = pattern(
    r"(?:\\text\{ ?)?[Tt]here (?:is|are) (?:exactly |only )?(\d[^{}]*)\}?",
    (r"\text{There are 15 ways}", "There are exactly 15 ways"),
)

ASKED = pattern(
    r"\\(?:sum|int|prod|lim|det|max|min|gcd|lcm|Pr|mathbb)(?![A-Za-z])|P\s*\(",
    {r"\sum_{k}k=5": r"\sum", "P(A|B)=1": "P("},
)
"""How a left side begins that we cannot read, but which says what was asked for."""

POINT = pattern(
    r"^(?:[A-Z]|\\text\{ ?(?:(?i:at|the|is|open|closed|half-open|ordered|unique|only|answer|solution|domain|range"
    r"|interval|notation|points?|vertex|cent(?:er|re)|focus|midpoint|intersection|origin|coordinates|pair|triple|tuple"
    r"|vector|maximum|minimum)\b[ :]*)*[A-Z]? ?\})\s*\((?=[^()]*,)",
    {"P(1,2)": "P(", r"\text{Point }(1,2)": r"\text{Point }(", r"\text{the point P}(1,2)": r"\text{the point P}("},
)
"""A name before a tuple or an interval; any other word, as "not" and "outside", may make another of it."""


def answer_alone(text: str) -> str:
    """A tidy text without "the answer is" or "about" before it, "for all x" after it, and brackets around "or 0.5"."""
    text = found[1] if (found := _THERE_ARE.fullmatch(text)) else text
    condition = _CONDITION.search(text)
    text = _AGAIN.sub(r" \1\2", head(text, condition.start()) if condition else text)
    found = None if labelled(text) else _PREAMBLE.match(text)
    return text[found.end() :].strip() if found and not unsays(found[0]) else text.strip()


def words_of(text: str) -> Text | None:
    r"""The words of a text, where it has nothing else: no formula, no number except in a clock time."""
    bare = TEXT.sub(lambda match: f" {match[1]} ", text)
    bare = " ".join(bare.replace("{", " ").replace("}", " ").split())
    letter = option_alone(bare)
    if clock := _CLOCK.fullmatch(bare.lower().replace(".", "")):
        return Text(f"{int(clock[1])}:{clock[2] or '00'} {clock[3] or ''}".strip())
    if date := _DATE.fullmatch(bare.lower()):
        return Text(f"{(date[1] or date[4])[:3]} {int(date[2] or date[3])}")
    if said := _SAID.fullmatch(bare.lower()):
        return Text(said["yes"] or said["no"])
    wrapped = r"\text{" in text
    if letter:
        return Text(bare.lower(), letter)
    words = _NOT_LETTERS.sub(" ", bare.lower()).split()
    plain = (_WRAPPED_WORDS if wrapped else _PLAIN_WORDS).fullmatch(bare)
    if not plain or not words or (len(words) == 1 and len(words[0]) == 1) or words[0] in TYPED:
        return None
    if not wrapped and _LONE_LETTER.search(bare):
        return None  # letters of a formula between the words
    late = " A" if _LATE_CAPITAL.search(bare) else ""
    bare = " ".join(word for word in words if word not in ("a", "an", "the", "it", "is", "on"))
    return Text(_LONG_FORMS.get(bare, bare) + late)


_SAID = pattern(
    r"(?:(?P<yes>yes|true)[,.:;] (?!.*\bnot\b)|(?P<no>no|false)[,.:;] )"
    r"(?!.*\b(?:yes|no|true|false|but|maybe|or)\b)[a-z ,.']*",
    ("yes, it is even.", "no, it is not."),
)
_COUNT = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
NUMBER_WORDS = {word: number for number, word in enumerate(_COUNT)}
"""Numbers that are read in words."""
_MONTH = (
    "(january|february|march|april|may|june|july|august|september|october|november|december"
    "|(?:jan|feb|mar|apr|aug|sept?|oct|nov|dec)[.]?)"
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATE = pattern(rf"{_MONTH} {_DAY}|{_DAY} {_MONTH}", {"march 3rd": "march 3rd", "3 mar.": "3 mar."})
_LONG_FORMS: dict[str, str] = dict.fromkeys(("dne", "undefined", "not defined"), "does not exist")
_CLOCK = pattern(r"([01]?\d|2[0-4])(?::([0-5]\d)(?=\s*[ap]m|$)|(?=\s*[ap]m))\s*([ap]m)?", ("12:30 pm", "7 am", "9:05"))


def of_the_day(words: str) -> str:
    """A time that says which half of the day it is in, as ``19:30``; an empty text for any other words."""
    found = _CLOCK.fullmatch(words)
    hour = int(found[1]) if found else 1
    if not found or not (found[3] or hour > 12 or hour == 0):
        return ""
    return f"{hour % 12 + 12 * (found[3] == 'pm') if found[3] else hour}:{found[2]}"


_ALONE = pattern(
    r"(?i:the )?(?i:correct )?(?i:option|choice|answer)?(?i: is)?[: ]*(?:\(([A-Ja-j])\)|([A-Ja-j]))[.:)]?",
    ("The correct option is (b)", "(D)", "c.", "Option: B"),
)
_LABEL = pattern(
    r"(?:\\text\{ ?(?:\(([A-J])\)|([A-J])[.:)]) ?\}|(?:[Oo]ption |[Cc]hoice )?(?:\(([A-J])\)|([A-J])[.:)]))"
    r"(?=[ \\]|(?<=\})\d) ?[.:]? ?",
    {"(D) 14": "(D) ", r"\text{(D)} 14": r"\text{(D)} ", "B. 5": "B. ", "Option C: two": "Option C: "},
)
"""A letter is a label by its brackets or its stop: ``\\text{E} x`` is a product."""
_GOES_ON = pattern(
    r"[\^_*+/!=<>|&~]|-(?= |$)"
    r"|\\(?:cdot|pm|mp|le|ge|ne|in|approx|cup|cap|setminus|to|lor|land|vee|wedge|neg|lnot)(?![A-Za-z])",
    {r"^2": "^", r"\cdot 2": r"\cdot", "- 1": "-"},
)
"""How a text goes on that is one formula with the letter before it."""
_ACCENTED = pattern(r"\\(?:vec|overrightarrow) ?\{? ?[A-J] ?\}?", (r"\vec{A}", r"\overrightarrow B"))
_TAKEN_BACK = pattern(
    r"(?:\\text\{ ?)?(?:it |this |that )?(?:is |was |are )?"
    r"(?:not|n't|isn't|wrong|incorrect|false|no|never|nor|neither|or|and|but|versus|vs)\b.*",
    ("is wrong", "not this one", r"\text{not } x"),
)
_WORDS = pattern(r"\\text\{([^{}]*)\}", (r"\text{(B) 5}",))
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


def labelled(text: str) -> tuple[str, str] | None:
    """The letter of an option and the text behind it in a tidy text such as ``(D) 14``; None for anything else."""
    text = whole[1].strip() if (whole := _WORDS.fullmatch(text)) else text
    found = _LABEL.match(text)
    rest = text[found.end() :].strip() if found else ""
    if not found or not rest or _GOES_ON.match(rest) or _TAKEN_BACK.fullmatch(rest):
        return None
    letter = next(part for part in found.groups() if part)
    return None if named_options(rest) - {letter} else (letter, rest)


_PART = pattern(
    r"(?:\\text\{ ?)?\((?P<part>[a-h]|i{1,3}|iv|vi?|[1-9](?=\)[: ]))\) ?:? ?\}?(?=.)",
    {r"\text{(a) }3": r"\text{(a) }", "(ii) 5": "(ii) "},
)
_NAMES_OF_PARTS = ("abcdefgh", "123456789", ("i", "ii", "iii", "iv", "v", "vi"))


def unlabelled(pieces: list[str]) -> list[str] | None:
    """The answers to the parts (a), (b), ... or (i), (ii), ... without those names; None where they have none."""
    found = [_PART.match(piece) for piece in pieces]
    names = [part["part"] for part in found if part]
    if not any(names == list(known[: len(pieces)]) for known in _NAMES_OF_PARTS):
        return None
    return [piece[part.end() :] for piece, part in zip(pieces, found, strict=True) if part]


def named_options(text: str) -> set[str]:
    r"""The letters from A to J that stand as options in a text: ``(B)``, ``B.``, ``\text{B}``, a B before no word."""
    bare = _WRAP.sub(" ", _SPACES.sub(" ", text))
    return {(found[1] or found[2]).upper() for found in _NAMED.finditer(_SPACES.sub(" ", bare))}


def names_one_option(text: str) -> bool:
    """Whether an answer may name an option: not several letters, and no letter that is a vector."""
    return len(named_options(text)) < 2 and _ACCENTED.fullmatch(text.strip("$ ")) is None
