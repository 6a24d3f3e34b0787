"""Untrusted text made visible, and numbers as text that fits a table."""

import math
import re

NOT_THERE = "—"
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Control characters but tab and line feed, and those that turn text around, have no width, or are half a pair."""


def visible(text: str) -> str:
    """``text`` with every character that cannot be seen, or that moves other text about, as an escape sequence."""
    return _HIDDEN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``, and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def amount(value: float, digits: int = 3) -> str:
    """A number with ``digits`` digits that count, thousands apart; a dash where it is not finite."""
    if not math.isfinite(value):
        return NOT_THERE
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{places}f}" if 0 <= places <= 6 else f"{value:,.0f}" if places < 0 else f"{value:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """Seconds >= 0 as hours, minutes and seconds, the two largest of them; a dash where not finite."""
    if not math.isfinite(seconds):
        return NOT_THERE
    if seconds < 60:
        return f"{amount(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def counted(count: int, what: str) -> str:
    """``3 seeds``, ``1 seed``."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")
