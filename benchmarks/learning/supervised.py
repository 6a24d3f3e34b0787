"""CPU seconds of supervised fine-tuning to the loss that stock TRL ends at, with smaller batches as controls.

python -m benchmarks.learning.supervised --data gsm8k_train.jsonl.gz [--quick] [--output FILE.json]

A policy of under a million parameters learns worked solutions. On every seed stock ``SFTTrainer`` runs for its epochs;
its last loss on held-out rows is the target, and every contestant then runs until it is there, or for as many CPU
seconds as ``LIMIT`` times those of stock; between two evaluations the loss is taken to fall linearly. Turns change from
seed to seed. Evaluation is not counted; the self-check of rows and every draw are. On a tuning seed, where stock's
target is that of its own best learning rate, each contestant gets the rate that is there soonest, from ``RATES`` and
what lies beyond an end of them for as long as the end is best.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from answer_judge.problems import load_solutions
from benchmarks.learning.byte_tokenizer import SPECIAL, train_tokenizer
from benchmarks.learning.tables import cell
from benchmarks.shared import Record, options, write
from dppo.packing import sorted_micro_batches
from dppo.rng import Purpose, generator
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer
from dppo.verification.tiny_model import build_model, model_config
from dppo.verification.tiny_tokenizer import EOS, PAD
from dppo_lab.statistics import seed_interval

SEEDS, TUNING_SEED = 5, 100
RATES = (1e-3, 2e-3, 4e-3)
LONGEST = 256
"""Tokens of a row; longer ones are left out."""
LIMIT = 2.0
"""CPU seconds of a contestant at most, as a multiple of stock's."""


DENSE = {"row_prune_rate": 0.0}
CONTESTANTS: dict[str, tuple[float, dict[str, Any] | None]] = {
    "stock": (1.0, None),
    "stock, 1/2 batch": (0.5, None),
    "stock, 1/4 batch": (0.25, None),
    "dense rows": (1.0, DENSE),
    "dense rows, 1/2 batch": (0.5, DENSE),
    "dense rows, 1/4 batch": (0.25, DENSE),
    "dppo 0.5": (1.0, {}),
    "dppo 0.5, 1/4 batch": (0.25, {}),
    "uniform 0.5": (1.0, {"method": "uniform"}),
    "infobatch 0.5": (1.0, {"method": "infobatch", "prune_schedule": "constant"}),
}
"""By name: rows of a step as a share of stock's, and fields of ``DPPOSFTConfig``, None for TRL's own trainer."""
Curve = list[tuple[float, float]]
"""CPU seconds and held-out loss, in nats."""


@dataclass(frozen=True, slots=True)
class Task:
    """Rows to learn from, rows to be judged by, and how long stock learns."""

    train: Dataset
    held_out: list[tuple[list[int], int]]
    """Token ids, and how many of them are the prompt's."""
    tokenizer: Any
    batch: int
    epochs: int
    every: int
    """Rows between two evaluations."""


def task_of(data: str, *, quick: bool) -> Task:
    """The first rows of a file of worked solutions that are not too long, in tokens of a tokenizer made for them."""
    rows, held_out, batch, epochs = (96, 32, 16, 2) if quick else (512, 128, 16, 4)
    pairs = load_solutions(data, chat=False)
    first: Any = pairs.select(range(min(len(pairs), 4 * rows)))
    texts = [(row["prompt"] + "\n", row["completion"] + EOS) for row in first]
    tokenizer = train_tokenizer([text for pair in texts for text in pair])
    tokens = [(tokenizer(prompt)["input_ids"], tokenizer(text)["input_ids"]) for prompt, text in texts]
    short = [(prompt, text) for prompt, text in tokens if len(prompt) + len(text) <= LONGEST][: rows + held_out]
    columns = {
        "input_ids": [prompt + text for prompt, text in short[held_out:]],
        "labels": [[-100] * len(prompt) + text for prompt, text in short[held_out:]],
    }
    judged = [(prompt + text, len(prompt)) for prompt, text in short[:held_out]]
    every = len(short[held_out:]) // 4
    return Task(Dataset.from_dict(columns), judged, tokenizer, batch, epochs, every)


@torch.no_grad()
def held_out_loss(model: Any, task: Task) -> float:
    """Mean negative log-likelihood of the held-out solutions' tokens, in nats."""
    total, count = 0.0, 0
    lengths = torch.tensor([len(ids) for ids, _ in task.held_out])
    for places in sorted_micro_batches(lengths, 32 * LONGEST):
        rows = [task.held_out[place] for place in places.tolist()]
        width = max(len(ids) for ids, _ in rows)
        ids_BT = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
        mask_BT = torch.tensor([[p <= t < len(ids) for t in range(1, width)] for ids, p in rows])
        logp_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1].log_softmax(2)
        logp_BT = logp_BTV.gather(2, ids_BT[:, 1:, None])[..., 0]
        total, count = total - logp_BT[mask_BT].sum().item(), count + int(mask_BT.sum())
    return total / count


