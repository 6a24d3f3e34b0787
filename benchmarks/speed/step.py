"""A whole training step of ``DPPOTrainer`` against TRL's ``GRPOTrainer``: same work, same process, phase by phase.

python -m benchmarks.speed.step [--quick] [--output FILE.json]

Both train the demonstration's warmed-up policy on its task, 16 prompts by 8 completions and one optimizer step per
generation. The trainers take turns step by step. The learning rate is 0: every step is computed in full and moves no
weight, so in every step all trainers sample from the same policy, with the same random numbers, and those that roll out
the same prompts see the same completions. That is checked.

At rate 0 nothing is drawn, but completions of zero advantage are skipped, as ``DPPOTrainer`` always does: their
gradient is zero. ``scored`` in the table counts tokens that carry loss, to tell that saving from the one on padding.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PrinterCallback, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.shared import options, write
from benchmarks.speed.step_report import FASTER_BAR, overhead_records, print_report, ratio_records, step_records
from benchmarks.speed.turns import Step, StepClock, clock_of_ours, clock_of_trl, quiet, take_turns
from dppo.rng import Purpose, torch_generator
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.decode import sample
from dppo_lab.demo.evaluate import MAX_NEW_TOKENS
from dppo_lab.demo.task import FULL, QUICK, ArithmeticTask, make_split, score
from dppo_lab.demo.warmup import warm_up

SEED, PROMPTS, GENERATIONS = 0, 16, 8
Rollouts = dict[str, list[Any]]
"""``prompt_ids``, ``completion_ids`` and ``logprobs``, as TRL wants them from a ``rollout_func``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A trainer and how it is set."""

    name: str
    trainer: type[GRPOTrainer]
    config: type[GRPOConfig]
    clock: Callable[[Any], StepClock]
    rows: int = 32
    """``per_device_train_batch_size``; the rest is gradient accumulation. TRL pads every slice to the longest of the
    whole generation, so its slices save memory and no token: for TRL 32 rows or all at once differ by about 2%. The
    baseline has the arguments that ours have."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of the configuration."""


