"""Every method beside TRL's own trainer on the embedded task: tuning, comparison, rates, and what each part is worth.

python benchmarks/embedded_compare.py grid|main|more|rates|ablation [--work FOLDER] [--seeds 10,11,12]
python benchmarks/embedded_summary.py [--work FOLDER] [--output FILE.json]

A stage trains what it lacks: one that was stopped goes on where it was, and stages for different seeds can run beside
each other. ``grid`` has seeds of its own, and its best settings stand in ``SETTINGS``. ``embedded_summary.py`` reads
all runs and writes one file.

TRL's trainer takes ``TRL_STEPS`` steps. All others take about as many as fit into half of its time, the learning rate
falling over each run's own length; ``trl_short`` is TRL's trainer with that budget, so that equal seconds are compared
between runs that are equally far in their schedules. ``dppo_long`` has all of TRL's time. ``more`` is a few of ``main``
on further seeds: the headline figure is a median, and with five seeds its interval is their range.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental in TRL, and says so every time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers.utils import logging as transformers_logging

from dppo.comparison.contestants import Contestant
from dppo.comparison.plan import Comparison
from dppo.comparison.runner import Event, run_comparison

FIELDS: dict[str, Any] = {
    "model_name_or_path": "scratch:embedded",
    "dataset_name": "embedded",
    "reward_funcs": ["embedded"],
    "rollout_func": "embedded",
    "eval_benchmarks": ["embedded"],
    "eval_benchmark_limit": 192,
    "eval_benchmark_samples": 4,
    "loss_type": "dr_grpo",
    "num_generations": 8,
    "max_completion_length": 104,
    "temperature": 1.0,
    "beta": 0.0,
    "lr_scheduler_type": "linear",
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "record_completions": 0,
}
EVALUATIONS = 8
"""Of each reported run, after the one at the start."""
GRID_SEEDS, SEEDS, MORE_SEEDS = (100, 101), (10, 11, 12, 13, 14), (15, 16, 17, 18, 19)
"""Of the grid, of everything that is reported, and of ``MORE`` besides. Seeds below 10 were looked at on the way."""
MORE = ("trl", "grpo", "dppo")
"""Contestants with twice as many seeds."""
PROMPTS, GENERATIONS = 8, 8
"""A step of the setting in which ``Budget.steps`` are counted."""
TRL_STEPS = 100
LONG = 2
"""How much longer TRL's own run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contestant."""

    method: str
    steps: int
    """Optimizer steps with ``PROMPTS`` prompts each; with other numbers of prompts the run has as many prompts."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str = ""
    """Whose settings it has; by default those of its method."""
    prompts: float = 1.0
    """Prompts of a step, as a share of those of the setting."""

    def contestant(self, name: str, setting: Mapping[str, Any], evaluations: int = EVALUATIONS) -> Contestant:
        """The contestant with a setting of the grid.

        Args:
            name: what tables call it.
            setting: ``prompts`` of a step and ``learning_rate``.
            evaluations: after the one at the start, >= 1.
        """
        prompts = round(setting["prompts"] * self.prompts)
        steps = round(self.steps * PROMPTS / setting["prompts"])
        own = {
            "per_device_train_batch_size": prompts * GENERATIONS,
            "learning_rate": setting["learning_rate"],
            "max_steps": steps,
            "eval_benchmark_every": -(-steps // evaluations),
        }
        return Contestant(name=name, method=self.method, overrides={**own, **self.fields})


RATES = {"prompt_prune_rate": 0.3, "completion_prune_rate": 0.5}
UNIFORM = {**RATES, "prompt_prune_rate": 0.0, "completion_score": "uniform"}
TUNED = {
    "trl": Entry(method="trl", steps=TRL_STEPS),
    "grpo": Entry(method="grpo", steps=108),
    "cppo": Entry(method="cppo", steps=156, fields={"completion_prune_rate": 0.5}),
    "greso": Entry(method="greso", steps=53),
    "dapo": Entry(method="dapo", steps=44, fields={"loss_type": "dapo", "epsilon_high": 0.28}),
    "dppo_threshold": Entry(method="dppo_threshold", steps=158, fields=RATES),
    "dppo": Entry(method="dppo", steps=188, fields=RATES),
}
"""What the grid is about."""
GRID_STEPS = {"trl": 100, "grpo": 90, "cppo": 120, "greso": 80, "dapo": 50, "dppo_threshold": 130, "dppo": 140}
"""What the grid was run with, before it was known what a step costs."""
GRID = [{"prompts": prompts, "learning_rate": rate} for prompts in (8, 16) for rate in (2e-4, 4e-4)]
BEST_PROMPTS = {"trl": 8, "grpo": 16, "cppo": 16, "greso": 8, "dapo": 8, "dppo_threshold": 16, "dppo": 16}
SETTINGS: dict[str, Mapping[str, Any]] = {
    name: {"prompts": prompts, "learning_rate": 4e-4} for name, prompts in BEST_PROMPTS.items()
}
"""The best of the grid, by mean accuracy at the end of its runs."""

CONTROLS = {
    "trl_short": Entry(method="trl", steps=TRL_STEPS // LONG),
    "fewer_prompts": Entry(method="grpo", steps=152, prompts=0.7, tuned_as="dppo"),
    "uniform_completions": Entry(method="dppo", steps=148, fields=UNIFORM),
    "fewer_prompts_uniform_completions": Entry(method="dppo", steps=210, fields=UNIFORM, prompts=0.7),
    "dppo_long": Entry(method="dppo", steps=188 * LONG, fields=RATES),
}
GIVEN_RATES = (0.3, 0.5, 0.7, 0.9)
GRID_OF_RATES = {
    f"dppo_rq{prompt}_ro{completion}": Entry(
        method="dppo",
        steps=round(44.8 / (0.03 + 0.2 * (1 - 0.6 * prompt) + 0.13 * (1 - prompt) * (1 - completion))),
        fields={"prompt_prune_rate": prompt, "completion_prune_rate": completion},
    )
    for prompt in GIVEN_RATES
    for completion in GIVEN_RATES
}
"""Steps by what a step costs: rollouts, of which a part does not shrink, and the update."""
ABLATION = {
    "without_weights": Entry(method="dppo_unweighted", steps=188, fields=RATES, tuned_as="dppo"),
    "without_prompt_pruning": Entry(method="dppo", steps=148, fields={**RATES, "prompt_prune_rate": 0.0}),
    "without_completion_pruning": Entry(method="dppo", steps=141, fields={**RATES, "completion_prune_rate": 0.0}),
    "without_packing": Entry(method="dppo", steps=148, fields={**RATES, "layout": "padded"}),
    "without_shared_prefixes": Entry(method="dppo", steps=186, fields={**RATES, "layout": "packed"}),
    "without_score": Entry(method="dppo", steps=188, fields={**RATES, "completion_score": "uniform"}),
}


def stages() -> dict[str, tuple[Contestant, ...]]:
    """The contestants of every stage."""
    grid = [
        replace(entry, steps=GRID_STEPS[name]).contestant(
            f"{name}-{setting['prompts']}-{setting['learning_rate']:g}", setting, evaluations=1
        )
        for name, entry in TUNED.items()
        for setting in GRID
    ]
    parts = {"grid": grid}
    for stage, entries in (("main", TUNED | CONTROLS), ("rates", GRID_OF_RATES), ("ablation", ABLATION)):
        evaluations = 2 if stage == "rates" else EVALUATIONS
        parts[stage] = [
            entry.contestant(name, SETTINGS[entry.tuned_as or entry.method], evaluations)
            for name, entry in entries.items()
        ]
    parts["more"] = [each for each in parts["main"] if each.name in MORE]
    return {name: tuple(part) for name, part in parts.items()}


def comparison(folder: Path, contestants: tuple[Contestant, ...], seeds: tuple[int, ...]) -> Comparison:
    """The comparison that a stage's runs are part of."""
    return Comparison(folder=folder, contestants=contestants, seeds=seeds, config=FIELDS)


def show(event: Event) -> None:
    """One line for everything that happens, but steps."""
    if event.stage in ("kept", "finished", "failed"):
        print(f"{event.number}/{event.runs} {event.name} seed {event.seed}: {event.stage} {event.text}", flush=True)


def main() -> int:
    """Train a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage", choices=["grid", "main", "more", "rates", "ablation"])
    parser.add_argument("--work", type=Path, default=Path("runs/embedded_compare"), help="folder of all runs")
    parser.add_argument("--seeds", help="such as 0,1,2; those of the stage by default")
    parser.add_argument("--only", help="contestants, such as trl,dppo; all of the stage by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    parts = stages()
    seeds = {"grid": GRID_SEEDS, "more": MORE_SEEDS}.get(options.stage, SEEDS)
    seeds = tuple(int(word) for word in options.seeds.split(",")) if options.seeds else seeds
    only = options.only.split(",") if options.only else None
    chosen = tuple(each for each in parts[options.stage] if only is None or each.name in only)
    folder = options.work / ("grid" if options.stage == "grid" else "reported")
    run_comparison(comparison(folder, chosen, seeds), show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
