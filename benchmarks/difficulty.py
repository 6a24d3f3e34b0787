"""What difficulty predicted before the first visit is worth: area under the curve, size of advantages, learning, cost.

python benchmarks/difficulty.py [--quick] [--cache FOLDER] [--output FILE.json]

Runs of the embedded task, unpruned, 16 prompts by 4 completions, are recorded once per seed. Each prior is then asked
for every step of them, from what the steps before gave: the same completions for all. ``own history`` says whether a
prompt's own past rewards count too, which is what trains; there are none in the first epoch. Advantages are those of
the history baseline with the first n completions of each group; their mean square is what an update's variance goes by.

Runs of one epoch from the same starts then say what a prior does to learning.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results_file import write
from timing import milliseconds
from torch import Tensor

from dppo.context import Expected, StepContext
from dppo.methods import METHODS
from dppo.objective import history_advantages
from dppo.pruning import DifficultyPredictor, PromptHistory, length_features
from dppo.pruning.logistic import auc
from dppo.rng import Purpose, generator, torch_generator
from dppo.step import DraftPlan
from dppo.types import Rewards
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.evaluate import accuracy
from dppo_lab.demo.loop import PROMPTS, Loop
from dppo_lab.demo.policy_features import policy_features
from dppo_lab.demo.task import FULL, QUICK, Split, Task, make_split
from dppo_lab.demo.warmup import warm_up

SEEDS = (100, 101, 102)
GROUP, EPOCHS = 4, 3
RATE, RISE = 4e-4, 5
"""Learning rate, and steps in which it is reached."""
SIZES, STRENGTHS = (1, 2, 4), (1.0, 2.0, 4.0, 8.0)
PRIORS = {
    "mean over all": (),
    "length": ("length",),
    "length, log-probability, hidden state": ("length", "policy"),
    "log-probability, hidden state": ("policy",),
}
"""Features of each prior: the policy's own are its log-probability of the prompt, and 8 numbers of its hidden state."""
STRENGTH = 2.0
COST_BAR_MS = 2.0
"""A prediction and an update of 64 groups with 16 features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How much is run."""

    seeds: Sequence[int] = SEEDS
    task: Task = FULL
    problems: int = 192
    epochs: int = EPOCHS
    repeats: int = 2
    """Runs of one epoch from each start, each with random numbers of its own; 0 for none."""
    calls: int = 100
    """Calls that are timed."""
    cache: Path | None = None
    """Folder of warmed-up policies."""

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return self.problems // PROMPTS

    def split(self, seed: int) -> Split:
        """The problems of a seed."""
        return make_split(seed, train=self.problems, held_out=self.problems, task=self.task)

    def started(self, seed: int) -> Any:
        """The warmed-up policy of a seed, from the cache if it is there."""
        model, task = build_model(seed), self.task
        file = None if self.cache is None else self.cache / f"{task.warm_up_steps}-{seed}.npz"
        if file is not None and file.exists():
            with np.load(file) as saved:
                model.load_state_dict({name: torch.from_numpy(saved[name]) for name in saved.files})
            return model.eval()
        warm_up(model, build_tokenizer(), task, seed=seed, steps=task.warm_up_steps)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, **{name: value.numpy() for name, value in model.state_dict().items()})
        return model.eval()


