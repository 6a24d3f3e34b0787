"""The letters of options: read where one stands alone or before its text, refused where several are named."""

from answer_judge.grading.patterns import pattern

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
    r"(?:\\text\{ ?)?\((?P<part>[a-h]|i{1,3}|iv|vi?)\) ?:? ?\}?(?=.)",
    {r"\text{(a) }3": r"\text{(a) }", "(ii) 5": "(ii) "},
)
_NAMES_OF_PARTS = ("abcdefgh", ("i", "ii", "iii", "iv", "v", "vi"))


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
