r"""The form in which answers vote: equal for answers that are the same number or the same text up to spelling."""

import hashlib
import re
import unicodedata
from fractions import Fraction

LONGEST = 200
"""Characters; a longer answer votes by its hash."""

_SPACING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,!;: ]|[\s$]")
_FRACTION_NAME = re.compile(r"\\[dtc]frac(?![a-z])")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d{1,30})?")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d{0,30})?|\.\d{1,30})")
_QUOTIENT = re.compile(
    r"(?P<sign>[-+]?)(?:\\frac\{(?P<a>-?\d{1,40})\}\{(?P<b>\d{1,40})\}|(?P<c>\d{1,40})/(?P<d>\d{1,40}))"
)


def vote(answer: str) -> str:
    r"""The answer in its voting form.

    ``0.50``, ``.5``, ``1/2`` and ``\dfrac{1}{2}`` vote alike, and so do ``1,200`` and ``1200``; others vote as text
    without spaces, ``$``, ``\left`` and ``\right``. Equal values in other spellings, such as ``\sqrt 8`` and
    ``2\sqrt 2``, are different votes.

    Args:
        answer: the final answer of a completion, not empty.
    """
    text = _FRACTION_NAME.sub(
        r"\\frac", _SPACING.sub("", unicodedata.normalize("NFKC", answer.replace("{,}", ",")))
    ).rstrip(".")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return str(Fraction(text.rstrip(".")))
    quotient = _QUOTIENT.fullmatch(text)
    if quotient:
        above, below = int(quotient["a"] or quotient["c"]), int(quotient["b"] or quotient["d"])
        if below:
            return str(Fraction(-above if quotient["sign"] == "-" else above, below))
    text = text or answer.strip()
    if len(text) <= LONGEST:
        return text
    return "blake2b:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
