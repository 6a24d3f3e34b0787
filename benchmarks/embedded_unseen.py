"""Final accuracy of saved models on the held-out questions that no run of the grid was asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedded_entries import FIELDS, RUNGS
from transformers import AutoModelForCausalLM, AutoTokenizer

from answer_judge.files import read_json, write_json
from dppo.rng import Purpose, torch_generator
from dppo_lab.comparison.results import paired
from dppo_lab.demo.evaluate import accuracy
from dppo_lab.demo.task import Problem, make_split
from dppo_lab.runs.embedded import TASKS
from dppo_lab.statistics import seed_interval

SAMPLES = 8
"""Per question; evaluations while training have 4."""


def unseen(folder: Path, task: str, contestants: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Final accuracy, again, on those held-out questions of each seed that no run of the grid was asked.

    All seeds draw from one held-out part, in which short questions are few, so seeds of their own are not questions of
    their own. The models are the saved ones, and each question is answered ``SAMPLES`` times.

    Args:
        folder: of the runs.
        task: a key of ``dppo_lab.runs.embedded.TASKS``.
        contestants: whose runs, the baseline of the differences first; those that have not finished are left out.
        seeds: of the runs.
    """
    grid = {problem.question for rung in RUNGS for seed in rung.seeds for problem in held_out(task, seed)}
    asked = {seed: [problem for problem in held_out(task, seed) if problem.question not in grid] for seed in seeds}
    found: dict[str, dict[int, float | None]] = {}
    for name in contestants:
        found[name] = {}
        for seed in seeds:
            run = folder / "runs" / name / f"seed_{seed}"
            if (run / "model.safetensors").exists():
                found[name][seed] = answered(run, asked[seed], seed)
    first = found[contestants[0]]
    return {
        "questions": {str(seed): len(problems) for seed, problems in asked.items()},
        "samples": SAMPLES,
        "baseline": contestants[0],
        "methods": {
            name: {
                "final": seed_interval(values).as_json(),
                "difference": seed_interval(paired(values, first)).as_json(),
            }
            for name, values in found.items()
        },
    }


def answered(run: Path, problems: Sequence[Problem], seed: int) -> float:
    """Accuracy of a run's saved model, kept in ``unseen.json`` beside it: hundreds of answers take seconds each time.

    Args:
        run: its folder.
        problems: the questions.
        seed: of the run, which answers are drawn with.
    """
    kept = run / "unseen.json"
    if not kept.exists():
        model = AutoModelForCausalLM.from_pretrained(run).eval()
        tokenizer = AutoTokenizer.from_pretrained(run)
        right = accuracy(model, tokenizer, problems, SAMPLES, torch_generator(seed, Purpose.EVALUATION))
        write_json(kept, {"accuracy": right.double().mean().item(), "questions": len(problems)})
    return read_json(kept, advice=f"Remove {kept}: the model answers again.")["accuracy"]


def held_out(task: str, seed: int) -> tuple[Problem, ...]:
    """The held-out problems that runs of a seed are evaluated on.

    Args:
        task: a key of ``dppo_lab.runs.embedded.TASKS``.
        seed: of the runs.
    """
    return make_split(seed, train=0, held_out=FIELDS["eval_benchmark_limit"], task=TASKS[task]).held_out
