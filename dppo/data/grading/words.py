"""Answers in words: names, yes and no, the letter of an option, a clock time."""

import re

from dppo.data.grading.text import FUNCTIONS, TEXT
from dppo.data.grading.values import Text

_LETTER = re.compile(
    r"^(?i:the )?(?i:correct )?(?i:option|choice|answer)?[:\s]*(?:\(([A-Ja-j])\)|([A-Ja-j]))$"
    r"|^(?i:option |choice )?(?:\(([A-J])\)|([A-J])[.:)])\s",
)
_MANY_LETTERS = re.compile(r"\([A-J]\)|\b(?:or|and)\b")


def words_of(text: str) -> Text | None:
    r"""The words of a text, where it has nothing else: no formula, no number except in a clock time."""
    bare = TEXT.sub(lambda match: f" {match[1]} ", text)
    bare = " ".join(bare.replace("{", " ").replace("}", " ").split())
    option = _LETTER.match(bare)
    letter = next((part for part in option.groups() if part), "").upper() if option else ""
    if letter and _MANY_LETTERS.search(bare[option.end() :] if option else ""):
        letter = ""
    clock = _CLOCK.fullmatch(bare.lower().replace(".", ""))
    if clock:
        return Text(f"{int(clock[1])}:{clock[2]} {clock[3] or ''}".strip())
    wrapped = r"\text{" in text
    if letter:
        return Text(bare.lower(), letter)
    words = re.sub(r"[^a-z ]", " ", bare.lower()).split()
    plain = re.fullmatch(r"[A-Za-z][A-Za-z .'\"!?()-]*" if not wrapped else r"[A-Za-z][A-Za-z .,;'\"!?()-]*", bare)
    if not plain or not words or (len(words) == 1 and len(words[0]) == 1) or words[0] in FUNCTIONS:
        return None
    if not wrapped and re.search(r"\b[A-Za-z]\b(?<!\ba)", bare):
        return None  # letters of a formula between the words
    return Text(" ".join(word for word in words if word not in ("a", "an", "the", "it", "is")))


_CLOCK = re.compile(r"(\d{1,2}):(\d{2})\s*([ap]m)?")
