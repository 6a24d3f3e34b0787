"""An evaluation from its first sample to its figures, in a folder that it can be continued in at any moment."""

import hashlib
import importlib.metadata
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import answer_judge.grading
from answer_judge import __version__
from answer_judge.environment import environment
from answer_judge.errors import ConfigError, EvaluationError, raise_problems
from answer_judge.evaluation.engines import Engine
from answer_judge.evaluation.problems import ProblemSet
from answer_judge.evaluation.samples import graded_samples
from answer_judge.evaluation.sampling import Sampling
from answer_judge.evaluation.summary import GO_ON, summarise
from answer_judge.files import append_lines, explaining, read_json, read_lines, sole_writer, write_json
from answer_judge.problems.judges import judged_by

SETTINGS, SAMPLES, PROBLEMS, RESULTS = "settings.json", "samples.jsonl", "problems.jsonl", "results.json"
"""What an evaluation writes: what was asked, every sample, every problem, the figures."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Problems, samples and settings of an evaluation; ``ConfigError``: one out of range."""

    sets: tuple[ProblemSet, ...]
    samples: int | None = None
    """Completions per problem, >= 1; None draws what each benchmark usually draws, and one at temperature 0."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    ks: tuple[int, ...] | None = None
    """The k of pass@k, besides 1; None for the number of samples."""

    def __post_init__(self) -> None:
        wrong = []
        if self.samples is not None and self.samples < 1:
            wrong.append(f"samples={self.samples} must be at least 1. Try --samples 16")
        if self.seed < 0:
            wrong.append(f"seed={self.seed} must be >= 0. Try --seed 0")
        fewest = min([1 << 62, *self.samples_of.values()])
        for k in self.ks or ():
            if k < 1 or (k > fewest >= 1):
                advice = f"Try --samples {max(k, 1)}" if self.sampling.temperature else "Leave --k out at temperature 0"
                wrong.append(f"k={k} must be between 1 and the {fewest} samples of a problem. {advice}")
        if self.sampling.temperature == 0 and max([1, *self.samples_of.values()]) > 1:
            wrong.append("temperature=0 draws the same completion every time. Try --samples 1, or --temperature 0.6")
        raise_problems("evaluation", wrong)

    @property
    def samples_of(self) -> dict[str, int]:
        """Completions per problem, by benchmark."""
        usual = {s.benchmark.name: s.benchmark.samples if self.sampling.temperature else 1 for s in self.sets}
        return usual if self.samples is None else dict.fromkeys(usual, self.samples)

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for two evaluations to be one."""
        samples = self.samples_of
        asked = {s.benchmark.name: {**s.identity, "samples": samples[s.benchmark.name]} for s in self.sets}
        return {"benchmarks": asked, "sampling": asdict(self.sampling), "seed": self.seed}


def evaluate(
    protocol: Protocol,
    engine: Engine,
    judge: Any,
    folder: Path | str,
    on_progress: Callable[[str, int, int, int], None] | None = None,
) -> dict[str, Any]:
    """The figures of an evaluation, and in ``folder`` its settings, samples, problems and results.

    Every batch is on disk before the next but one is begun. Called again after an interruption with the same arguments,
    it draws what is missing, and ends with the samples it would have had. ``on_progress`` is called after each batch:
    benchmark, samples there are, samples in all, right ones.

    ``ConfigError`` names other settings of an evaluation in the folder. ``EvaluationError``: it holds something else.
    ``FileError``: the folder is in use, is damaged, or the disk is full.
    """
    folder = Path(folder)
    path, started, tokens = folder / SAMPLES, time.monotonic(), 0
    with sole_writer(path, advice="give --output ANOTHER"):
        own = [judged_by(problems.benchmark.rule) for problems in protocol.sets]
        graders = {**_graders(), **{name: code for found in own for name, code in found.items()}}
        graders |= {"limit_seconds": getattr(judge, "limit_seconds", None)}
        _claim(folder, {**protocol.identity, "engine": {"name": engine.name, **engine.facts}, "graded_by": graders})
        done, right_before = _done(protocol, path)
        for problems in protocol.sets:
            name = problems.benchmark.name
            done_PG, right = done[name], right_before[name]
            asked: dict[str, Any] = {"samples": protocol.samples_of[name], "seed": protocol.seed}
            for batch in graded_samples(problems, engine, judge, protocol.sampling, done_PG=done_PG.copy(), **asked):
                with explaining(path, GO_ON):
                    append_lines(path, [sample.as_line(name, problems.problems[sample.row]) for sample in batch])
                for sample in batch:
                    done_PG[sample.row, sample.sample] = True
                right += sum(sample.reason == "right" for sample in batch)
                tokens += sum(sample.generated.tokens for sample in batch)
                if on_progress is not None:
                    on_progress(name, int(done_PG.sum()), done_PG.size, right)
        figures = summarise(
            protocol.sets, protocol.samples_of, read_lines(path), folder / PROBLEMS, seed=protocol.seed, ks=protocol.ks
        )
        results = {
            **figures,
            "notes": list(engine.notes),
            "settings": read_json(folder / SETTINGS, advice="Give --output ANOTHER"),
            "environment": environment(batch_size=engine.batch_size),
            "last_session": {"tokens": tokens, "seconds": time.monotonic() - started},
        }
        with explaining(folder / RESULTS, GO_ON):
            write_json(folder / RESULTS, results)
        return results


