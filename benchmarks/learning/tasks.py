"""What tasks with silent groups are like through a run of plain GRPO: how many groups are silent, and for how long.

python -m benchmarks.learning.tasks [--task embedded_rare] [--seeds 200,201,202] [--output FILE.json]

At the start and after every epoch each training prompt is answered anew, 8 times, by the policy as it then is: nothing
is read off the training steps. A group is silent where all its completions have the same reward. Rows of other tasks
in the file stay.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, set_seed

from benchmarks.learning import tables
from benchmarks.learning.regimes import CONFIG, RARE, SILENT
from benchmarks.shared import Record, earlier, options, write
from dppo.install import commit
from dppo.rng import Purpose, torch_generator
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.comparison.plan import read_config
from dppo_lab.demo.decode import sample
from dppo_lab.demo.evaluate import BATCH_ROWS, MAX_NEW_TOKENS, rewards_of
from dppo_lab.demo.task import ArithmeticProblem, ArithmeticTask, make_split
from dppo_lab.runs.embedded import TASKS
from dppo_lab.runs.parsing import parse_fields
from dppo_lab.runs.parts import train_with
from dppo_lab.runs.reader import read_logs

SEEDS = (200, 201, 202)
"""Neither the tasks nor any comparison were tuned on these."""
FIELDS = {"embedded_silent": SILENT, "embedded_rare": RARE}
"""By task: what it changes of ``regimes.yaml``."""
PROMPTS, GENERATIONS, EPOCHS, LEARNING_RATE = 16, 4, 8, 4e-4
"""Of training: prompts of a step and completions of each, epochs, and the control's tuned rate."""
SAMPLES = 8
"""Completions of a group that is looked at."""
KINDS = ("mastered", "live", "wrong_gold")


def kind_of(problem: ArithmeticProblem, task: ArithmeticTask) -> str:
    """Which of ``KINDS`` a training problem is, by its answer and its number of operands."""
    if problem.answer > task.largest_total:
        return "wrong_gold"
    return "mastered" if problem.level in task.easy else "live"


def silent(reward_PG: Tensor) -> Tensor:
    """(P,) bool, True where all completions of a prompt have the same reward."""
    return (reward_PG == reward_PG[:, :1]).all(1)


def still_silent(silent_EP: Sequence[Tensor]) -> list[float]:
    """Of the groups that are silent at one look, the share that is at the next; (P,) bool of the same prompts."""
    return [float((before & after).sum() / before.sum()) for before, after in pairwise(silent_EP)]


class Looks(TrainerCallback):
    """Answers every training prompt anew, before training and after every so many steps."""

    def __init__(self, trainer: DPPOTrainer, problems: Sequence[ArithmeticProblem], seed: int, every: int) -> None:
        self._trainer, self._problems, self._seed, self._every = trainer, problems, seed, every
        self.reward_EPG: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self._look()

    def _look(self) -> None:
        model: Any = self._trainer.accelerator.unwrap_model(self._trainer.model)
        tokenizer: Any = self._trainer.processing_class
        rng, found = torch_generator(self._seed, Purpose.CHECK, len(self.reward_EPG)), []
        for start in range(0, len(self._problems), BATCH_ROWS // SAMPLES):
            asked = self._problems[start : start + BATCH_ROWS // SAMPLES]
            prompts = encode_questions(tokenizer, [problem.question for problem in asked])
            rollout = sample(model, prompts, rng, samples=SAMPLES, max_new_tokens=MAX_NEW_TOKENS)
            each = [problem for problem in asked for _ in range(SAMPLES)]
            found.append(rewards_of(rollout, tokenizer, each).view(-1, SAMPLES))
        self.reward_EPG.append(torch.cat(found))


def measure(name: str, seed: int, folder: Path, rate: float) -> Record:
    """One row: a task and seed, at the start and through a run."""
    shared, _ = read_config(CONFIG, [f"--{field}={value}" for field, value in FIELDS[name].items()])
    task, size = TASKS[name], int(shared["embedded_problems"])
    steps = EPOCHS * size // PROMPTS
    own = {"method": "grpo", "num_generations": GENERATIONS, "per_device_train_batch_size": PROMPTS * GENERATIONS}
    own |= {"learning_rate": rate, "max_steps": steps, "eval_benchmark_every": steps, "overwrite": True}
    fields = {field: value for field, value in shared.items() if field != "tune"} | own
    run = parse_fields({**fields, "seed": seed, "output_dir": str(folder)}, DPPOConfig)
    problems = make_split(seed, train=size, held_out=0, task=task).train
    looks: list[Looks] = []

    def prepare(trainer: DPPOTrainer) -> None:
        looks.append(Looks(trainer, problems, seed, size // PROMPTS))
        trainer.add_callback(looks[0])

    set_seed(seed)
    train_with(DPPOTrainer, run, prepare=prepare)
    key = f"eval/{name}/pass@1"
    accuracy = [log[key] for log in read_logs(folder) if key in log]
    return {
        "commit": commit(),
        **{"task": name, "seed": seed, "train": size, "steps": steps, "epochs": EPOCHS, "learning_rate": rate},
        "completions": steps * PROMPTS * GENERATIONS,
        **seen(looks[0].reward_EPG, [kind_of(problem, task) for problem in problems]),
        **{"accuracy_start": accuracy[0], "accuracy_end": accuracy[-1]},
    }


def seen(reward_EPG: Sequence[Tensor], kinds: Sequence[str]) -> Record:
    """The figures of a row that are of training prompts, from the rewards of each look."""
    silent_EP = [silent(each) for each in reward_EPG]
    inside = {kind: torch.tensor([each == kind for each in kinds]) for kind in KINDS}
    ends = {"start": reward_EPG[0], "end": reward_EPG[-1]}
    return {
        "dead_at_8": silent_EP[0].double().mean().item(),
        "dead": [each.double().mean().item() for each in silent_EP],
        "still_dead": still_silent(silent_EP),
        "dead_end": silent_EP[-1].double().mean().item(),
        **{f"share_{kind}": is_P.double().mean().item() for kind, is_P in inside.items()},
        **{
            f"right_{kind}_{when}": reward_PG[is_P].double().mean().item()
            for kind, is_P in inside.items()
            for when, reward_PG in ends.items()
        },
        "silent_live": [each[inside["live"]].double().mean().item() for each in silent_EP],
    }


def main() -> int:
    """Measure, and put the rows into the file in place of earlier ones of the task."""
    parser = options(__doc__)
    parser.add_argument("--task", choices=FIELDS, default="embedded_silent")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--learning_rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--folder", type=Path, default=Path("runs/tasks"), help="where the runs go")
    given = parser.parse_args()
    torch.set_num_threads(1)
    others, rows = [row for row in earlier(given.output).get("rows", []) if row["task"] != given.task], list[Record]()
    for seed in map(int, given.seeds.split(",")):
        rows.append(measure(given.task, seed, given.folder / f"{given.task}-{seed}", given.learning_rate))
        print(rows[-1], flush=True)
        write(given.output, [*others, *rows], sorted({int(row["seed"]) for row in [*others, *rows]}))
    print(tables.of_tasks(tables.LASTING, {given.task: rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
