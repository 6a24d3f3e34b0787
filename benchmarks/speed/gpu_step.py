"""A whole training step on one CUDA GPU, Qwen3 of 0.6B with random weights: stock TRL, a control, and DPPO, in turns.

python -m benchmarks.speed.gpu_step [--quick] [--output FILE.json]

Completions are given, of lengths as a run has them, so a step is what follows a rollout: reference log-probabilities,
update and optimizer. All trainers see the same ones and move no weight (learning rate 0), in bfloat16 with gradient
checkpointing. Every phase ends when the GPU is done with it, so nothing overlaps with the work of the host. Half of
the groups have equal rewards. The control is ``method: grpo`` on rows: nothing is pruned, but without a KL term it
leaves out what has no gradient. ``--device cpu --quick`` runs a tiny model, to test the path.
"""

import gc
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.shared import Record, options, spread_with_ends, write
from benchmarks.speed.step import Contestant, ours, quiet, trl
from benchmarks.speed.step_report import ratio_records, step_records
from benchmarks.speed.turns import Step, take_turns
from benchmarks.speed.workload import MODELS, REALISTIC, Lengths, build_model, generation_batch
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer

SEED = 0
PROMPTS, GENERATIONS = 8, 8
UNCOUNTED = 2
"""Steps at the beginning that are not counted: kernels are chosen and compiled in them."""
TRL, CONTROL = "TRL", "control"
CONTESTANTS = (
    trl(name=TRL),
    ours(name=CONTROL, options={"method": "grpo", "completion_prune_rate": 0.0}),
    ours(name="half dropped", options={"completion_prune_rate": 0.5, "prompt_prune_rate": 0.0}),
    ours(name="0.8 dropped", options={"completion_prune_rate": 0.8, "prompt_prune_rate": 0.0}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Sizes of a run."""

    model: str = "0.6B"
    prompts: int = PROMPTS
    generations: int = GENERATIONS
    counted: int = 4
    """Steps that are counted."""
    lengths: Lengths = REALISTIC
    rows: int = 8
    """``per_device_train_batch_size``: completions that TRL forwards at once; ours forward as many tokens."""
    betas: tuple[float, ...] = (0.0, 0.04)

    @property
    def steps(self) -> int:
        """All steps."""
        return UNCOUNTED + self.counted


SETTINGS = {
    ("cuda", False): Setting(),
    ("cuda", True): Setting(model="0.6B cut to 4 layers", counted=3),
    ("cpu", True): Setting(
        model="tiny",
        prompts=4,
        generations=4,
        counted=2,
        rows=4,
        lengths=Lengths(prompt=(5, 10), median=20.0, longest=50),
    ),
}


class Given:
    """Prompts, completions and rewards of every step, the same for all trainers."""

    def __init__(self, setting: Setting) -> None:
        count = setting.prompts * setting.steps
        batch = generation_batch(
            SEED,
            prompts=count,
            group_size=setting.generations,
            vocabulary=len(TOKENS) - 4,
            lengths=setting.lengths,
        )
        prompts, completions = ([(each + 4).tolist() for each in part] for part in (batch.prompts, batch.completions))
        groups = [slice(first, first + setting.generations) for first in range(0, len(prompts), setting.generations)]
        self._groups = [(prompts[group], completions[group]) for group in groups]
        self.dataset = Dataset.from_list([{"prompt": str(number)} for number in range(count)])

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """A ``rollout_func``: completions of each prompt, at no cost."""
        chosen = [self._groups[int(prompt)] for prompt in prompts[:: trainer.num_generations]]
        completions = [each for _, group in chosen for each in group]
        return {
            "prompt_ids": [each for group, _ in chosen for each in group],
            "completion_ids": completions,
            "logprobs": [[-1.0] * len(each) for each in completions],
        }


def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """1 for every completion of an even prompt, which leaves its group without signal; of others by the last token."""
    return [
        1.0 if int(prompt) % 2 == 0 else float(tokens[-1] % 2)
        for prompt, tokens in zip(prompts, completion_ids, strict=True)
    ]


def build_trainer(
    contestant: Contestant, setting: Setting, given: Given, beta: float, folder: Path, device: torch.device
) -> GRPOTrainer:
    """A contestant's trainer, with the settings that all share."""
    accumulated = setting.prompts * setting.generations // setting.rows
    fields: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": setting.rows,
        "gradient_accumulation_steps": accumulated,
        "num_generations": setting.generations,
        "max_completion_length": setting.lengths.longest,
        "max_steps": setting.steps,
        "learning_rate": 0.0,
        "beta": beta,
        "loss_type": "dr_grpo",
        "shuffle_dataset": False,
        "seed": SEED,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": device.type == "cpu",
        "bf16": device.type == "cuda",
    }
    trainer = contestant.trainer(
        model=str(folder / "policy"),
        reward_funcs=cast(Any, reward),
        args=contestant.config(**fields | contestant.options),
        train_dataset=given.dataset,
        processing_class=build_tokenizer(),
        rollout_func=given.rollouts,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def run(
    setting: Setting, beta: float, folder: Path, device: torch.device
) -> tuple[dict[str, list[Step]], dict[str, list[float]]]:
    """The counted steps of each contestant, and the norms of their gradients."""
    given, names = Given(setting), [contestant.name for contestant in CONTESTANTS]
    with quiet():
        trainers = [build_trainer(contestant, setting, given, beta, folder, device) for contestant in CONTESTANTS]
        clocks = [contestant.clock(trainer) for contestant, trainer in zip(CONTESTANTS, trainers, strict=True)]
        taken = take_turns(trainers, clocks, seed=SEED)
    norms = [[row["grad_norm"] for row in t.state.log_history if "grad_norm" in row][UNCOUNTED:] for t in trainers]
    return (
        {name: each[UNCOUNTED:] for name, each in zip(names, taken, strict=True)},
        dict(zip(names, norms, strict=True)),
    )


def records_of(beta: float, steps: dict[str, list[Step]], norms: Mapping[str, Sequence[float]]) -> list[Record]:
    """Seconds by contestant and phase, TRL's and the control's over each, and gradient norms over TRL's."""
    work = f"beta {beta:g}"
    records = [record for name, taken in steps.items() for record in step_records(work, name, taken)]
    records = [record for record in records if record["figure"] != "step_cpu"]  # who waits for a GPU spins
    for base in (TRL, CONTROL):
        for name, taken in steps.items():
            if name not in (TRL, base):
                rows = ratio_records(work, steps[base], name, taken, bar=None)
                records += [row | {"against": base} for row in rows if row["figure"] != "ratio_cpu"]
    off = np.divide(norms[CONTROL], norms[TRL])
    records.append({"figure": "gradient norm", "backend": work, "contestant": CONTROL, "against": TRL, "unit": "ratio"})
    records[-1] |= spread_with_ends(off)
    return records


def print_table(records: Sequence[Record]) -> None:
    """One line for each contestant."""
    print(
        f"{'work':11}{'':14}{'step s':>8}{'log-probs':>10}{'model':>8}{'optimizer':>10}{'tokens':>10}  TRL/, control/"
    )
    keys = dict.fromkeys((row["backend"], row["contestant"]) for row in records)
    for work, name in keys:
        own = [row for row in records if (row["backend"], row["contestant"]) == (work, name)]
        by = {row.get("phase") or row["figure"]: row["median"] for row in own if not row.get("against")}
        ratios = [f"{row['median']:.2f}" for row in own if row["figure"] == "ratio"]
        phases = [by["step"], by["log_probs"], by["forward_backward"], by["optimizer"]]
        shown = "".join(f"{value:>{width}.3f}" for value, width in zip(phases, (8, 10, 8, 10), strict=True))
        print(f"{work:11}{name:14}{shown}{by['tokens_forwarded']:>10,.0f}  {', '.join(ratios)}")
    for row in records:
        if row["figure"] == "gradient norm":
            print(
                f"{row['backend']}: the control's gradient norm over TRL's {row['lowest']:.4f} .. {row['highest']:.4f}"
            )


def main() -> int:
    """Measure, print, and write the JSON file if one is named. 1 if work differed, 2 without a GPU."""
    parser = options(__doc__, quick="a model of four layers and few steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    setting = SETTINGS.get((arguments.device, arguments.quick))
    if setting is None or (arguments.device == "cuda" and not torch.cuda.is_available()):
        print("This needs a GPU. To test the path without: python -m benchmarks.speed.gpu_step --device cpu --quick")
        return 2
    device, records = torch.device(arguments.device), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(MODELS[setting.model](), SEED, device=arguments.device, dtype=torch.float32)
        with quiet():
            model.save_pretrained(folder / "policy")
        del model
        for beta in setting.betas:
            records += records_of(beta, *run(setting, beta, folder, device))
            print_table([row for row in records if row["backend"] == f"beta {beta:g}"])
            write(arguments.output, records, [SEED])
            gc.collect()
            torch.cuda.empty_cache()
    return 0 if all(row.get("same_completions") is not False for row in records) else 1


if __name__ == "__main__":
    sys.exit(main())
