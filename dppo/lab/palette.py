"""Colours of methods, the same in the report, the demonstration and the pictures of the docs."""

from collections.abc import Mapping
from types import MappingProxyType

SERIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "grey": ("#6e6e73", "#b0b3ba"),
        "blue": ("#0072b2", "#4db1ee"),
        "vermilion": ("#d55e00", "#ff8a3d"),
        "green": ("#009e73", "#31cfa1"),
        "purple": ("#b5548c", "#ee9fcb"),
        "amber": ("#b57a00", "#f5bd3d"),
        "indigo": ("#332288", "#a79cf2"),
        "sky": ("#4198c9", "#9bdcff"),
        "wine": ("#882255", "#dd7fa9"),
    }
)
"""On light and on dark paper, after Okabe and Ito and after Tol: apart in hue and in lightness."""
FIXED: Mapping[str, str] = MappingProxyType(
    {"trl": "grey", "dppo": "blue", "cppo": "vermilion", "grpo": "green", "greso": "purple", "dapo": "amber"}
)
"""Methods that have the same colour everywhere; the others take what is left, in their order."""


def colour_of(method: str) -> str:
    """The colour on light paper of a method in ``FIXED``."""
    return SERIES[FIXED[method]][0]
