"""How sensitive a baseline from history is to its settings: decay, prior strength and half-life, by group size.

python benchmarks/history.py [--quick] [--cache FOLDER] [--output FILE.json]

Runs of the embedded task, unpruned, are recorded once per seed and group size, 64 completions a step. Every setting is
then asked for what it expects of each step, from what the steps before gave: the same completions for all. The figure
is the mean square of the advantages, which is what the variance of an update goes by. What a setting does to learning
is another question, which ``embedded_compare.py`` asks.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from difficulty import QUICK_SETTING, RATE, RISE, Setting
from results_file import write
from torch import Tensor

from dppo.context import StepContext
from dppo.methods import METHODS
from dppo.objective import history_advantages
from dppo.pruning import DifficultyPredictor, PromptHistory, length_features
from dppo.step import DraftPlan
from dppo.types import Rewards
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.loop import Loop

SEEDS, SIZES, COMPLETIONS = (100, 101, 102), (1, 2, 4), 64
STEPS = 60
DECAYS, STRENGTHS, HALF_LIVES = (0.5, 0.7, 0.8, 0.9, 1.0), (1.0, 2.0, 4.0, 8.0), (1.0, 3.0, np.inf)
"""The grid; half-lives in epochs."""
DISCOUNTS = (0.8, 0.9, 0.95)
"""Of a predictor of difficulty by the prompt's length, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a run gave, step after step."""

    size: int
    """G, completions per prompt."""
    prompts: list[list[int]]
    """Token ids of all prompts."""
    steps: list[tuple[Tensor, Tensor]]
    """(Q,) rows and (N, F) rewards of each step."""

    @property
    def epoch(self) -> float:
        """Steps of an epoch."""
        return len(self.prompts) * self.size / COMPLETIONS


def recorded(seed: int, size: int, setting: Setting, steps: int) -> Recorded:
    """A run that nothing is pruned from, with a baseline from history as it is by default."""
    problems = setting.split(seed).train
    method, model = METHODS["grpo_history"], setting.started(seed)
    loop = Loop(model, build_tokenizer(), problems, method, seed=seed, prompts=COMPLETIONS // size, generations=size)
    found, learn = [], loop.source.learn

    def recording(plan: DraftPlan, step: int) -> None:
        found.append((plan.prompts.row_Q, plan.rewards.reward_NF.double()))
        learn(plan, step)

    loop.source.learn = recording
    for step in range(steps):
        loop.step(RATE * min(1.0, (step + 1) / RISE))
    return Recorded(size=size, prompts=loop.prompts, steps=found)


def mean_square(
    run: Recorded, *, decay: float, strength: float, half_life: float, discount: float | None
) -> tuple[float, float]:
    """Mean square of the advantages in the first epoch, the first step left out, and after it.

    Args:
        run: recorded.
        decay: of the history.
        strength: of its prior.
        half_life: in epochs.
        discount: of a predictor of difficulty by length, per step; None for the mean over all prompts as prior.
    """
    history = PromptHistory(
        np.arange(len(run.prompts), dtype=np.uint64), decay=decay, strength=strength, half_life=half_life * run.epoch
    )
    predictor = None if discount is None else DifficultyPredictor(length_features(run.prompts), discount=discount)
    squares = []
    for step, (row_Q, reward_NF) in enumerate(run.steps):
        prior = None if predictor is None else predictor.expected(row_Q, step, strength)
        rewards = Rewards.in_groups(reward_NF, run.size)
        context = StepContext(expected=history.expected(row_Q, step, prior))
        squares.append(history_advantages(rewards, context).square().mean().item())
        if predictor is not None:
            predictor.update(row_Q, rewards, step)
        history.update(row_Q, rewards, torch.ones(len(row_Q)), torch.ones(len(rewards)), step)
    first = round(run.epoch)
    return float(np.mean(squares[1:first])), float(np.mean(squares[first:]))


def rows_of(runs: Sequence[Recorded], quick: bool) -> list[dict[str, Any]]:
    """One record per group size and setting, means over runs."""
    decays, strengths, lives = ((0.8, 1.0), (2.0,), (3.0,)) if quick else (DECAYS, STRENGTHS, HALF_LIVES)
    settings = [
        *({"decay": d, "strength": s, "half_life": 3.0, "discount": None} for d, s in product(decays, strengths)),
        *({"decay": 0.8, "strength": 2.0, "half_life": life, "discount": None} for life in lives),
        *({"decay": 0.8, "strength": s, "half_life": 3.0, "discount": d} for s, d in product(strengths, DISCOUNTS)),
    ]
    rows = []
    for size in sorted({run.size for run in runs}):
        for setting in settings:
            found = np.array([mean_square(run, **setting) for run in runs if run.size == size])
            first, later = found.mean(0)
            spread = found[:, 1].std(ddof=1) if len(found) > 1 else None
            rows.append({"size": size, **setting, "first_epoch": first, "later": later, "later_deviation": spread})
            rows[-1]["half_life"] = None if np.isinf(setting["half_life"]) else setting["half_life"]
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a table: mean squares after the first epoch, decay by strength, for each group size."""
    lines = []
    for size in sorted({row["size"] for row in rows}):
        plain = [r for r in rows if r["size"] == size and r["discount"] is None and r["half_life"] == 3.0]
        strengths = sorted({row["strength"] for row in plain})
        lines += ["", f"| {size} a prompt: decay | " + " | ".join(f"strength {s:g}" for s in strengths) + " |"]
        lines.append("|---" * (len(strengths) + 1) + "|")
        for decay in sorted({row["decay"] for row in plain}):
            of = {r["strength"]: r["later"] for r in plain if r["decay"] == decay}
            lines.append(f"| {decay:g} | " + " | ".join(f"{of[s]:.4f}" for s in strengths) + " |")
    return lines[1:]


def main() -> None:
    """Record, replay, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few settings: to see that it works")
    parser.add_argument("--cache", type=Path, help="folder of warmed-up policies")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/history.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = replace(QUICK_SETTING, problems=128) if options.quick else Setting(seeds=SEEDS)
    setting = replace(setting, cache=options.cache)
    steps = 10 if options.quick else STEPS
    runs = [recorded(seed, size, setting, steps) for seed in setting.seeds for size in SIZES]
    rows = rows_of(runs, options.quick)
    print("\n".join(table(rows)))
    write(options.output, rows, list(setting.seeds))


if __name__ == "__main__":
    main()
