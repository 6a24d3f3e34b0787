"""Accuracy of a finished model on held-out problems of tasks that are made here, without a trainer."""

import argparse
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from dppo.environment import environment
from dppo.errors import ConfigError, first_line
from dppo.files import write_json
from dppo.lab.demo.scratch import SCRATCH
from dppo.lab.files import explaining
from dppo.lab.gym import GymScorer, is_gym, reasoning_gym_task
from dppo.lab.runs.held_out import asker, check_names, embedded_set, gym_set, sums
from dppo.lab.runs.models import made_from_scratch
from dppo.lab.statistics import LEVEL
from dppo.lab.subject import SubjectSampling


def evaluate(options: argparse.Namespace, names: list[str], folder: Path) -> dict[str, Any]:
    """Accuracy of a model on each named task, one completion per problem, also written to ``folder/results.json``.

    The interval is Wilson's, over problems.
    """
    scorer, given = GymScorer(options.workers, options.answer_time_limit), options.task_arguments
    made = {"seed": options.seed, "answer_pattern": options.answer_pattern}
    limits = {"limit": options.limit, "template": options.prompt_template}
    sets = [
        gym_set(reasoning_gym_task(name, given, **made), scorer, **limits)
        if is_gym(name)
        else embedded_set(name, options.seed, options.limit)
        for name in names
    ]
    check_names(sets)
    model, tokenizer = _load(options, folder)
    fields = ("temperature", "top_p", "max_new_tokens")
    sampling = SubjectSampling(**{name: getattr(options, name) for name in fields})
    ask = asker(model, tokenizer, embedded=False, batch_size=options.batch_size, options={})
    benchmarks = {}
    for found in sets:
        count, right, tokens, truncated, _ = sums(found, ask, sampling, samples=1, seed=options.seed).tolist()
        ends = stats.binomtest(int(right), int(count)).proportion_ci(LEVEL, "wilson")
        shares = {"value": right / count, "low": ends.low, "high": ends.high}
        lengths = {"mean_tokens": tokens / count, "truncated": truncated / count}
        benchmarks[found.name] = {"problems": int(count), **shares, **lengths}
    results = {"benchmarks": benchmarks, "settings": vars(options), "environment": environment()}
    with explaining(folder, "name another folder: --output ANOTHER"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "results.json", results)
    return results


def _load(options: argparse.Namespace, folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer; a model from scratch is made once per seed in the output folder."""
    name = options.model
    if name.startswith(SCRATCH):
        name = folder / f"scratch-{name.removeprefix(SCRATCH)}-seed{options.seed}"
        made_from_scratch(options.model, name, seed=options.seed)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=options.dtype)
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {name} cannot be loaded: {first_line(error)} Name a folder or a hub name") from None
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model, tokenizer
