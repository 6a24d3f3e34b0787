"""Pruned runs on rows and pairs on two ranks, as a part of ``two_ranks.py``: weights and scores, and how far apart."""

import json
from pathlib import Path

import test_trl_dpo
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sft_runs import experts, ours, solutions

KINDS = ("uneven", "pairs", "stream", "pairs of a stream", "experts")
RESUMED = ("uneven", "pairs")

OF_EXPERTS = dict(per_device_train_batch_size=1, max_steps=6, optim="sgd", router_aux_loss_coef=0.5)


SAVING = dict(save_strategy="steps", save_steps=4)


def on_rows(path: str, folder: Path, kind: str):
    if kind == "pairs":  # steps of two pairs: where one is kept, a rank has none
        options = dict(per_device_train_batch_size=1, max_steps=9, **SAVING)
        return test_trl_dpo.ours(path, folder, data=test_trl_dpo.pairs(12), **options)
    if kind == "uneven":
        options = dict(per_device_train_batch_size=2, max_steps=6, accelerator_config={"even_batches": False})
        return ours(path, folder, data=solutions(11), **options, **SAVING)
    if kind == "stream":
        data = solutions(12).to_iterable_dataset()
        return ours(path, folder, data=data, per_device_train_batch_size=1, max_steps=6, optim="sgd")
    if kind == "pairs of a stream":
        data = test_trl_dpo.pairs(12).to_iterable_dataset()
        options = dict(per_device_train_batch_size=1, max_steps=6, optim="sgd", learning_rate=1e-3)
        return test_trl_dpo.ours(path, folder, data=data, **options)
    return ours(path, folder, own={"model": experts()}, data=solutions(12), **OF_EXPERTS)


def run_on_rows(path: str, folder: Path, kind: str) -> None:
    trainer, alike = on_rows(path, folder, kind), None
    trainer.train()
    if kind in RESUMED:
        again = on_rows(path, folder / "again", kind)
        again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
        alike = all(map(torch.equal, trainer.model.parameters(), again.model.parameters()))
        alike = alike and trainer.state.global_step == again.state.global_step
    weights = {n.removeprefix("module."): p.detach() for n, p in trainer.model.named_parameters()}
    apart = 0.0
    for value in weights.values():
        gathered = [torch.empty_like(value) for _ in range(2)]
        dist.all_gather(gathered, value.contiguous())
        apart = max(apart, float((gathered[0] - gathered[1]).abs().max()))
    if trainer.accelerator.is_main_process:
        found = {
            "processes": trainer.accelerator.num_processes,
            "apart": apart,
            "resumed alike": alike,
            "scores": trainer.source.scores.score.tolist(),
        }
        (folder / "two.json").write_text(json.dumps(found))
        save_file({n: w.clone() for n, w in weights.items() if n != "lm_head.weight"}, folder / "two.safetensors")
