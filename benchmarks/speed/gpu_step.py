"""Seconds of a whole optimizer step on one CUDA GPU: TRL at its best batch size, plain GRPO on rows, and DPPO.

python -m benchmarks.speed.gpu_step [--model 0.6B|1.7B|4B] [--dtype float32|bfloat16] [--lora [RANK]]
    [--betas 0 0.04] [--prompts 16] [--quick] [--dry-run] [--output FILE.json]

Weights are random and completions are given, with lengths as in a run: a step is reference log-probabilities, update
and optimizer. All contestants train on the same completions and move no weight, because the learning rate is 0. Half of
the groups have equal rewards. The control is ``method: grpo`` on rows: nothing is pruned, but without a KL term
completions without a gradient are skipped.

Contestants run one after another, each on a model of its own. Timed steps have no clock inside; seconds by phase, and
the GPU's busy share, come from later steps of the same run. Passes and tokens are counted by hooks on the models and
compared with those that the lengths need. ``--dry-run`` does all of it on a CPU with a tiny model. The two commands for
a borrowed machine are in ``gpu_calls.sh``.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.shared import Record, options, write
from benchmarks.speed.gpu_expected import KeptRows, differences, work_of_padding, work_of_rows
from benchmarks.speed.gpu_report import CONTROL, NOTES, Measured, compared, print_table
from benchmarks.speed.gpu_watch import Stages, StepWatch, Work
from benchmarks.speed.turns import quiet
from benchmarks.speed.workload import MODELS, REALISTIC, Lengths, build_model, generation_batch
from dppo.errors import OutOfMemoryError, first_line
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer
from dppo_lab.runs.watch import DPPOWatch

SEED = 0
GENERATIONS = 8
QUICK_LAYERS = 4
NO_GPU = "This needs a GPU. To test the path without one: python -m benchmarks.speed.gpu_step --dry-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A trainer and its settings."""

    name: str
    batch_size: int
    """``per_device_train_batch_size``; the rest of a generation is gradient accumulation."""
    pruning: dict[str, Any] | None = None
    """Further fields of ``DPPOConfig``; None for TRL's trainer."""


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
        chosen: dict[str, dict[str, Any]] = {
            CONTROL: {"method": "grpo", "completion_prune_rate": 0.0},
            "default": {"rollout_cost": 1.0},  # given, so that no clock has a part in the rate that auto chooses
            "0.8 dropped": {"completion_prune_rate": 0.8},
        }
        ours = [Contestant(name=name, batch_size=min(self.sizes), pruning=each) for name, each in chosen.items()]
        first, *others = [Contestant(name=f"TRL, {size}", batch_size=size) for size in self.sizes]
        return [first, *ours, *others]

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
        self.lengths = [(len(group[0]), [len(each) for each in completions]) for group, completions in self._groups]
        """Tokens of each prompt, and of each of its completions."""

    def rollouts(self, seen: list[list[int]]) -> Callable[..., dict[str, list[Any]]]:
        """A ``rollout_func`` with the completions of each prompt; it appends the prompts' numbers to ``seen``."""

        def roll_out(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
            numbers = [int(prompt) for prompt in prompts[:: trainer.num_generations]]
            seen.append(numbers)
            chosen = [self._groups[number] for number in numbers]
            completions = [each for _, group in chosen for each in group]
            return {
                "prompt_ids": [each for group, _ in chosen for each in group],
                "completion_ids": completions,
                "logprobs": [[-1.0] * len(each) for each in completions],
            }

        return roll_out


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


def build_trainer(
    contestant: Contestant, setting: Setting, given: Given, beta: float, folder: Path, seen: list[list[int]]
) -> GRPOTrainer:
    """A contestant's trainer, with the fields that all share."""
    on_gpu = setting.device.type == "cuda"
    fields: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": contestant.batch_size,
        "gradient_accumulation_steps": setting.completions // contestant.batch_size,
        "num_generations": GENERATIONS,
        "max_completion_length": setting.lengths.longest,
        "max_steps": setting.stages.steps,
        "learning_rate": 0.0,
        "beta": beta,
        "loss_type": "dr_grpo",
        "shuffle_dataset": False,
        "seed": SEED,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,  # it would wait for the GPU after each backward pass
        "gradient_checkpointing": setting.checkpointing,
        "disable_tqdm": True,
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
    kind, config = (GRPOTrainer, GRPOConfig) if contestant.pruning is None else (DPPOTrainer, DPPOConfig)
    if contestant.pruning is not None:
        fields |= {"max_tokens_per_row": setting.row_tokens} | contestant.pruning
    trainer = kind(
        model=build_policy(setting, folder / "policy"),
        reward_funcs=cast(Any, reward),
        args=cast(Any, config(**fields)),
        train_dataset=given.dataset,
        processing_class=build_tokenizer(),
        rollout_func=given.rollouts(seen),
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def needed_work(
    contestant: Contestant, setting: Setting, given: Given, beta: float, seen: list[list[int]], kept: KeptRows
) -> list[Work]:
    """Passes and tokens that the lengths need, of each timed step."""
    counted = slice(setting.stages.warm_up, setting.stages.warm_up + setting.stages.timed)
    if contestant.pruning is None:
        steps = [[given.lengths[number] for number in numbers] for numbers in seen[counted]]
        return [work_of_padding(each, contestant.batch_size, reference=beta > 0) for each in steps]
    most = setting.row_tokens
    return [
        work_of_rows(given.lengths, rows, keep, row_tokens_most=most, reference=beta > 0)
        for rows, keep in kept.kept[counted]
    ]


def measured(contestant: Contestant, setting: Setting, given: Given, beta: float, folder: Path) -> Measured:
    """One contestant's measurements; memory that runs out is a finding, not an error."""
    seen, kept, stock = list[list[int]](), KeptRows(), contestant.pruning is None
    row: Record = {"figure": "step", **setting.record(), "beta": beta, "contestant": contestant.name}
    row |= {"batch_size": contestant.batch_size, "row_tokens": None if stock else setting.row_tokens}
    try:
        with quiet():
            trainer = build_trainer(contestant, setting, given, beta, folder, seen)
            if not stock:
                DPPOWatch(cast(DPPOTrainer, trainer), kept)
            watch = StepWatch(trainer, setting.stages, setting.device)
            trainer.train()
    except (torch.OutOfMemoryError, OutOfMemoryError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        return Measured(row=row | {"reason": reason, "passed": None}, is_trl=stock)
    found = differences(watch.work, needed_work(contestant, setting, given, beta, seen, kept))
    row |= watch.record() | {"reason": "; ".join(found), "passed": not found}
    return Measured(row=row, norms=watch.norms, prompts=[sorted(numbers) for numbers in seen], is_trl=stock)


def measure(setting: Setting, folder: Path, show: Callable[[list[Record]], None]) -> None:
    """Measure each contestant at each beta; ``show`` is called after each one with all records so far."""
    given, before = Given(setting), list[Record]()
    for beta in setting.betas:
        found: list[Measured] = []
        for contestant in setting.contestants:
            start = time.perf_counter()
            found.append(measured(contestant, setting, given, beta, folder))
            gc.collect()  # a trainer is a cycle, and its model must make room for the next
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
            print(f"{contestant.name}, beta {beta:g}: {time.perf_counter() - start:.0f} s in all", file=sys.stderr)
            show(before + compared(found, setting.precision))
        before += compared(found, setting.precision)
        print_table([row for row in before if row["beta"] == beta])
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
        "model": arguments.model,
        "dtype": DTYPES[arguments.dtype],
        "lora": arguments.lora,
        "betas": tuple(arguments.betas),
        "prompts": arguments.prompts,
        "sizes": tuple(arguments.sizes),
        "row_tokens": arguments.row_tokens,
        "lengths": replace(REALISTIC, longest=arguments.longest),
        "checkpointing": arguments.checkpointing,
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