QUICK_SETTING = Setting(
    seeds=SEEDS[:1], task=replace(QUICK, warm_up_steps=40), problems=48, epochs=2, repeats=0, calls=3
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a recorded run gave, step after step."""

    rows: list[Tensor]
    """(Q,) prompts of each step."""
    rewards: list[Tensor]
    """(Q, G) rewards of each step."""
    features: list[dict[str, np.ndarray]]
    """(P, D) of all prompts, at the start of each epoch."""
    feature_seconds: float
    """CPU time of the policy's features of all prompts; ``epoch_seconds`` that of an epoch."""
    epoch_seconds: float


def features_of(loop: Loop, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Features of all prompts, with the policy as it is."""
    makers = {
        "length": lambda: length_features(loop.prompts),
        "policy": lambda: policy_features(loop.model, loop.prompts, seed=loop.seed),
    }
    return {name: makers[name]() for name in names}


def side_by_side(features: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """(P, D) the features of these names."""
    return np.concatenate([features[name] for name in names], 1)


def recorded(seed: int, setting: Setting) -> Run:
    """A run that nothing is pruned from, and nothing predicted for."""
    problems, method, epochs = setting.split(seed).train, METHODS["grpo_history"], setting.epochs
    loop = Loop(setting.started(seed), build_tokenizer(), problems, method, seed=seed, generations=GROUP)
    rows, rewards, features, learn = [], [], [], loop.source.learn

    def recording(plan: DraftPlan, step: int) -> None:
        rows.append(plan.prompts.row_Q)
        rewards.append(plan.rewards.reward_NF.view(-1, GROUP))
        learn(plan, step)

    loop.source.learn = recording
    clock = {"features": 0.0, "steps": 0.0}
    for _ in range(epochs):
        begin = time.process_time()
        features.append(features_of(loop, ("length", "policy")))
        middle = time.process_time()
        one_epoch(loop, setting.steps)
        clock["features"] += middle - begin
        clock["steps"] += time.process_time() - middle
    return Run(
        rows=rows,
        rewards=rewards,
        features=features,
        feature_seconds=clock["features"] / epochs,
        epoch_seconds=clock["steps"] / epochs,
    )


def one_epoch(loop: Loop, steps: int) -> None:
    """Train on every prompt once."""
    for _ in range(steps):
        loop.step(RATE * min(1.0, (loop.steps + 1) / RISE))


def replay(
    run: Run, names: Sequence[str], size: int, strength: float
) -> Iterator[tuple[Expected | None, Expected, Rewards]]:
    """For each step its prior, what is expected with the prompts' own histories, and what then came.

    Args:
        run: recorded.
        names: features of the prior; none for the mean over all prompts.
        size: completions of each group that count, the first ones.
        strength: completions that a prior is worth.
    """
    steps = len(run.rows) // len(run.features)
    history = PromptHistory(np.arange(len(run.features[0]["length"]), dtype=np.uint64), strength=strength)
    predictor = DifficultyPredictor(side_by_side(run.features[0], names)) if names else None
    for step, (row_Q, reward_QG) in enumerate(zip(run.rows, run.rewards, strict=True)):
        if predictor is not None and step % steps == 0:
            predictor.refresh(side_by_side(run.features[step // steps], names))
        rewards = Rewards.of_groups(reward_QG[:, :size])
        prior = None if predictor is None else predictor.expected(row_Q, step, strength)
        expected = history.expected(row_Q, step, prior)
        yield prior, expected, rewards
        history.update(row_Q, rewards, torch.ones(len(row_Q)), torch.ones(len(rewards)), step)
        if predictor is not None:
            predictor.update(row_Q, rewards, step)


def area(expected: Expected | None, rewards: Rewards) -> float:
    """How well what was expected of a step's prompts tells their right completions from the wrong ones."""
    right_N = rewards.total_N.numpy() > 0.5
    score_N = np.zeros(len(rewards)) if expected is None else expected.mean_QF[rewards.group_N, 0].numpy()
    return auc(score_N, right_N)


def auc_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """By step, mean over seeds, and by epoch, mean over steps and seeds with its lowest and highest seed."""
    rows = []
    for prior, names in PRIORS.items():
        both_MS2 = np.array(
            [[(area(prior, r), area(own, r)) for prior, own, r in replay(run, names, GROUP, STRENGTH)] for run in runs]
        )
        for place, own in enumerate((False, True)):
            found = {"figure": "auc", "prior": prior, "own_history": own, "completions": GROUP}
            area_MS = both_MS2[:, :, place]
            rows += [
                {**found, "step": step, "epoch": None, **spread(area_MS[:, [step]])} for step in range(area_MS.shape[1])
            ]
            rows += by_epoch(found, area_MS, len(runs[0].features))
    return rows


def advantage_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Mean squares of advantages by epoch, with each prior and strength, and without any history."""
    rows = []
    for size in SIZES:
        alone_MS = np.array(
            [[square(rewards, None) for _, _, rewards in replay(run, (), size, STRENGTH)] for run in runs]
        )
        found: dict[str, Any] = {"figure": "advantage_square", "completions": size}
        if size > 1:
            rows += by_epoch({**found, "prior": "siblings alone", "strength": None}, alone_MS, len(runs[0].features))
        for prior, names in PRIORS.items():
            for strength in STRENGTHS:
                square_MS = np.array(
                    [[square(found, own) for _, own, found in replay(run, names, size, strength)] for run in runs]
                )
                rows += by_epoch({**found, "prior": prior, "strength": strength}, square_MS, len(runs[0].features))
    return rows


def square(rewards: Rewards, expected: Expected | None) -> float:
    """Mean square of the advantages of a step."""
    return history_advantages(rewards, StepContext(expected=expected)).square().mean().item()


def by_epoch(found: dict[str, Any], value_MS: np.ndarray, epochs: int) -> list[dict[str, Any]]:
    """A record for each epoch; the first step of a run, when nobody knows anything, is left out."""
    parts = np.split(np.arange(value_MS.shape[1]), epochs)
    parts[0] = parts[0][1:]
    return [{**found, "step": None, "epoch": epoch, **spread(value_MS[:, part])} for epoch, part in enumerate(parts)]


def spread(value_MS: np.ndarray) -> dict[str, Any]:
    """Mean over steps and seeds, and the lowest and highest seed; a step without right or wrong ones does not count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where no step counts the figure is NaN, null in the file
        seed_M = np.nanmean(value_MS, 1)
        mean, lowest, highest = np.nanmean(seed_M), np.nanmin(seed_M), np.nanmax(seed_M)
    return {"value": float(mean), "lowest": float(lowest), "highest": float(highest)}


def learning_rows(setting: Setting) -> list[dict[str, Any]]:
    """Held-out accuracy after one epoch of small groups, with and without a predicted prior, from the same starts."""
    rows = []
    for size, (prior, names) in product((1, 2), list(PRIORS.items())[:2]):
        for seed, repeat in product(setting.seeds, range(setting.repeats)):
            split, model, tokenizer = setting.split(seed), setting.started(seed), build_tokenizer()
            method, run_seed = METHODS["grpo_history"], seed + 1000 * repeat
            loop = Loop(model, tokenizer, split.train, method, seed=run_seed, generations=size)
            if names:
                loop.source.difficulty = DifficultyPredictor(side_by_side(features_of(loop, names), names))
            one_epoch(loop, setting.steps)
            rng = torch_generator(seed, Purpose.EVALUATION)
            right = accuracy(model, tokenizer, split.held_out, GROUP, rng).double().mean().item()
            rows.append(
                {"figure": "held_out_accuracy", "prior": prior, "completions": size, "seed": seed, "repeat": repeat}
                | {"value": right}
            )
            print(rows[-1], flush=True)
    return rows


def cost_rows(runs: Sequence[Run], repeats: int) -> list[dict[str, Any]]:
    """What a step pays for predictions, and an epoch for the policy's features."""
    rng, count = generator(0, Purpose.CHECK), 64
    predictor = DifficultyPredictor(rng.normal(size=(1000, 16)))
    rewards = Rewards.of_groups(torch.from_numpy((rng.random((count, 8)) < 0.5).astype(np.float64)))

    def step() -> None:
        row_P = rng.integers(0, 1000, count)
        number = predictor.step + 1
        predictor.expected(row_P, number, STRENGTH)
        predictor.auc(row_P, rewards, number)
        predictor.update(row_P, rewards, number)

    taken = milliseconds(step, repeats)
    share = [run.feature_seconds / run.epoch_seconds for run in runs]
    return [
        {"figure": "predict_and_update", "groups": count, "features": 16, **taken, "bar": COST_BAR_MS},
        {"figure": "policy_features_share_of_epoch", "value": float(np.mean(share)), "highest": max(share)},
    ]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """The figures by epoch, a line for each prior."""
    for row in rows:
        if row.get("step") is None:
            print("  ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))


def asked_for(description: str) -> tuple[Setting, str | None]:
    """The setting that the command line asks for, and the file for its figures; torch computes with one thread.

    Args:
        description: of the command.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="one seed of a smaller task after a short warm-up")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where warmed-up policies are kept")
    parser.add_argument("--output", metavar="FILE.json", help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    return replace(QUICK_SETTING if arguments.quick else Setting(), cache=arguments.cache), arguments.output


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    setting, output = asked_for("What difficulty predicted before the first visit is worth.")
    runs = [recorded(seed, setting) for seed in setting.seeds]
    rows = [*auc_rows(runs), *advantage_rows(runs), *cost_rows(runs, setting.calls), *learning_rows(setting)]
    print_table(rows)
    if output:
        write(output, rows, list(setting.seeds))


if __name__ == "__main__":
    main()
