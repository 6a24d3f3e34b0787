"""Does ``dppo plan`` predict what steps take? A pilot of one configuration against measured steps of others.

python -m benchmarks.speed.plan [--start FOLDER] [--output FILE.json]

A pilot of 32 prompts, 8 completions each, is what everything is predicted from: other group sizes, rates and layouts
on other prompts of the embedded task. The learning rate is 0, so that all sample from one policy. Seconds are CPU
seconds of one thread, so that other work on the machine counts little. Bars: median error under 15%, worst under 30%.
"""

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.shared import options, write
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo_lab.planning.costs import Figures, seconds_of
from dppo_lab.planning.observed import timed_steps
from dppo_lab.planning.pilot import quietly, run_pilot
from dppo_lab.planning.records import Option, Step
from dppo_lab.runs.parsing import parse_fields, read_file
from dppo_lab.runs.parts import build_trainer, prepare_model
from dppo_lab.runs.reader import read_run
from dppo_lab.runs.recorder import RunRecorder

SEED = 0
CONFIG = Path(__file__).parents[2] / "examples" / "embedded.yaml"
PILOT = 32
COUNTED = 8
"""Steps of a configuration that are counted."""
DATASET = 64
"""Prompts that configurations are measured on, not the pilot's; two steps of them where steps are larger."""
MEDIAN_BAR, WORST_BAR = 0.15, 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A configuration that is predicted and measured."""

    prompts: int
    """Of a step, and of a group as many as ``generations``."""
    generations: int
    option: Option
    fields: dict[str, Any] = field(default_factory=dict)
    """What the configuration sets for the option; None for TRL's own trainer."""

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.option.name}, {self.prompts} x {self.generations}"

    @property
    def step(self) -> Step:
        """As the plan has it."""
        return Step(prompts=self.prompts, generations=self.generations)


def pruned(prompts: int, generations: int, completion: float, prompt: float) -> Measured:
    """Dense rows at these rates."""
    name = "nothing pruned" if completion == prompt == 0 else f"completions {completion:g}, prompts {prompt:g}"
    return Measured(
        prompts=prompts,
        generations=generations,
        option=Option(name=name, completion_rate=completion, prompt_rate=prompt),
        fields={"method": "dppo", "completion_prune_rate": completion, "prompt_prune_rate": prompt},
    )


TRL = Option(name="TRL", layout="padded", forwarded="all")
CASES = (
    Measured(prompts=16, generations=8, option=TRL),
    Measured(prompts=8, generations=8, option=TRL),
    Measured(prompts=16, generations=4, option=TRL),
    pruned(16, 8, 0.0, 0.0),
    pruned(16, 8, 0.5, 0.0),
    pruned(16, 8, 0.5, 0.5),
    pruned(16, 4, 0.0, 0.0),
    pruned(32, 4, 0.7, 0.3),
    pruned(8, 16, 0.5, 0.0),
    Measured(
        prompts=16,
        generations=8,
        option=Option(name="packed, nothing pruned", layout="packed"),
        fields={"method": "dppo", "completion_prune_rate": 0.0, "layout": "packed"},
    ),
)


def fields_of(case: Measured, start: str, folder: Path, steps: int) -> dict[str, Any]:
    """The configuration of a case."""
    completions = case.prompts * case.generations
    given = {name: value for name, value in read_file(CONFIG).items() if "prune" not in name and name != "method"}
    return given | {
        "model_name_or_path": start, "rollout_func": "embedded", "output_dir": str(folder), "learning_rate": 0.0,
        "num_generations": case.generations, "per_device_train_batch_size": completions, "max_steps": steps,
        "logging_steps": 1, "save_strategy": "no", "seed": SEED + 1, "disable_tqdm": True, **case.fields,
    }  # fmt: skip


def measure(case: Measured, start: str, folder: Path) -> float:
    """CPU seconds of a step, the mean of those counted: after the first epoch where prompts are pruned."""
    dataset = max(DATASET, 2 * case.prompts)
    before = dataset // case.prompts if case.option.prompt_rate else 1
    stock = not case.fields
    fields = fields_of(case, start, folder, before + COUNTED)
    run = parse_fields(fields, GRPOConfig if stock else DPPOConfig)
    trainer = build_trainer(run, start, GRPOTrainer if stock else DPPOTrainer, dataset)
    RunRecorder(folder, completions=0, now=time.process_time).attach(trainer)
    trainer.train()
    return float(np.mean([each.total for each in timed_steps(read_run(folder))[-COUNTED:]]))


def row_of(case: Measured, figures: Figures, samples: list[Figures], measured: float) -> dict[str, Any]:
    """A record of the table."""
    predicted, *resampled = [seconds_of(each, case.step, case.option, 1).total for each in [figures, *samples]]
    low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
    return {
        "configuration": case.name,
        "predicted": predicted,
        "low": min(low, predicted),
        "high": max(high, predicted),
        "measured": measured,
        "error": predicted / measured - 1,
    }


def say(text: str) -> None:
    """What is being done."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and write the JSON file if one is named; 1 where a bar is missed."""
    parser = options(__doc__)
    parser.add_argument("--start", help="a warmed-up policy (default: one is made, which takes a minute or two)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = fields_of(CASES[3], arguments.start or "scratch:embedded", folder / "pilot", 1) | {"seed": SEED}
        with quietly(folder / "start.txt"):
            start = prepare_model(parse_fields(first, DPPOConfig), folder=folder / "start")
        seen = run_pilot(first | {"model_name_or_path": start}, PILOT, now=time.process_time, progress=say)
        limit = float(first["max_completion_length"])
        figures, samples = seen.figures(limit), seen.resampled(limit)
        for number, case in enumerate(CASES):
            with quietly(folder / "output.txt"):
                measured = measure(case, start, folder / str(number))
            rows.append(row_of(case, figures, samples, measured))
            line = "{configuration:45} {predicted:.3f} ({low:.3f} to {high:.3f}) {measured:.3f} {error:+.1%}"
            print(line.format(**rows[-1]), flush=True)
    errors = np.abs([row["error"] for row in rows])
    print(
        f"median error {np.median(errors):.1%} (bar {MEDIAN_BAR:.0%}), worst {errors.max():.1%} (bar {WORST_BAR:.0%})"
    )
    rows.append({"configuration": "all", "median_error": float(np.median(errors)), "worst_error": float(errors.max())})
    write(arguments.output, rows, [SEED])
    sys.exit(bool(np.median(errors) > MEDIAN_BAR or errors.max() > WORST_BAR))


if __name__ == "__main__":
    main()
