"""Seconds of a whole optimizer step on one CUDA GPU: TRL at its best batch size, plain GRPO on rows, and DPPO.

python -m benchmarks.speed.gpu_step [--model 0.6B|1.7B|4B] [--dtype float32|bfloat16] [--lora [RANK]]
    [--betas 0 0.04] [--prompts 16] [--quick] [--dry-run] [--output FILE.json]

Weights are random and completions are given, with lengths as in a run: a step is reference log-probabilities, update
and optimizer. All contestants train on the same completions and move no weight, because the learning rate is 0. Half of
the groups have equal rewards. The control is ``method: grpo`` on rows: nothing is pruned, but without a KL term
completions without a gradient are skipped. Contestants run one after another, each on a model of its own.

``--dry-run`` does all of it on a CPU with a tiny model. The commands for a borrowed machine are in ``gpu_calls.sh``.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from benchmarks.shared import Record, options, write
from benchmarks.speed.harness import NOTES, Contestant, Measured, Stages, StepWatch, compared, print_table, quiet
from benchmarks.speed.workload import MODELS, REALISTIC, Lengths, build_model, generation_batch
from dppo.errors import OutOfMemoryError, first_line
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer

SEED = 0
GENERATIONS = 8
QUICK_LAYERS = 4
NO_GPU = "This needs a GPU. To test the path without one: python -m benchmarks.speed.gpu_step --dry-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of a run, the same for all contestants."""

    model: str = "0.6B"
    layers: int | None = None
    """None for all layers of the model."""
    dtype: torch.dtype = torch.float32
    """Number format of the weights. On a GPU both trainers compute in bfloat16, by autocast if weights are float32."""
    lora: int = 0
    """Rank of the adapters on all linear layers; 0 trains all weights."""
    betas: tuple[float, ...] = (0.0, 0.04)
    prompts: int = 16
    """Prompts of an optimizer step, each with ``GENERATIONS`` completions."""
    sizes: tuple[int, ...] = (16, 8, 32)
    """Batch sizes that TRL is tried with; the others have the smallest one."""
    row_tokens: int = 16_384
    """``max_tokens_per_row`` of the control and of DPPO."""
    checkpointing: bool = True
    lengths: Lengths = REALISTIC
    stages: Stages = field(default_factory=Stages)
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))

    @property
    def completions(self) -> int:
        """Completions of an optimizer step."""
        return self.prompts * GENERATIONS

    @property
    def contestants(self) -> list[Contestant]:
        """TRL at the first batch size, the control, DPPO by default and with 0.8 dropped, TRL at the other sizes.

        The other sizes come last, because they matter least if time runs out.
        """
        rows, size = {"max_tokens_per_row": self.row_tokens}, min(self.sizes)
        control = rows | {"method": "grpo", "completion_prune_rate": 0.0}
        chosen = {
            "default": {"rollout_cost": 1.0},  # given, so that no clock has a part in the rate that auto chooses
            "0.8 dropped": {"completion_prune_rate": 0.8},
        }
        first, *others = [Contestant(name=f"TRL, {n}", batch_size=n, exact=True) for n in self.sizes]
        ours = [Contestant(name=name, batch_size=size, pruning=rows | each) for name, each in chosen.items()]
        return [first, Contestant(name="control", batch_size=size, pruning=control, exact=True), *ours, *others]

    @property
    def precision(self) -> torch.dtype:
        """Number format of forward and backward."""
        return torch.bfloat16 if self.device.type == "cuda" else self.dtype

    def record(self) -> Record:
        """The sizes, as entries of a record."""
        return {
            "model": self.model,
            "layers": self.config().num_hidden_layers,
            "dtype": str(self.dtype).removeprefix("torch."),
            "lora": self.lora,
            "prompts": self.prompts,
            "generations": GENERATIONS,
            "row_tokens": self.row_tokens,
            "checkpointing": self.checkpointing,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else self.device.type,
        }

    def config(self) -> Any:
        """The configuration of the model."""
        return MODELS[self.model](**{} if self.layers is None else {"layers": self.layers})


class Given:
    """Prompts, completions and rewards of every step, the same for all trainers."""

    def __init__(self, setting: Setting) -> None:
        count = setting.prompts * setting.stages.steps
        batch = generation_batch(
            SEED, prompts=count, group_size=GENERATIONS, vocabulary=len(TOKENS) - 4, lengths=setting.lengths
        )
        prompts, completions = ([(each + 4).tolist() for each in part] for part in (batch.prompts, batch.completions))
        groups = [slice(first, first + GENERATIONS) for first in range(0, len(prompts), GENERATIONS)]
        self._groups = [(prompts[group], completions[group]) for group in groups]
        self.dataset = Dataset.from_list([{"prompt": str(number)} for number in range(count)])

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """A ``rollout_func`` with the completions of each prompt."""
        chosen = [self._groups[int(prompt)] for prompt in prompts[:: trainer.num_generations]]
        completions = [each for _, group in chosen for each in group]
        return {
            "prompt_ids": [each for group, _ in chosen for each in group],
            "completion_ids": completions,
            "logprobs": [[-1.0] * len(each) for each in completions],
        }


def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """1 for completions of even prompts, whose groups are then without a gradient; of others by the last token."""
    return [
        1.0 if int(prompt) % 2 == 0 else float(tokens[-1] % 2)
        for prompt, tokens in zip(prompts, completion_ids, strict=True)
    ]


def build_policy(setting: Setting, folder: Path) -> PreTrainedModel:
    """The policy, random weights: the same at each call. TRL reads a reference model from ``folder``."""
    model = build_model(setting.config(), SEED, device=str(setting.device), dtype=setting.dtype)
    if any(setting.betas) and not setting.lora:
        if not folder.exists():
            model.save_pretrained(folder)
        model.config._name_or_path = str(folder)
    return model


