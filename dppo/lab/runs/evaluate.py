"""Accuracy of a finished model on held-out problems of reasoning-gym, without a trainer."""

import argparse
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.lab.environment import environment
from dppo.lab.gym import GymScorer, reasoning_gym_task
from dppo.lab.runs.held_out import asker, check_names, gym_set, sums
from dppo.lab.runs.models import cannot_load
from dppo.lab.statistics import LEVEL
from dppo.lab.subject import SubjectSampling


def evaluate(options: argparse.Namespace, names: list[str], folder: Path) -> dict[str, Any]:
    """Accuracy on each named task, one completion per problem, with Wilson's interval; written to ``results.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    scorer, given = GymScorer(options.workers, options.answer_time_limit), options.task_arguments
    made = {"seed": options.seed, "answer_pattern": options.answer_pattern}
    tasks = [reasoning_gym_task(name, given, **made) for name in names]
    sets = [gym_set(task, scorer, limit=options.limit, template=options.prompt_template) for task in tasks]
    check_names(sets)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
    except (OSError, ValueError) as error:
        raise ConfigError(cannot_load(options.model, error)) from None
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
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
    write_json(folder / "results.json", results)
    return results
