r"""The form in which answers vote: equal for answers that are the same number or the same text up to spelling."""

import hashlib

from dppo.grading.numbers import read_number
from dppo.grading.text import Unreadable, tidy

LONGEST = 200
"""Characters; a longer answer votes by its hash, as it is."""


def vote(answer: str) -> str:
    r"""The answer in its voting form.

    ``0.50``, ``.5``, ``1/2`` and ``\dfrac{1}{2}`` vote alike, and so do ``1,200`` and ``1200``; others vote as the
    verifier spells them, without spaces. Equal values in other forms, such as ``\sqrt 8`` and ``2\sqrt 2``, do not.

    Args:
        answer: the final answer of a completion, not empty.
    """
    try:
        text = tidy(answer) if len(answer) <= LONGEST else answer
    except Unreadable:
        text = answer
    if number := read_number(text):
        return str(number.value)
    text = "".join(text.split()) or answer.strip()
    if len(text) <= LONGEST:
        return text
    return "blake2b:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
