"""What samples of the reference are worth as the prior of prompt histories: area under the curve, size of advantages.

python benchmarks/values.py [--quick] [--cache FOLDER] [--output FILE.json]

The runs and figures are those of benchmarks/difficulty.py: the embedded task, unpruned, 16 prompts by 4 completions,
each prior asked for every step from what came before it. Here a prior is what ``dppo values`` records: each prompt's
share of right samples of the policy before training, the first 2 or all 8. They are not free: 8 samples of every prompt
are as many completions as two epochs of 4. They stay the prior throughout, to see how long they are worth something;
the library drops them at a prompt's first visit. One epoch of training is the same either way.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from difficulty import (
    GROUP,
    SIZES,
    STRENGTH,
    Run,
    Setting,
    area,
    asked_for,
    by_epoch,
    one_epoch,
    print_table,
    recorded,
    square,
)
from results_file import write
from torch import Tensor

from dppo.context import Expected
from dppo.methods import METHODS
from dppo.objective import optimal_value
from dppo.pruning import PromptHistory, PromptValues
from dppo.rng import Purpose, torch_generator
from dppo.types import Rewards
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.evaluate import accuracy
from dppo_lab.demo.loop import MAX_NEW_TOKENS, PROMPTS, Loop

SAMPLES, BETA = 8, 0.5
PRIORS = {"mean over all": 0, "reference, 2 samples": 2, "reference, 8 samples": 8}
"""Samples of the reference that a prior is made of."""
METHOD = METHODS["grpo_history"]


def reference_rewards(seed: int, setting: Setting) -> Tensor:
    """(P, SAMPLES) rewards of the warmed-up policy on every training prompt, before it is trained."""
    problems = setting.split(seed).train
    loop = Loop(setting.started(seed), build_tokenizer(), problems, METHOD, seed=seed, generations=SAMPLES)
    found = []
    for first in range(0, len(problems), PROMPTS):
        row_Q = torch.arange(first, min(first + PROMPTS, len(problems)))
        rng = torch_generator(seed, Purpose.EVALUATION, first)
        prompts, sizes = [loop.prompts[row] for row in row_Q], [SAMPLES] * len(row_Q)
        rollout = loop.decoder(loop.model, prompts, rng, samples=sizes, max_new_tokens=MAX_NEW_TOKENS)
        found.append(loop._rewards(row_Q.repeat_interleave(SAMPLES), rollout).view(-1, SAMPLES))
    return torch.cat(found).double()


def values_of(reward_PG: Tensor) -> PromptValues:
    """What ``dppo values`` writes of these rewards."""
    count_P = torch.full((len(reward_PG),), float(reward_PG.shape[1]), dtype=torch.float64)
    return PromptValues(
        value_P=optimal_value(reward_PG, beta=BETA),
        count_P=count_P,
        mean_P=reward_PG.mean(1),
        square_P=reward_PG.square().mean(1),
    )


def replay(run: Run, values: PromptValues | None, size: int) -> Iterator[tuple[Expected | None, Expected, Rewards]]:
    """For each step its prior, what is expected with the prompts' own histories, and what then came."""
    history = PromptHistory(np.arange(len(run.features[0]["length"]), dtype=np.uint64), strength=STRENGTH)
    for step, (row_Q, reward_QG) in enumerate(zip(run.rows, run.rewards, strict=True)):
        rewards = Rewards.of_groups(reward_QG[:, :size])
        prior = None if values is None else values.expected(row_Q, strength=STRENGTH)
        expected = history.expected(row_Q, step, prior)
        yield prior, expected, rewards
        history.update(row_Q, rewards, torch.ones(len(row_Q)), torch.ones(len(rewards)), step)


def figures_of(runs: Sequence[Run], references: Sequence[Tensor]) -> list[dict[str, Any]]:
    """By epoch: areas under the curve with own history and without, and mean squares of advantages."""
    rows, epochs = [], len(runs[0].features)
    for name, samples in PRIORS.items():
        known = [values_of(reward_PG[:, :samples]) if samples else None for reward_PG in references]
        pairs = list(zip(runs, known, strict=True))
        both = np.array([[(area(p, r), area(o, r)) for p, o, r in replay(run, v, GROUP)] for run, v in pairs])
        for place, own in enumerate((False, True)):
            found = {"figure": "auc", "prior": name, "own_history": own, "completions": GROUP}
            rows += by_epoch(found, both[:, :, place], epochs)
        for size in SIZES:
            square_MS = np.array([[square(r, own) for _, own, r in replay(run, v, size)] for run, v in pairs])
            found = {"figure": "advantage_square", "prior": name, "own_history": True, "completions": size}
            rows += by_epoch(found, square_MS, epochs)
    return rows


def learning_rows(setting: Setting, references: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Held-out accuracy after one epoch of small groups, with and without the prior, from the same starts."""
    rows = []
    for size, samples in product((1, 2), (0, SAMPLES)):
        for (seed, reward_PG), repeat in product(zip(setting.seeds, references, strict=True), range(setting.repeats)):
            split, model, tokenizer = setting.split(seed), setting.started(seed), build_tokenizer()
            loop = Loop(model, tokenizer, split.train, METHOD, seed=seed + 1000 * repeat, generations=size)
            loop.source.values = values_of(reward_PG) if samples else None
            one_epoch(loop, setting.steps)
            rng = torch_generator(seed, Purpose.EVALUATION)
            right = accuracy(model, tokenizer, split.held_out, GROUP, rng).double().mean().item()
            found = {"figure": "held_out_accuracy", "reference_samples": samples, "completions": size}
            rows.append(found | {"seed": seed, "repeat": repeat, "value": right})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    setting, output = asked_for("What samples of the reference are worth as a prior.")
    references = [reference_rewards(seed, setting) for seed in setting.seeds]
    runs = [recorded(seed, setting) for seed in setting.seeds]
    rows = [*figures_of(runs, references), *learning_rows(setting, references)]
    failed = [float((reward_PG.sum(1) == 0).double().mean()) for reward_PG in references]
    mean = [float(reward_PG.mean()) for reward_PG in references]
    rows.append({"figure": "reference", "mean_reward": float(np.mean(mean)), "failed_share": float(np.mean(failed))})
    print_table(rows)
    if output:
        write(output, rows, list(setting.seeds))


if __name__ == "__main__":
    main()