def build_trainer(contestant: Contestant, setting: Setting, given: Given, beta: float, folder: Path) -> Any:
    """A contestant's trainer, with the fields that all share."""
    on_gpu = setting.device.type == "cuda"
    fields: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "num_generations": GENERATIONS,
        "max_completion_length": setting.lengths.longest,
        "max_steps": setting.stages.steps,
        "beta": beta,
        "loss_type": "dr_grpo",
        "seed": SEED,
        "gradient_checkpointing": setting.checkpointing,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
    }
    more: dict[str, Any] = {}
    if setting.lora:
        from peft import LoraConfig

        alpha = 2 * setting.lora
        more["peft_config"] = LoraConfig(
            r=setting.lora, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    more |= {"model": build_policy(setting, folder / "policy"), "reward_funcs": reward}
    more |= {"train_dataset": given.dataset, "processing_class": build_tokenizer(), "rollout_func": given.rollouts}
    return contestant.trainer(setting.completions, fields, **more)


def measured(contestant: Contestant, setting: Setting, given: Given, beta: float, folder: Path) -> Measured:
    """One contestant's measurements; memory that runs out is a finding, not an error."""
    row: Record = {**setting.record(), "beta": beta, "batch_size": contestant.batch_size}
    try:
        with quiet():
            watch = StepWatch(
                build_trainer(contestant, setting, given, beta, folder), setting.stages, setting.device, SEED
            )
            watch.trainer.train()
    except (torch.OutOfMemoryError, OutOfMemoryError) as error:
        row["reason"] = f"{type(error).__name__}: {first_line(error)}"
        return Measured(contestant=contestant, row=row, watch=None)
    watch.trainer = None  # its model must make room for the next
    return Measured(contestant=contestant, row=row, watch=watch)


def measure(setting: Setting, folder: Path, show: Callable[[list[Record]], None]) -> None:
    """Measure each contestant at each beta; ``show`` is called after each one with all records so far."""
    given, before = Given(setting), list[Record]()
    for beta in setting.betas:
        found: list[Measured] = []
        for contestant in setting.contestants:
            start = time.perf_counter()
            found.append(measured(contestant, setting, given, beta, folder))
            gc.collect()  # a trainer is a cycle
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"{contestant.name}, beta {beta:g}: {time.perf_counter() - start:.0f} s in all", file=sys.stderr)
            show(before + compared(found, setting.precision))
        rows = compared(found, setting.precision)
        before += rows
        sizes = ", ".join(f"{name} {value}" for name, value in rows[0].items() if name in setting.record())
        print_table(f"{sizes}, beta {beta:g}", rows)
    print(NOTES)


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DRY: dict[str, Any] = {
    "model": "tiny",
    "device": torch.device("cpu"),
    "row_tokens": 400,
    "lengths": Lengths(prompt=(5, 10), median=20.0, longest=50),
    "stages": Stages(warm_up=1, timed=2),
}
"""A dry run's sizes: rows hold less than a step, and fewer rows than calls of the loss are needed."""


def parser() -> argparse.ArgumentParser:
    """Options of the command; its defaults are those of ``Setting``."""
    found = options(__doc__, quick=f"{QUICK_LAYERS} layers and two timed steps")
    usual = Setting(device=torch.device("cpu"))
    found.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU, which needs no GPU")
    found.add_argument("--model", choices=("0.6B", "1.7B", "4B"), default=usual.model, help="a shape of Qwen3")
    found.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights")
    found.add_argument("--lora", type=int, nargs="?", const=16, default=0, metavar="RANK", help="train adapters alone")
    found.add_argument("--betas", type=float, nargs="+", default=usual.betas, help="coefficients of the KL term")
    found.add_argument("--prompts", type=int, default=usual.prompts, help=f"of a step, each {GENERATIONS} times")
    found.add_argument("--sizes", type=int, nargs="+", default=usual.sizes, help="batch sizes that TRL is tried with")
    found.add_argument("--row-tokens", type=int, default=usual.row_tokens, help="max_tokens_per_row")
    found.add_argument("--longest", type=int, default=usual.lengths.longest, help="most tokens of a completion")
    found.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=usual.checkpointing)
    return found


def setting_of(arguments: argparse.Namespace) -> Setting:
    """The sizes that a command line asks for."""
    fields: dict[str, Any] = {
        **{name: getattr(arguments, name) for name in ("model", "lora", "prompts", "row_tokens", "checkpointing")},
        "dtype": DTYPES[arguments.dtype],
        "betas": tuple(arguments.betas),
        "sizes": tuple(arguments.sizes),
        "lengths": replace(REALISTIC, longest=arguments.longest),
    }
    if arguments.quick:
        fields |= {"layers": QUICK_LAYERS, "stages": Stages(timed=2)}
    return Setting(**fields | (DRY if arguments.dry_run else {}))


def main() -> int:
    """Measure, print, and write the JSON file if one is named. 1 if a check failed, 2 without a GPU."""
    command = parser()
    arguments = command.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        print(NO_GPU)
        return 2
    setting = setting_of(arguments)
    if uneven := [size for size in setting.sizes if setting.completions % size]:
        command.error(f"--sizes {uneven[0]} does not divide the {setting.completions} completions of a step")
    records: list[Record] = []

    def show(rows: list[Record]) -> None:
        records[:] = rows
        write(arguments.output, rows, [SEED])

    with tempfile.TemporaryDirectory() as name:
        measure(setting, Path(name), show)
    return 0 if all(row["passed"] is not False for row in records) else 1


if __name__ == "__main__":
    sys.exit(main())