HALF = {"completion_prune_rate": 0.5}
trl = partial(Contestant, trainer=GRPOTrainer, config=GRPOConfig, clock=clock_of_trl)
ours = partial(Contestant, trainer=DPPOTrainer, config=DPPOConfig, clock=clock_of_ours)
BASELINE = trl(name="TRL")
UNPRUNED = ours(name="DPPO, rate 0", options={"method": "grpo", "completion_prune_rate": 0.0})
CONTESTANTS = (
    BASELINE,
    trl(name="TRL, all rows at once", rows=PROMPTS * GENERATIONS),
    UNPRUNED,
    ours(name="DPPO, completions", options=HALF),
    ours(name="DPPO, demo's rates", options={**HALF, "prompt_prune_rate": 0.3}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of a run."""

    task: ArithmeticTask = FULL
    warm_up_steps: int = FULL.warm_up_steps
    prompts: int = PROMPTS
    """Per step."""
    generations: int = GENERATIONS
    dataset: int = 128
    """Prompts in all. The first pass over them is not counted: without a history no prompt is pruned."""
    repetitions: int = 16
    """Steps that are counted."""
    max_new_tokens: int = MAX_NEW_TOKENS

    @property
    def uncounted(self) -> int:
        """Steps of the first pass."""
        return self.dataset // self.prompts

    @property
    def steps(self) -> int:
        """All steps."""
        return self.uncounted + self.repetitions


QUICK_SETTING = Setting(task=QUICK, warm_up_steps=120, prompts=8, dataset=8, repetitions=5, max_new_tokens=48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all contestants share."""

    setting: Setting
    folder: Path
    """Holds the policy."""
    model: Qwen3ForCausalLM
    dataset: Dataset


def build_bench(folder: Path, setting: Setting) -> Bench:
    """The warmed-up policy, saved to ``folder``, and the prompts."""
    model, tokenizer = build_model(SEED), build_tokenizer()
    warm_up(model, tokenizer, setting.task, seed=SEED, steps=setting.warm_up_steps)
    with quiet():
        model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    problems = make_split(SEED, train=setting.dataset, held_out=0, task=setting.task).train
    rows = [{"prompt": [{"role": "user", "content": p.question}], "answer": p.answer} for p in problems]
    return Bench(setting=setting, folder=folder, model=model, dataset=Dataset.from_list(rows))


def decode(bench: Bench, model: Qwen3ForCausalLM, questions: Sequence[str], step: int) -> Rollouts:
    """The completions of each question, after each other, from the demonstration's decoder."""
    count, prompts = bench.setting.generations, encode_questions(build_tokenizer(), list(questions))
    draws = torch_generator(SEED, Purpose.ROLLOUT, step)
    rollout = sample(model, prompts, draws, samples=count, max_new_tokens=bench.setting.max_new_tokens)
    lengths = rollout.length_N.tolist()
    return {
        "prompt_ids": [prompt for prompt in prompts for _ in range(count)],
        "completion_ids": rollout.token_lists,
        "logprobs": [row[:length] for row, length in zip(rollout.logp_NT.tolist(), lengths, strict=True)],
    }


def questions_of(prompts: Sequence[Any], trainer: Any) -> list[str]:
    """The question of each group of a generation; TRL repeats a prompt for each completion."""
    return [prompt[-1]["content"] for prompt in prompts[:: trainer.num_generations]]


def decoded(bench: Bench) -> Callable[..., Rollouts]:
    """A ``rollout_func`` that decodes with the policy in training."""

    def rollouts(prompts: list[Any], trainer: Any) -> Rollouts:
        model = trainer.accelerator.unwrap_model(trainer.model)
        return decode(bench, model, questions_of(prompts, trainer), trainer.state.global_step)

    return rollouts


def replayed(bench: Bench) -> Callable[..., Rollouts]:
    """A ``rollout_func`` that gives back what was decoded beforehand, by step and prompt, at no cost."""
    setting, table = bench.setting, []
    for step in range(setting.steps):
        rows = [(step * setting.prompts + row) % setting.dataset for row in range(setting.prompts)]
        questions = [prompt[-1]["content"] for prompt in bench.dataset.select(rows)["prompt"]]
        made = decode(bench, bench.model, questions, step)
        count = setting.generations
        groups = [slice(first, first + count) for first in range(0, len(rows) * count, count)]
        parts = [{name: values[group] for name, values in made.items()} for group in groups]
        table.append(dict(zip(questions, parts, strict=True)))

    def rollouts(prompts: list[Any], trainer: Any) -> Rollouts:
        parts = [table[trainer.state.global_step][question] for question in questions_of(prompts, trainer)]
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}

    return rollouts


def generated(bench: Bench) -> None:
    """No ``rollout_func``: TRL generates with transformers."""


BACKENDS: dict[str, Callable[[Bench], Callable[..., Rollouts] | None]] = {
    "replayed": replayed,
    "decoder": decoded,
    "transformers": generated,
}
"""Where completions come from. Replayed ones cost nothing: what is left is what the trainers do themselves."""


def build_trainer(bench: Bench, contestant: Contestant, rollout_func: Callable[..., Rollouts] | None) -> GRPOTrainer:
    """A contestant's trainer, with the settings that all share."""
    setting = bench.setting
    per_step = setting.prompts * setting.generations
    rows = min(contestant.rows, per_step)
    settings: dict[str, Any] = {
        "output_dir": str(bench.folder / "run"),
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": per_step // rows,
        "num_generations": setting.generations,
        "max_completion_length": setting.max_new_tokens,
        "max_steps": setting.steps,
        "learning_rate": 0.0,
        "shuffle_dataset": False,  # each trainer has its own order otherwise
        "seed": SEED,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    trainer = contestant.trainer(
        model=str(bench.folder / "policy"),
        reward_funcs=cast(Any, score),
        args=contestant.config(**settings | contestant.options),
        train_dataset=bench.dataset,
        rollout_func=rollout_func,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def run_backend(bench: Bench, contestants: Sequence[Contestant], backend: str) -> dict[str, list[Step]]:
    """The counted steps of each contestant, by name."""
    with quiet():
        rollout_func = BACKENDS[backend](bench)
        trainers = [build_trainer(bench, contestant, rollout_func) for contestant in contestants]
        clocks = [contestant.clock(trainer) for contestant, trainer in zip(contestants, trainers, strict=True)]
        steps = take_turns(trainers, clocks, seed=SEED)
    counted = [taken[bench.setting.uncounted :] for taken in steps]
    return {contestant.name: taken for contestant, taken in zip(contestants, counted, strict=True)}


def compare(backend: str, steps: dict[str, list[Step]]) -> list[dict[str, Any]]:
    """All records of a backend."""
    baseline = steps[BASELINE.name]
    records = [record for name, taken in steps.items() for record in step_records(backend, name, taken)]
    for name, taken in steps.items():
        if name != BASELINE.name:
            bar = FASTER_BAR if name == UNPRUNED.name else None
            records += ratio_records(backend, baseline, name, taken, bar=bar)
    if backend == "replayed":
        records += overhead_records(backend, baseline, UNPRUNED.name, steps[UNPRUNED.name])
    return records


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    arguments = options(__doc__, quick="short chains and few steps, in under a minute").parse_args()
    torch.set_num_threads(1)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        print("warming the policy up", file=sys.stderr)
        bench = build_bench(Path(folder), QUICK_SETTING if arguments.quick else Setting())
        for backend in BACKENDS:
            print(f"completions: {backend}", file=sys.stderr)
            records += compare(backend, run_backend(bench, CONTESTANTS, backend))
    print_report(records)
    write(arguments.output, records, [SEED])


if __name__ == "__main__":
    main()
