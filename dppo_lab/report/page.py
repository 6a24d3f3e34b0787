"""Puts a report's figures and tables into one page, and writes it with its figures beside it."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dppo import __version__
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo_lab.comparison.words import NOT_THERE, amount, findings
from dppo_lab.report.browser import FIGURES as OF_COMPLETIONS
from dppo_lab.report.browser import choose, reason, text_of
from dppo_lab.report.figures_cost import fill_chart, phases_chart, phases_over_updates, tokens_chart
from dppo_lab.report.figures_curves import (
    FIGURES,
    accuracy_chart,
    accuracy_charts,
    coverage,
    how_to_read,
    pruning_chart,
)
from dppo_lab.report.figures_prompts import prompts_chart
from dppo_lab.report.sources import Contents, read_sources
from dppo_lab.report.style import VARIABLES, WIDE, Chart, Look, as_inline_svg, as_png, as_svg, drawing, looks
from dppo_lab.report.tables import EQUAL, ceiling_lines, method_line, run_lines, summaries, target_lines
from dppo_lab.report.text import visible
from dppo_lab.runs.reader import number

INTROS = {
    "accuracy": ("Accuracy", "Accuracy on held-out problems against what it cost."),
    "seconds": (
        "Where the seconds went",
        "Seconds of training by phase. Pruning prompts saves rollouts, pruning completions saves forward and backward.",
    ),
    "pruning": (
        "What was kept, and what it cost in noise",
        "Few effective rows, a large weight or much added variance mean that a step leans on few completions: prune "
        "less, or raise the floor.",
    ),
    "prompts": (
        "Prompts by difficulty",
        "Each line is a prompt, each column an epoch. Prompts that are always solved or never solved teach nothing: "
        "those are the ones to skip.",
    ),
    "rows": ("Row fill", "Padding is computed and thrown away; rows hold the kept completions end to end."),
}
"""Title and first sentence of each section of figures, in the order of the page."""
OVER_SEEDS = ("accuracy", "pruning")
"""Sections whose lines are means over seeds."""
_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5}),\s*(.*?)(?=,\s*on top of arXiv:|$)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a report wrote."""

    page: Path
    figures: tuple[Path, ...]
    missing: tuple[str, ...]
    """Titles of figures that could not be drawn."""


def write_report(folders: Sequence[str | Path] | str | Path, output: str | Path) -> Written:
    """Write the page ``output``, and its figures as PNG and SVG into ``<output's name>_figures`` beside it.

    ``folders`` are of runs or comparisons, or a single one; ``output`` ends in ``.html``. A ``ConfigError`` says that a
    folder is neither, that nothing was logged, that runs are of different tasks, or that the page cannot be written.
    """
    output = Path(output)
    if output.suffix.lower() not in (".html", ".htm"):
        page = output / "report.html" if output.is_dir() else output.with_suffix(".html")
        raise ConfigError(f"--output {output} must be an HTML file. Try --output {page}")
    paths = [folders] if isinstance(folders, str | Path) else folders
    contents = read_sources(paths)
    if output != Path(paths[0]) / "report.html":
        contents = replace(contents, command=f"{contents.command} --output {shlex.quote(str(output))}")
    folder = output.with_name(f"{output.stem}_figures")
    with drawing():
        panels = draw_panels(contents, looks([group.label for group in contents.groups]))
        charts = [chart for drawn in panels.values() for chart in drawn]
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


def write_accuracy(folder: Path, path: Path, labels: Mapping[str, str]) -> Path:
    """Write a PNG of accuracy against seconds to ``path``: of a comparison's methods, under other ``labels``."""
    contents = read_sources([folder])
    look = {labels.get(label, label): how for label, how in looks([g.label for g in contents.groups]).items()}
    groups = tuple(replace(group, label=labels.get(group.label, group.label)) for group in contents.groups)
    with drawing():
        chart = accuracy_chart(replace(contents, groups=groups), look, "seconds", width=WIDE)
        if chart.figure is None:
            raise ConfigError(f"{folder}: {chart.caption}")
        path.write_bytes(as_png(chart.figure))
    return path


def draw_panels(contents: Contents, look: Mapping[str, Look]) -> dict[str, Sequence[Chart]]:
    """Every figure of a report, by the key of its section."""
    groups = contents.groups
    alone = [phases_over_updates(groups[0].logged[0])] if len(groups) == 1 else []
    maps = [prompts_chart(group, f"prompts-{place}") for place, group in enumerate(groups)]
    return {
        "accuracy": accuracy_charts(contents, look),
        "seconds": [phases_chart(contents), *alone],
        "pruning": [pruning_chart(contents, look, figure) for figure in FIGURES],
        "prompts": [chart for chart in maps if chart.figure is not None] or maps[:1],
        "rows": [fill_chart(contents), tokens_chart(contents, look)],
    }


def render(contents: Contents, panels: Mapping[str, Sequence[Chart]], svgs: Mapping[str, bytes]) -> str:
    """The page as text.

    Every value is escaped by the template, and made visible first; only figures go in as they are, and matplotlib has
    escaped the text in those.
    """
    look = looks([group.label for group in contents.groups])
    shown, compared = choose(contents), [group.compared for group in contents.groups]
    environment = Environment(
        loader=PackageLoader("dppo_lab.report", "."), autoescape=True, undefined=StrictUndefined,
        # Markup of ours as it is, anything else as visible text.
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "value": _value, "reason": reason, "conversation": text_of, "figure": lambda value: amount(number(value)),
    }  # fmt: skip
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return environment.get_template("template.html").render(
        contents=contents,
        panels=panels,
        intros=INTROS,
        notes=dict.fromkeys(OVER_SEEDS, how_to_read(contents)),
        svg={c.key: Markup(as_inline_svg(c, svgs[c.key])) for p in panels.values() for c in p if c.key in svgs},
        look=look,
        methods=[method_line(group) for group in contents.groups],
        compared=any(each.readout for each in compared),
        equal=EQUAL,
        targets=target_lines(contents),
        ceilings=ceiling_lines(contents),
        target=next((f"Target: {each.target}." for each in compared if each.target), ""),
        runs=run_lines(contents),
        summaries=summaries(contents),
        findings=findings({f"{g.label} (biased)" if g.biased else g.label: g.compared for g in contents.groups}),
        coverage=coverage(contents),
        shown=shown,
        figures=OF_COMPLETIONS,
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


def bibtex(papers: Iterable[str]) -> str:
    """One entry per arXiv number in texts as ``Method.paper`` has them, in the order they appear.

    Authors are not there and are left out rather than guessed. The title is that of the preset.
    """
    presets, found = _titles(method.paper for method in METHODS.values()), _titles(papers)
    found = {eprint: presets.get(eprint, title) for eprint, title in found.items()}
    return "\n\n".join(_entry(eprint, title) for eprint, title in found.items())


def _titles(papers: Iterable[str]) -> dict[str, str]:
    """Titles by arXiv number, the first of each."""
    titles: dict[str, str] = {}
    for cited in (cited for paper in papers for cited in _PAPER.finditer(paper)):
        titles.setdefault(str(cited[1]), str(cited[2]))
    return titles


def _entry(eprint: str, title: str) -> str:
    plain = " ".join(re.sub(r"[{}\\]", "", title).split())
    lines = {
        "title": f"{{{plain}}}",
        "year": f"20{eprint[:2]}",
        "eprint": eprint,
        "archivePrefix": "arXiv",
        "url": f"https://arxiv.org/abs/{eprint}",
    }
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in lines.items())
    return f"@misc{{arxiv{eprint},\n{body}\n}}"