def read_results(folder: Path | str) -> dict[str, Any]:
    """``results.json`` of an evaluation; ``FileError``: there is none. ``EvaluationError``: it is of something else."""
    advice = "The folder has no finished evaluation: give its dppo eval command again to finish it"
    found = read_json(Path(folder) / RESULTS, advice=advice)
    if not {"settings", "benchmarks"} <= set(found):
        raise EvaluationError(
            f"{folder}: its {RESULTS} is of no evaluation. A comparison of runs is read by dppo report"
        )
    return found


def _graders() -> dict[str, str]:
    """Versions of what judges, our own code by its content: different ones do not belong into one evaluation."""
    root = Path(answer_judge.grading.__file__).parent
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(root.rglob("*.py"))))
    libraries = {name: importlib.metadata.version(name) for name in ("math-verify", "latex2sympy2_extended", "sympy")}
    return {"answer_judge": __version__, "grading": code.hexdigest()[:16], **libraries}


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a new evaluation, or check that the one in the folder has the same."""
    path = folder / SETTINGS
    settings = json.loads(json.dumps(settings))  # as they are read again: lists, not tuples
    if (folder / SAMPLES).stat().st_size == 0:
        with explaining(path, GO_ON):
            write_json(path, settings)
        return
    if not path.exists():
        raise EvaluationError(f"{folder} has samples but no {SETTINGS}: --output ANOTHER")
    different = differences(read_json(path, advice="Give --output ANOTHER"), settings)
    if different:
        raise ConfigError(
            f"{folder} holds an evaluation with other settings: {'; '.join(different)}. "
            "Give the settings it was begun with, or another --output"
        )


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """One sentence per setting in which two JSON values differ; ``name`` is their own dotted name."""
    if not (isinstance(there, Mapping) and isinstance(here, Mapping)):
        texts = ["not there" if value is None else json.dumps(value) for value in (there, here)]
        return [] if there == here else [f"{name} is {texts[0]:.60} there and {texts[1]:.60} here"]
    names = {key: f"{name}.{key}" if name else str(key) for key in (*there, *here)}
    return [text for key, inner in names.items() for text in differences(there.get(key), here.get(key), inner)]


def _done(protocol: Protocol, path: Path) -> tuple[dict[str, np.ndarray], Counter[str]]:
    """(P, samples) bool by benchmark: which samples there are; and how many of them are right.

    ``EvaluationError``: a sample that is there twice, or belongs to no problem of this evaluation.
    """
    sets = {s.benchmark.name: s.problems for s in protocol.sets}
    done = {name: np.zeros((len(sets[name]), count), dtype=bool) for name, count in protocol.samples_of.items()}
    rows = {name: {problem.id: row for row, problem in enumerate(problems)} for name, problems in sets.items()}
    right: Counter[str] = Counter()
    lines = read_lines(path, advice="Delete that line: its sample will be drawn again")
    for number, line in enumerate(lines, 1):
        try:
            place = rows[line["benchmark"]][line["id"]], line["sample"]
            twice = bool(done[line["benchmark"]][place])
        except (KeyError, IndexError, TypeError) as error:
            raise EvaluationError(f"{path}, line {number} is no sample of this evaluation. Delete that line") from error
        if twice:
            raise EvaluationError(f"{path}, line {number} repeats a sample that an earlier line has. Delete that line")
        done[line["benchmark"]][place] = True
        right[line["benchmark"]] += line.get("reason") == "right"
    return done, right
