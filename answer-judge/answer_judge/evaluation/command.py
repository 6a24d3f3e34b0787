"""``python -m answer_judge.evaluation MODEL --benchmarks math500,aime24``, and ``... --compare RUN_A RUN_B``."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from answer_judge.errors import ConfigError
from answer_judge.evaluation.compare import PairedResults, compare
from answer_judge.evaluation.engines import DTYPES, ENGINES, ModelSpec, load_engine
from answer_judge.evaluation.problems import choose, load_set
from answer_judge.evaluation.run import Protocol, evaluate
from answer_judge.evaluation.sampling import Sampling
from answer_judge.files import explaining, write_json
from answer_judge.problems.catalogue import BENCHMARKS
from answer_judge.problems.code import FORMATS
from answer_judge.problems.judges import Judges
from answer_judge.sandbox import Limits

INTERRUPTED = 130
"""Exit code of a shell for a command that was stopped by Ctrl-C."""
NARROWEST = 120
"""Columns that the tables need; where fewer are known, lines wrap."""
_DEFAULTS = Sampling()


def build_parser(program: str) -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{program} MODEL --benchmarks NAMES [--data FOLDER] [--output DIR] | {program} --compare RUN_A RUN_B",
        description="Accuracy on benchmarks of mathematics and code, with intervals over problems. Stopped, it goes on "
        "from there when the same command is given again. Protocol and templates: docs/evaluation.md.",
    )
    add = parser.add_argument
    add("model", nargs="?", help="folder or hub name of a model")
    add("--benchmarks", default="", help=f"names with commas between: {','.join(BENCHMARKS)}")
    add(
        "--benchmark",
        action="append",
        default=[],
        metavar="NAME=FILE[:FIELD=COLUMN]",
        help="problems in a file, as often as needed; FIELD is problem, answer, id, extract or rule",
    )
    add("--data", metavar="FOLDER", help="local folder with the benchmarks' files; by default they come from the hub")
    add("--output", metavar="DIR", help="folder for results (default runs/eval), or for comparison.json")
    add("--samples", type=int, help="completions per problem (default: what each benchmark usually draws)")
    add("--k", help="the k of pass@k, with commas between (default: the number of samples)")
    add("--limit", type=int, help="most problems of each benchmark, the same ones in every run")
    add("--seed", type=int, default=0)
    add("--engine", default="transformers", help=f"{' or '.join(ENGINES)} (default transformers)")
    for name in ("temperature", "top_p", "top_k", "max_new_tokens"):
        value = getattr(_DEFAULTS, name)
        add(f"--{name}", type=type(value), default=value, help=f"default {value}")
    add("--batch_size", type=int, help="completions at once (default: the engine's)")
    add("--dtype", default="auto", help=f"one of {', '.join(DTYPES)}")
    add("--revision", help="of the model on the hub")
    add("--tokenizer", help="folder or hub name, where the model has none")
    add("--trust_remote_code", action="store_true")
    add(
        "--prompt_template",
        help="takes the place of the benchmarks' own; {problem} is where the problem goes. A file of your own is asked "
        "by {problem} alone, or for a block of code",
    )
    add("--chat_template_kwargs", type=_object, default={}, metavar="JSON", help='such as {"enable_thinking": false}')
    add("--engine_args", type=_object, default={}, metavar="JSON", help="arguments of from_pretrained or vllm.LLM")
    add("--workers", type=int, default=2, help="processes that judge answers")
    add("--answer_time_limit", type=float, default=5.0, help="seconds that judging one answer may take")
    add("--program_cpu_seconds", type=int, default=5, help="CPU seconds one program may take (default 5)")
    add("--program_memory_mb", type=int, default=256, help="memory of one program in MiB (default 256)")
    add("--accept_weak_sandbox", action="store_true", help="run programs where nothing confines them: docs/code.md")
    add("--compare", nargs=2, type=Path, metavar=("RUN_A", "RUN_B"), help="paired differences, B minus A")
    return parser


def main(words: Sequence[str], program: str = "python -m answer_judge.evaluation") -> int:
    """Evaluate a model, or compare two evaluations, and print the tables; 130 if it was stopped."""
    options = build_parser(program).parse_args(words)
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    if options.compare:
        if options.model:
            raise ConfigError(
                f"--compare takes two folders and no model: {program} --compare {' '.join(map(str, options.compare))}"
            )
        found = compare(*options.compare, seed=options.seed)
        if options.output:
            folder = Path(options.output)
            with explaining(folder, "the comparison could not be written there: --output ANOTHER"):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / "comparison.json", asdict(found))
        show_comparison(found, console)
        return 0
    options.output = options.output or "runs/eval"
    if not options.model:
        raise ConfigError(f"no model is named. Try {program} MODEL --benchmarks math500 --data FOLDER")
    try:
        results = _evaluate(options, console)
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from what is in {options.output}", file=sys.stderr)
        return INTERRUPTED
    show(results, console)
    console.print(f"\nsettings, samples, problems and results are in {options.output}", markup=False)
    return 0


def _evaluate(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    protocol = _protocol(options)
    for problems in protocol.sets:
        for note in problems.notes:
            console.print(f"[yellow]note[/] {problems.benchmark.name}: {escape(note)}")
    folder = Path(options.output)
    with Console(file=sys.stderr).status(f"loading {options.model}"):
        spec = ModelSpec(
            model=options.model,
            tokenizer=options.tokenizer,
            revision=options.revision,
            dtype=options.dtype,
            batch_size=options.batch_size,
            trust_remote_code=options.trust_remote_code,
            chat_options=options.chat_template_kwargs,
            engine_options=options.engine_args,
        )
        engine = load_engine(options.engine, spec)
    for note in engine.notes:
        console.print(f"[yellow]note[/] {escape(note)}")
    judges = Judges(
        workers=options.workers,
        limit_seconds=options.answer_time_limit,
        limits=Limits.of(options.program_cpu_seconds, options.program_memory_mb),
        accept_weak_sandbox=options.accept_weak_sandbox,
    )
    if any(problems.benchmark.rule in FORMATS for problems in protocol.sets):
        console.print(f"[yellow]note[/] {escape(judges.sandbox.describe())}")
    figures = TextColumn("right {task.fields[right]:.3f}")
    columns = (TextColumn("{task.description:14}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with judges as judge, Bars(*columns, figures, *times, console=Console(file=sys.stderr)) as bars:
        shown: dict[str, TaskID] = {}

        def report(benchmark: str, done: int, total: int, right: int) -> None:
            if benchmark not in shown:
                shown[benchmark] = bars.add_task(benchmark, total=total, right=0.0)
            bars.update(shown[benchmark], completed=done, right=right / max(1, done))

        return evaluate(protocol, engine, judge, folder, report)


def _protocol(options: argparse.Namespace) -> Protocol:
    """The problem sets, samples and metrics that the options ask for."""
    names = [name.strip() for name in options.benchmarks.split(",") if name.strip()]
    records = choose(names, options.benchmark, folder=options.data, template=options.prompt_template)
    return Protocol(
        sets=tuple(load_set(record, limit=options.limit) for record in records),
        samples=options.samples,
        sampling=Sampling(**{name: getattr(options, name) for name in Sampling.__dataclass_fields__}),
        seed=options.seed,
        ks=None if options.k is None else _ks(options.k),
    )


def _ks(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in text.strip(",").split(",")))
    except ValueError as error:
        raise ConfigError(f"--k {text} must be whole numbers with commas between. Try --k 1,8") from error


def _object(text: str) -> dict[str, Any]:
    """A JSON object given as a flag."""
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise argparse.ArgumentTypeError(f"{text} is no JSON object, expected such as '{{\"name\": 1}}'")


def show(results: dict[str, Any], console: Console) -> None:
    """Print the results of ``evaluate``: benchmarks with their average, and outcomes."""
    sets = results["benchmarks"]
    names = list(dict.fromkeys(name for found in sets.values() for name in found if name.startswith("pass@")))
    figures = _table("share right, 95% interval over problems", "problems", "samples", *names)
    reasons = list(dict.fromkeys(reason for found in sets.values() for reason in found["outcomes"]))
    outcomes = _table("outcomes of all samples", *reasons, "truncated", "no room", "mean tokens")
    for name, found in sets.items():
        label = name + ("" if found["standard"] else " *")
        cells = [_cell(found.get(each)) for each in names]
        figures.add_row(label, f"{found['problems']:,}", f"{found['samples']}", *cells)
        counts = [f"{found['outcomes'].get(reason, 0):,}" for reason in reasons]
        shares = [f"{found[part]:.1%}" for part in ("truncated", "no_room")]
        outcomes.add_row(label, *counts, *shares, f"{found['mean_tokens']:,.0f}")
    if len(sets) > 1:
        figures.add_section()
        figures.add_row("average", "", "", *(_cell(results["average"].get(each)) for each in names))
    console.print(figures)
    if not all(found["standard"] for found in sets.values()):
        console.print("* not the standard set, or of one's own")
    console.print(outcomes)


def _table(title: str, *headings: str) -> Table:
    """An empty table; its first column is for names."""
    table = Table(title=title, title_justify="left", box=None)
    table.add_column(no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cell(figure: dict[str, Any] | None, form: str = ".3f") -> str:
    if figure is None:
        return ""
    return rf"{figure['value']:{form}} \[{figure['low']:{form}}, {figure['high']:{form}}]"


def show_comparison(found: PairedResults, console: Console) -> None:
    """Print the settings that differ, and paired differences."""
    for text in found.settings:
        console.print(f"different: {text}", markup=False)
    title = "pass@1, B minus A on the same problems, 95% bootstrap interval"
    table = _table(title, "problems", "A", "B", "difference", "better", "worse")
    for name, pair in found.benchmarks.items():
        cells = [name, f"{pair.problems:,}", f"{pair.before:.3f}", f"{pair.after:.3f}"]
        table.add_row(*cells, _cell(asdict(pair.difference), "+.3f"), f"{pair.better}", f"{pair.worse}")
    if len(found.benchmarks) > 1:
        table.add_section()
        table.add_row("average", "", "", "", _cell(asdict(found.average), "+.3f"))
    console.print(table)
