"""Decoding with drafts against plain decoding: the embedded policy, drafts from the policy of some steps before.

python benchmarks/drafts.py [--quick] [--output FILE.json]

A warmed-up policy is trained by plain GRPO, and the policies on the way are kept. Then the last one completes blocks of
training prompts, plainly and with drafts, in turns and from the same seeds; the drafts are completions of the same
prompts by a policy ``age`` steps older, as many for each prompt as it gets now. An epoch of the task is 12 steps. Age 0
has no drafts: it is what the way there costs.

This is engine speed. It comes to every method alike and says nothing about any of them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from results_file import write
from transformers import Qwen3ForCausalLM

from dppo.methods import METHODS
from dppo.rng import Purpose, generator, torch_generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.decode import Rollout, sample
from dppo_lab.demo.drafts import sample_drafted
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS
from dppo_lab.demo.loop import Loop
from dppo_lab.demo.task import FULL, QUICK, Task, make_split
from dppo_lab.demo.warmup import warm_up

SEED = 0
LEARNING_RATE, RISE_STEPS = 4e-4, 5
SIZES = ((16, 8), (16, 4), (32, 2))
"""Prompts of a block, and completions of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How much is run; the defaults are what is committed."""

    task: Task = FULL
    steps: int = 36
    """Of training before the policy that is timed."""
    ages: tuple[int, ...] = (0, 1, 4, 12)
    blocks: int = 8
    """Timed per size and age."""


SHORT = Setting(task=QUICK, steps=5, ages=(0, 4), blocks=2)
Weights = dict[str, torch.Tensor]


def train(setting: Setting) -> tuple[Loop, dict[int, Weights]]:
    """The loop after its training, and the policy's weights at each of the ages."""
    model, tokenizer = build_model(SEED), build_tokenizer()
    warm_up(model, tokenizer, setting.task, seed=SEED, steps=setting.task.warm_up_steps)
    loop = Loop(model, tokenizer, make_split(SEED, task=setting.task).train, METHODS["grpo"], seed=SEED)
    kept: dict[int, Weights] = {}
    for step in range(setting.steps):
        if setting.steps - step in setting.ages:
            kept[setting.steps - step] = {name: value.clone() for name, value in model.state_dict().items()}
        loop.step(LEARNING_RATE * min(1.0, (step + 1) / RISE_STEPS))
    return loop, kept


def accepted_tokens(text: Sequence[int], drafts: Sequence[Sequence[int]]) -> int:
    """Tokens at the start of a completion that one of the drafts has too."""
    return max(
        (next((i for i, pair in enumerate(zip(text, d, strict=False)) if pair[0] != pair[1]), min(len(text), len(d))))
        for d in [*drafts, ()]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One block of prompts, decoded both ways."""

    plain: tuple[float, float]
    """CPU seconds of this process, and wall-clock seconds."""
    drafted: tuple[float, float]
    tokens: int
    """Of the completions decoded with drafts."""
    accepted: int
    """Those of them that a draft had."""
    whole: int
    """Completions that a draft had to the end."""


def take_turns(loop: Loop, older: Qwen3ForCausalLM | None, prompts: int, samples: int, block: int) -> Turn:
    """Complete a block of prompts drawn at random, plainly and with drafts by the older policy, if there is one."""
    chosen = generator(SEED, Purpose.CHECK, block).choice(len(loop.prompts), prompts, replace=False)
    asked = [loop.prompts[row] for row in chosen]
    settings = {"samples": samples, "max_new_tokens": MAX_NEW_TOKENS}
    drafts: list[list[list[int]]] = [[] for _ in asked]
    if older is not None:
        texts = sample(older, asked, torch_generator(SEED, Purpose.ROLLOUT, block), **settings).token_lists
        drafts = [texts[start : start + samples] for start in range(0, len(texts), samples)]
    ways: dict[str, Callable[[torch.Generator], Rollout]] = {
        "plain": lambda rng: sample(loop.model, asked, rng, **settings),
        "drafted": lambda rng: sample_drafted(loop.model, asked, drafts, rng, **settings),
    }
    made, seconds = dict[str, Rollout](), dict[str, tuple[float, float]]()
    for name in sorted(ways, reverse=bool(block % 2)):
        rng, wall, cpu = torch_generator(SEED, Purpose.EVALUATION, block), time.perf_counter(), time.process_time()
        made[name] = ways[name](rng)
        seconds[name] = (time.process_time() - cpu, time.perf_counter() - wall)
    rows = made["drafted"].token_lists
    same = [accepted_tokens(text, drafts[row // samples]) for row, text in enumerate(rows)]
    whole = sum(len(text) == each for text, each in zip(rows, same, strict=True))
    return Turn(**seconds, tokens=sum(map(len, rows)), accepted=sum(same), whole=whole)


def summary(turns: Sequence[Turn], completions: int) -> dict[str, Any]:
    """Shares over all turns, and medians with quartiles of seconds and of the ratios within a turn."""
    plain_M2, drafted_M2 = (np.array([getattr(turn, name) for turn in turns]) for name in ("plain", "drafted"))
    figures = {
        f"{name}_{clock}": values_M2[:, column]
        for name, values_M2 in (("plain", plain_M2), ("drafted", drafted_M2), ("speedup", plain_M2 / drafted_M2))
        for column, clock in enumerate(("cpu", "wall"))
    }
    found = {
        f"{name}_{part}": value
        for name, values_M in figures.items()
        for part, value in zip(("low", "median", "high"), np.percentile(values_M, [25, 50, 75]).tolist(), strict=True)
    }
    tokens = sum(turn.tokens for turn in turns)
    return {
        "accepted_share": sum(turn.accepted for turn in turns) / tokens,
        "whole_share": sum(turn.whole for turn in turns) / (completions * len(turns)),
        "tokens_per_block": tokens / len(turns),
        "blocks": len(turns),
        **found,
    }


def main() -> None:
    """Train, measure, print a line for each size and age, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter task and training, two blocks: to see it run")
    parser.add_argument("--output", default="benchmarks/results/drafts.json")
    options = parser.parse_args()
    setting = SHORT if options.quick else Setting()
    torch.set_num_threads(1)
    loop, kept = train(setting)
    rows = []
    print("prompts  samples  age  accepted  whole   plain CPU s  drafted  speedup of CPU time [quartiles]")
    for prompts, samples in SIZES:
        for age in setting.ages:
            older = None
            if age > 0:
                older = build_model(SEED).eval()
                older.load_state_dict(kept[age])
            turns = [take_turns(loop, older, prompts, samples, block) for block in range(setting.blocks + 1)]
            found = summary(turns[1:], prompts * samples)  # the first warms the machine up
            rows.append({"name": "drafts", "prompts": prompts, "samples": samples, "age_steps": age, **found})
            print(
                f"{prompts:7d}  {samples:7d}  {age:3d}  {found['accepted_share']:8.3f}  {found['whole_share']:5.3f}  "
                f"{found['plain_cpu_median']:11.3f}  {found['drafted_cpu_median']:7.3f}  "
                f"{found['speedup_cpu_median']:.2f} [{found['speedup_cpu_low']:.2f}, {found['speedup_cpu_high']:.2f}]",
                flush=True,
            )
    write(options.output, rows, [SEED])


if __name__ == "__main__":
    main()
