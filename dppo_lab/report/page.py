"""Puts a report's figures and tables into one page, and writes it with its figures beside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dppo import __version__
from dppo.errors import ConfigError
from dppo_lab.report.bibtex import bibtex
from dppo_lab.report.browser import choose
from dppo_lab.report.figures_cost import fill_chart, phases_chart, phases_over_updates, tokens_chart
from dppo_lab.report.figures_curves import FIGURES, accuracy_charts, coverage, how_to_read, pruning_chart
from dppo_lab.report.figures_prompts import prompts_chart
from dppo_lab.report.sources import Contents, read_sources
from dppo_lab.report.style import VARIABLES, Chart, Look, as_inline_svg, as_png, as_svg, drawing, looks
from dppo_lab.report.tables import EQUAL, ceiling_lines, findings, method_line, run_lines, target_lines
from dppo_lab.report.text import NOT_THERE, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A section of figures."""

    key: str
    title: str
    intro: str
    charts: tuple[Chart, ...]
    note: str = ""
    """How to read the lines, where they are over seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report wrote."""

    page: Path
    figures: tuple[Path, ...]
    missing: tuple[str, ...]
    """Titles of figures that could not be drawn."""


def write_report(folders: Sequence[str | Path] | str | Path, output: str | Path) -> Written:
    """Write the page ``output``, and its figures as PNG and SVG into ``<output's name>_figures`` beside it.

    Args:
        folders: of runs or comparisons, or a single one.
        output: ends in ``.html``.

    Raises:
        ConfigError: a folder is neither run nor comparison, nothing was logged, runs are of different tasks, or the
            page cannot be written there.
    """
    output = Path(output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output {output} must be an HTML file. Try --output {output.with_suffix('.html')}")
    contents = read_sources([folders] if isinstance(folders, str | Path) else folders)
    folder = output.with_name(f"{output.stem}_figures")
    with drawing():
        panels = draw_panels(contents, looks([group.label for group in contents.groups]))
        charts = [chart for panel in panels for chart in panel.charts]
        svgs = {chart.key: as_svg(chart.figure) for chart in charts if chart.figure is not None}
        page = render(contents, panels, svgs)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files: dict[Path, bytes] = {}
            for chart in charts:
                if chart.figure is not None:
                    files[folder / f"{chart.key}.png"] = as_png(chart.figure)
                    files[folder / f"{chart.key}.svg"] = svgs[chart.key]
            for path, data in files.items():
                path.write_bytes(data)
            output.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output} cannot be written ({error}). Try --output report.html") from error
    missing = tuple(chart.title for chart in charts if chart.figure is None)
    return Written(page=output, figures=tuple(files), missing=missing)


def draw_panels(contents: Contents, look: Mapping[str, Look]) -> tuple[Panel, ...]:
    """Every figure of a report, in the order of the page."""
    groups = contents.groups
    time = [phases_chart(contents)]
    if len(groups) == 1:
        time.append(phases_over_updates(groups[0].logged[0]))
    note = how_to_read(contents)
    maps = [prompts_chart(group, f"prompts-{place}") for place, group in enumerate(groups)]
    maps = [chart for chart in maps if chart.figure is not None] or maps[:1]
    return (
        Panel(
            key="accuracy",
            title="Accuracy",
            intro="Accuracy on held-out problems against what it cost.",
            charts=accuracy_charts(contents, look),
            note=note,
        ),
        Panel(
            key="seconds",
            title="Where the seconds went",
            intro="Wall-clock of training by phase. Pruning prompts saves rollouts, pruning completions saves forward "
            "and backward.",
            charts=tuple(time),
        ),
        Panel(
            key="pruning",
            title="What was kept, and what it cost in noise",
            intro="Few effective rows, a large weight or much added variance mean that a step leans on few "
            "completions: prune less, or raise the floor.",
            charts=tuple(pruning_chart(contents, look, figure) for figure in FIGURES),
            note=note,
        ),
        Panel(
            key="prompts",
            title="Prompts by difficulty",
            intro="Each line is a prompt, each column an epoch. Prompts that are always solved or never solved teach "
            "nothing: those are the ones to skip.",
            charts=tuple(maps),
        ),
        Panel(
            key="rows",
            title="Row fill",
            intro="Padding is computed and thrown away; rows hold the kept completions end to end.",
            charts=(fill_chart(contents), tokens_chart(contents, look)),
        ),
    )


def render(contents: Contents, panels: Sequence[Panel], svgs: Mapping[str, bytes]) -> str:
    """The page as text.

    Every value is escaped by the template, and made visible first; only figures go in as they are, and matplotlib has
    escaped the text in those.
    """
    look = looks([group.label for group in contents.groups])
    shown = choose(contents)
    environment = Environment(
        loader=PackageLoader("dppo_lab.report", "."), autoescape=True, undefined=StrictUndefined,
        # Markup of ours as it is, anything else as visible text.
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["value"] = _value
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return environment.get_template("template.html").render(
        contents=contents,
        panels=panels,
        svg={c.key: Markup(as_inline_svg(c, svgs[c.key])) for p in panels for c in p.charts if c.key in svgs},
        look=look,
        methods=[method_line(group) for group in contents.groups],
        compared=any(group.readout for group in contents.groups),
        equal=EQUAL,
        targets=target_lines(contents),
        ceilings=ceiling_lines(contents),
        target=next((f"Target: {group.target}." for group in contents.groups if group.target), ""),
        runs=run_lines(contents),
        findings=findings(contents),
        coverage=coverage(contents),
        shown=shown,
        bibtex=bibtex(group.paper for group in contents.groups),
        papers=tuple(dict.fromkeys(group.paper for group in contents.groups if group.paper)),
        light=Markup("".join(f"{name}:{pair[0]};" for name, pair in VARIABLES.items())),
        dark=Markup("".join(f"{name}:{pair[1]};" for name, pair in VARIABLES.items())),
        style=Markup(style),
        version=__version__,
    )


def _value(value: Any) -> str:
    """A setting as JSON writes it, without quotes around a text."""
    if value is None:
        return NOT_THERE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
