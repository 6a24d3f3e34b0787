"""Untrusted text made visible."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Control characters but tab and line feed, and those that turn text around, have no width, or are half a pair."""


def visible(text: str) -> str:
    """``text`` with every character that cannot be seen, or that moves other text about, as an escape sequence."""
    return _HIDDEN.sub(lambda found: ascii(found.group())[1:-1], text.replace("\r\n", "\n"))


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``, and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
