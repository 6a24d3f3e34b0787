"""Pruned runs on rows and pairs on two ranks, as a part of ``two_ranks.py``: weights and scores, and how far apart."""

import json
from pathlib import Path

import dpo_runs
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sft_runs import experts, ours, solutions

OF_STREAM = dict(per_device_train_batch_size=1, max_steps=6, optim="sgd")
UNEVEN = {"accelerator_config": {"even_batches": False}}
RUNS = {
    # Eleven rows in steps of four: of the last three one rank has two, the other one.
    "uneven": (ours, solutions(11), UNEVEN | dict(per_device_train_batch_size=2, max_steps=6)),
    # The same in calls of one row: the last step of an epoch has two calls on one rank and one on the other.
    "uneven calls": (
        ours, solutions(11), UNEVEN | dict(per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=4)
    ),
    # Steps of two pairs, of which the second epoch keeps one: the other rank forwards a sequence at weight 0.
    "pairs": (dpo_runs.ours, dpo_runs.pairs(12), dict(per_device_train_batch_size=1, max_steps=9)),
    "stream": (ours, solutions(12).to_iterable_dataset(), OF_STREAM),
    "pairs of a stream": (dpo_runs.ours, dpo_runs.pairs(12).to_iterable_dataset(), OF_STREAM | {"learning_rate": 1e-3}),
    # A router loss is one of each micro-batch: those of one row, of two ranks or one after the other.
    "experts": (ours, solutions(12), OF_STREAM | {"router_aux_loss_coef": 0.5}),
}  # fmt: skip
"""Runs by kind: what makes the trainer, its data, and options of each rank."""
RESUMED = ("uneven", "pairs")
SAVING = dict(save_strategy="steps", save_steps=4)


def on_rows(path: str, folder: Path, kind: str, ranks: int = 1, **more):
    """The trainer of a run; with ``ranks`` above 1, of one process with the rows of so many."""
    make, data, options = RUNS[kind]
    own = {"model": experts()} if kind == "experts" else {}
    part = "gradient_accumulation_steps" if own else "per_device_train_batch_size"
    return make(path, folder, data=data, own=own, **options | {part: ranks * options.get(part, 1)} | more)


def apart(trainer) -> float:
    """Largest difference between the weights of two ranks."""
    flat = torch.cat([p.detach().flatten() for p in trainer.accelerator.unwrap_model(trainer.model).parameters()])
    gathered = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(gathered, flat)
    return float((gathered[0] - gathered[1]).abs().max())


def run_on_rows(path: str, folder: Path, kind: str) -> None:
    saving, alike = SAVING if kind in RESUMED else {}, None
    trainer = on_rows(path, folder, kind, **saving)
    trainer.train()
    if kind in RESUMED:
        again = on_rows(path, folder / "again", kind, **saving)
        again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        alike = all(map(torch.equal, trainer.model.parameters(), again.model.parameters()))
        alike = alike and trainer.state.global_step == again.state.global_step
    weights = {n.removeprefix("module."): p.detach() for n, p in trainer.model.named_parameters()}
    distance = apart(trainer)  # all ranks call together
    if trainer.accelerator.is_main_process:
        found = {
            "processes": trainer.accelerator.num_processes,
            "apart": distance,
            "resumed alike": alike,
            "scores": trainer.source.scores.score.tolist(),
        }
        (folder / "two.json").write_text(json.dumps(found))
        save_file({n: w.clone() for n, w in weights.items() if n != "lm_head.weight"}, folder / "two.safetensors")