@dataclass
class Watch(TrainerCallback):
    """CPU seconds of a run without its evaluations, the losses it had, and when it is to end."""

    task: Task
    rows: int
    """Of a step."""
    target: float | None = None
    seconds: float | None = None
    curve: Curve = field(default_factory=list)
    _start: float = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._start = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Evaluate where it is due, with the clock stopped; end the run where it is there or late."""
        now = time.process_time()
        last = state.global_step == state.max_steps
        if state.global_step % max(1, self.task.every // self.rows) == 0 or last:
            model.eval()
            self.curve.append((now - self._start, held_out_loss(model, self.task)))
            model.train()
            self._start += time.process_time() - now
            there = self.target is not None and self.curve[-1][1] <= self.target
            late = self.seconds is not None and self.curve[-1][0] > self.seconds
            control.should_training_stop = there or late


def run(
    name: str, task: Task, seed: int, rate: float, *, target: float | None = None, limit: float | None = None
) -> Curve:
    """The curve of a contestant: over stock's epochs without a target, else until it is there or past the limit."""
    share, ours = CONTESTANTS[name]
    rows = max(1, round(task.batch * share))
    steps = task.epochs * len(task.train) // rows
    watch = Watch(task, rows, target=target, seconds=limit)
    pad, end = (SPECIAL.index(token) for token in (PAD, EOS))
    model = build_model(seed, model_config(len(task.tokenizer), longest=LONGEST, pad=pad, end=end))
    with TemporaryDirectory() as folder:
        settings: dict[str, Any] = dict(
            output_dir=folder, per_device_train_batch_size=rows, max_length=None, learning_rate=rate, seed=seed,
            lr_scheduler_type="constant_with_warmup", warmup_steps=20, max_grad_norm=1.0, use_cpu=True, bf16=False,
            max_steps=steps if target is None else round(20 * steps), gradient_checkpointing=False, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        common: dict[str, Any] = dict(train_dataset=task.train, processing_class=task.tokenizer, callbacks=[watch])
        if ours is None:
            SFTTrainer(model, SFTConfig(**settings), **common).train()
        else:
            DPPOSFTTrainer(model, DPPOSFTConfig(**settings, **ours), **common).train()
    return watch.curve


def reached(curve: Curve, target: float | None) -> float | None:
    """CPU seconds after which a curve is at the target, linear between evaluations; None where it never is."""
    if target is None:
        return None
    if curve[0][1] <= target:
        return curve[0][0]
    for (start, above), (end, loss) in pairwise(curve):
        if loss <= target:
            return start + (end - start) * (above - target) / (above - loss)
    return None


def best_rate(curve_of: Callable[[float], Curve], target: float | None) -> tuple[float, dict[float, Curve]]:
    """The learning rate that is soonest at the target, or else has the lowest loss, and the curves of all tried.

    Rates beyond an end of ``RATES`` are tried while the end is best.
    """
    curves = {rate: curve_of(rate) for rate in RATES}

    def rank(rate: float) -> tuple[float, float]:
        seconds = reached(curves[rate], target)
        return math.inf if seconds is None else seconds, curves[rate][-1][1]

    while (best := min(curves, key=rank)) in (min(curves), max(curves)):
        further = best * 2 if best == max(curves) else best / 2
        curves[further] = curve_of(further)
    return best, curves


def tuned(task: Task) -> tuple[dict[str, float], list[Record]]:
    """The learning rate of each contestant, and a row for everything that was tried."""
    target, limit = None, None
    chosen, rows = {}, []
    for name in CONTESTANTS:
        one = partial(run, name, task, TUNING_SEED, target=target, limit=limit)
        chosen[name], curves = best_rate(one, target)
        for rate, curve in curves.items():
            row = {"what": "tuning", "contestant": name, "rate": rate, "loss": curve[-1][1]}
            rows.append(row | {"cpu_seconds": reached(curve, target), "chosen": rate == chosen[name]})
        if target is None:  # the first is stock
            limit, target = curves[chosen[name]][-1]
    return chosen, rows


def main() -> None:
    """Tune, race, print and write."""
    parser = options(__doc__, quick="one seed, few rows, no tuning: to see that it works")
    parser.add_argument("--data", required=True, help="file of problems with worked solutions, such as GSM8K's")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = task_of(arguments.data, quick=arguments.quick)
    seeds = tuple(range(1 if arguments.quick else arguments.seeds))
    best, rows = (dict.fromkeys(CONTESTANTS, 2e-3), list[Record]()) if arguments.quick else tuned(task)
    others = list(CONTESTANTS)[1:]
    ratios: dict[str, dict[int, float]] = {name: {} for name in others}
    for seed in seeds:
        stock = run("stock", task, seed, best["stock"])
        seconds, target = stock[-1]
        needed = reached(stock, target) or seconds
        rows.append({"what": "race", "contestant": "stock", "seed": seed, "target": target, "cpu_seconds": needed})
        for turn in generator(seed, Purpose.CHECK).permutation(len(others)):
            name = others[turn]
            curve = run(name, task, seed, best[name], target=target, limit=LIMIT * seconds)
            found = reached(curve, target)
            ratios[name][seed] = 0.0 if found is None else needed / found
            rows.append(
                {"what": "race", "contestant": name, "seed": seed, "rate": best[name]}
                | {"target": target, "cpu_seconds": found, "last_loss": curve[-1][1], "ran": curve[-1][0]}
            )
            print(rows[-1], flush=True)
    for name, per_seed in ratios.items():
        said = cell(seed_interval(per_seed, np.median).as_json("median"), "median", "{:.2f}")
        missed = sum(value == 0 for value in per_seed.values())
        print(f"{name:24} {said}{f', {missed} seeds never there' if missed else ''}")
    write(arguments.output, rows, [*seeds, *(() if arguments.quick else [TUNING_SEED])])


if __name__ == "__main__":
    main()
