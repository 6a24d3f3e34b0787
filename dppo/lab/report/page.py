"""Puts a report's figures and tables into one page that opens without a network."""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dppo import __version__
from dppo.errors import ConfigError
from dppo.lab.comparison.curves import READOUTS
from dppo.lab.comparison.words import NOT_THERE
from dppo.lab.report.charts import (
    ACCURACY_OVER_SECONDS,
    PRUNED,
    REWARD,
    Chart,
    Look,
    drawing,
    looks,
    metric_chart,
    phases_chart,
    saved,
)  # fmt: skip
from dppo.lab.report.curves import how_to_read
from dppo.lab.report.sources import Contents, read_sources
from dppo.lab.report.tables import method_line

INTROS = {
    "accuracy": ("Accuracy and reward", "Accuracy on held-out problems against its cost, and reward in training."),
    "seconds": (
        "Where the seconds went",
        "Seconds of training by phase. Pruning prompts saves rollouts, pruning completions saves forward and backward.",
    ),
    "pruning": ("What was pruned", "With much added variance a step depends on few completions: prune less."),
}
"""Title and first sentence of each section of figures, in the order of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A written report."""

    page: Path
    missing: tuple[str, ...]
    """Titles of figures that could not be drawn."""


def write_report(folder: str | Path, output: str | Path) -> Written:
    """Write the page ``output``, which ends in ``.html``, about the folder of a run or of a comparison.

    A ``ConfigError`` says that the folder is neither, that nothing was logged, or that the page cannot be written.
    """
    output = Path(output)
    if output.suffix.lower() not in (".html", ".htm"):
        page = output / "report.html" if output.is_dir() else output.with_suffix(".html")
        raise ConfigError(f"--output {output} must be an HTML file. Try --output {page}")
    contents = read_sources(folder)
    if output != Path(folder) / "report.html":
        contents = replace(contents, command=f"{contents.command} --output {shlex.quote(str(output))}")
    with drawing():
        look = looks([group.label for group in contents.groups])
        panels = draw_panels(contents, look)
        page = render(contents, panels, look)
    try:
        output.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error}). Try --output report.html") from error
    charts = [chart for drawn in panels.values() for chart in drawn]
    return Written(page=output, missing=tuple(chart.title for chart in charts if chart.figure is None))


def write_accuracy(folder: Path, path: Path) -> Path:
    """Write a PNG of accuracy against seconds to ``path``, of the methods of a comparison."""
    contents = read_sources(folder)
    with drawing():
        chart = metric_chart(
            contents, looks([group.label for group in contents.groups]), ACCURACY_OVER_SECONDS, width=9.6
        )
        if chart.figure is None:
            raise ConfigError(f"{folder}: {chart.caption}")
        path.write_bytes(saved(chart.figure, "png"))
    return path


def draw_panels(contents: Contents, look: Mapping[str, Look]) -> dict[str, list[Chart]]:
    """Every figure of a report, by the key of its section."""
    parts = {"accuracy": (ACCURACY_OVER_SECONDS, REWARD), "seconds": (), "pruning": PRUNED}
    panels = {key: [metric_chart(contents, look, metric) for metric in metrics] for key, metrics in parts.items()}
    return panels | {"seconds": [phases_chart(contents)]}


def render(contents: Contents, panels: Mapping[str, Sequence[Chart]], look: Mapping[str, Look]) -> str:
    """The page as text: the template escapes every value, and figures are images, in which nothing runs."""
    environment = Environment(
        loader=PackageLoader("dppo.lab.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"value": _value, "image": _image}
    compared = [each.compared for each in contents.groups]
    return environment.get_template("template.html").render(
        contents=contents,
        panels=panels,
        intros=INTROS,
        look=look,
        how_to_read=how_to_read(contents),
        methods=[method_line(group) for group in contents.groups],
        compared=any(each.readout for each in compared),
        equal=[name.replace("_", " ") for name in READOUTS],
        target=next((f"Target: {each.target}." for each in compared if each.target), ""),
        style=Markup(Path(__file__).with_name("style.css").read_text(encoding="utf-8")),
        version=__version__,
    )


def _value(value: Any) -> str:
    """A setting as JSON writes it, without quotes around a text."""
    if value is None:
        return NOT_THERE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _image(chart: Chart) -> str:
    """The address of a figure within the page."""
    assert chart.figure is not None
    return f"data:image/svg+xml;base64,{base64.b64encode(saved(chart.figure, 'svg')).decode()}"
