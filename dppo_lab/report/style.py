"""Colours that are easy to tell apart, and figures as SVG that take their colours from the page."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any, Literal
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from dppo_lab.palette import FIXED, SERIES
from dppo_lab.report.text import visible

SVG = "http://www.w3.org/2000/svg"
LINK = "{http://www.w3.org/1999/xlink}href"
INK, MUTED, GRID, PAPER = "#1d1f24", "#5c6068", "#dcdfe4", "#ffffff"
CHROME = {"ink": (INK, "#e8eaed"), "muted": (MUTED, "#a9afb9"), "grid": (GRID, "#3a3f47"), "paper": (PAPER, "#16181d")}
"""Colours of everything but data, on light and on dark paper."""
PHASE_LOOKS = {
    "rollout": ("#77aadd", "rollout"),
    "reward": ("#eedd88", "reward"),
    "prune": ("#ee8866", "pruning"),
    "log_probs": ("#bbcc33", "log-probabilities"),
    "forward_backward": ("#99ddff", "forward and backward"),
    "optimizer": ("#ffaabb", "optimizer"),
    "other": ("#c6c8cc", "not in a phase"),
}
"""Colour and name of each phase; they lie on either paper with dark text on them."""
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*Xh"
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dppo",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "lines.linewidth": 1.8,
}
WIDTH, HEIGHT = 4.6, 3.1
"""Inches of a figure: narrow, so that on a phone its text is as large as the page's small print."""
WIDE = 9.6
"""Inches of a figure over the whole width of a screen; a phone gets the same one narrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one method is drawn, everywhere."""

    colour: str
    dash: str
    marker: str
    variable: str
    """CSS variable that holds the colour in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure, or the reason why it cannot be drawn."""

    key: str
    """File name without its ending, and prefix of ids in the page."""
    title: str
    caption: str
    figure: Figure | None = None
    """None where figures are missing; ``caption`` then says which, and which setting records them."""
    screen: Literal["any", "wide", "narrow"] = "any"
    """Where the page shows it: on every screen, or on one that is wide, or narrow."""


@contextmanager
def drawing() -> Iterator[None]:
    """A context in which figures are made and saved in the report's style."""
    with warnings.catch_warnings(), matplotlib.rc_context(RC):
        # Names may be in any script: the page and SVG have the reader's fonts, and PNG files a box instead.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """How each method of a report is drawn."""
    fixed = {label: FIXED[label] for label in labels if label in FIXED}
    free = [name for name in SERIES if name not in fixed.values()] or list(SERIES)
    first = [(name, DASHES[0]) for name in free]
    later = [(name, dash) for dash, name in product(DASHES[1:], SERIES)]
    others = cycle([*first, *later])
    found = {}
    for place, label in enumerate(labels):
        name, dash = (fixed[label], DASHES[0]) if label in fixed else next(others)
        marker = MARKERS[place % len(MARKERS)]
        found[label] = Look(colour=SERIES[name][0], dash=dash, marker=marker, variable=f"--series-{name}")
    return found


def new_figure(*, height: float = HEIGHT, width: float = WIDTH) -> Figure:
    """An empty figure of that size, in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: Figure) -> bytes:
    """The figure, made within ``drawing``, on light paper."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    return buffer.getvalue()


def as_svg(figure: Figure) -> bytes:
    """The figure, made within ``drawing``, on light paper, as a file of its own."""
    if figure.get_layout_engine() is not None:
        # Once laid out it stays as it is: finding room for text is most of the work, and is done for each file.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def as_inline_svg(chart: Chart, svg: bytes) -> str:
    """A figure as an element of the page: no paper, colours from the page's variables, ids of its own."""
    # Without the document type, which a page has no use for.
    root = ElementTree.fromstring(re.sub(rb"<!DOCTYPE[^>]*>", b"", svg, count=1))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rsplit("}", 1)[-1] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        _rewrite(element, chart.key)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": "figure", "role": "img", "aria-label": visible(chart.title)}
    # The figure's own background is the first patch of it.
    figure = next(element for element in root.iter() if element.get("id", "").endswith("-figure_1"))
    figure.remove(next(child for child in figure if child.get("id", "").endswith("-patch_1")))
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


VARIABLES = {f"--{name}": pair for name, pair in CHROME.items()} | {f"--series-{k}": v for k, v in SERIES.items()}
"""CSS variables to their colours on light and on dark paper."""
_VARIABLE = {light: name for name, (light, _) in VARIABLES.items()}
_COLOUR = re.compile("|".join(_VARIABLE))


def _rewrite(element: ElementTree.Element, prefix: str) -> None:
    if "style" in element.attrib:
        style = _COLOUR.sub(lambda found: f"var({_VARIABLE[found.group()]})", element.attrib["style"])
        element.set("style", style.replace("'DejaVu Sans'", "var(--sans)"))
    if LINK in element.attrib:
        element.set("href", element.attrib.pop(LINK))
    for name, value in element.attrib.items():
        if name == "id":
            element.set(name, f"{prefix}-{value}")
        elif name == "href" and value.startswith("#"):
            element.set(name, f"#{prefix}-{value[1:]}")
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{prefix}-"))
