"""A whole training step of ``DPPOTrainer`` against TRL's ``GRPOTrainer`` on a CPU: same work, same process, by phase.

python -m benchmarks.speed.step [--quick] [--output benchmarks/results/step.json]

Both train the demonstration's warmed-up policy on its task, 16 prompts by 8 completions and one optimizer step per
generation, with completions by transformers. The learning rate is 0: every step is computed in full and moves no
weight, so in every step all trainers sample from the same policy with the same random numbers, and those that roll out
the same prompts see the same completions. That is checked. Whole steps on a GPU: ``gpu_step.py``.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from benchmarks.shared import options, write
from benchmarks.speed.harness import NOTES, Contestant, Measured, Stages, compared, print_table, quiet, take_turns
from dppo.lab.demo.rollouts import MAX_NEW_TOKENS
from dppo.lab.demo.task import FULL, QUICK, ArithmeticTask, make_split, score
from dppo.lab.demo.warmup import warm_up
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of a run."""

    task: ArithmeticTask = FULL
    warm_up_steps: int = FULL.warm_up_steps
    prompts: int = 16
    generations: int = 8
    dataset: int = 128
    """Prompts in all. The first pass over them is not counted: without a history no prompt is pruned."""
    repetitions: int = 16
    max_new_tokens: int = MAX_NEW_TOKENS

    @property
    def completions(self) -> int:
        """Completions of a step."""
        return self.prompts * self.generations

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """All trainers. TRL pads every slice to the longest of all, so 32 rows or all at once differ by about 2%."""
        rows = min(32, self.completions)
        half = {"completion_prune_rate": 0.5}
        chosen = {"DPPO, completions": half, "DPPO, demo's rates": {**half, "prompt_prune_rate": 0.3}}
        exact = {"method": "grpo", "completion_prune_rate": 0.0}
        return (
            Contestant(name="TRL", batch_size=rows),
            Contestant(name="TRL, all rows at once", batch_size=self.completions),
            Contestant(name="DPPO, rate 0", batch_size=rows, pruning=exact, exact=True),
            *(Contestant(name=name, batch_size=rows, pruning=fields) for name, fields in chosen.items()),
        )


QUICK_SETTING = Setting(task=QUICK, warm_up_steps=120, prompts=8, dataset=8, repetitions=5, max_new_tokens=48)


def measured(setting: Setting, folder: Path) -> list[Measured]:
    """All contestants on one warmed-up policy, which is saved to ``folder``, in turns."""
    model, tokenizer = build_model(SEED), build_tokenizer()
    warm_up(model, tokenizer, setting.task, seed=SEED, steps=setting.warm_up_steps)
    problems = make_split(SEED, train=setting.dataset, held_out=0, task=setting.task).train
    dataset = [{"prompt": [{"role": "user", "content": each.question}], "answer": each.answer} for each in problems]
    stages = Stages(warm_up=setting.dataset // setting.prompts, timed=setting.repetitions, phased=0)
    fields: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "num_generations": setting.generations,
        "max_completion_length": setting.max_new_tokens,
        "max_steps": stages.steps,
        "seed": SEED,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    policy = str(folder / "policy")
    with quiet():
        model.save_pretrained(policy)
        tokenizer.save_pretrained(policy)
        given: dict[str, Any] = {"model": policy, "reward_funcs": score, "train_dataset": Dataset.from_list(dataset)}
        trainers = [each.trainer(setting.completions, fields, **given) for each in setting.contestants]
        watches = take_turns(trainers, stages, seed=SEED)
    pairs = zip(setting.contestants, watches, strict=True)
    return [Measured(contestant=each, row={}, watch=watch) for each, watch in pairs]


def main() -> int:
    """Measure, print, and write the JSON file if one is named; 1 if a check failed."""
    arguments = options(__doc__, quick="short chains and few steps, in under a minute").parse_args()
    torch.set_num_threads(1)
    setting = QUICK_SETTING if arguments.quick else Setting()
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(measured(setting, Path(folder)), torch.float32)
    print_table(f"{setting.prompts} x {setting.generations} completions by transformers, one thread", rows)
    print(NOTES)
    write(arguments.output, rows, [SEED])
    return int(any(row["passed"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
