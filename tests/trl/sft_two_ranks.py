"""Pruned runs on rows and pairs on two ranks, as a part of ``two_ranks.py``: weights and scores, and how far apart."""

import json
from pathlib import Path

import test_trl_dpo
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sft_runs import experts, ours, solutions

KINDS = ("rows", "uneven", "pairs", "stream", "pairs of a stream", "experts")

OF_EXPERTS = dict(per_device_train_batch_size=1, max_steps=6, optim="sgd", router_aux_loss_coef=0.5)


def run_on_rows(path: str, folder: Path, kind: str) -> None:
    if kind == "pairs":  # steps of two pairs: where one is kept, a rank has none
        trainer = test_trl_dpo.ours(
            path, folder, data=test_trl_dpo.pairs(12), per_device_train_batch_size=1, max_steps=9
        )
    elif kind == "uneven":
        trainer = ours(
            path,
            folder,
            data=solutions(11),
            per_device_train_batch_size=2,
            max_steps=6,
            accelerator_config={"even_batches": False},
        )
    elif kind == "stream":
        data = solutions(12).to_iterable_dataset()
        trainer = ours(path, folder, data=data, per_device_train_batch_size=1, max_steps=6, optim="sgd")
    elif kind == "pairs of a stream":
        data = test_trl_dpo.pairs(12).to_iterable_dataset()
        trainer = test_trl_dpo.ours(
            path, folder, data=data, per_device_train_batch_size=1, max_steps=6, optim="sgd", learning_rate=1e-3
        )
    elif kind == "experts":
        trainer = ours(path, folder, own={"model": experts()}, data=solutions(12), **OF_EXPERTS)
    else:
        trainer = ours(path, folder, data=solutions(12), per_device_train_batch_size=1, max_steps=9)
    trainer.train()
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
            "scores": trainer.source.scores.score.tolist(),
        }
        (folder / "two.json").write_text(json.dumps(found))
        save_file({n: w.clone() for n, w in weights.items() if n != "lm_head.weight"}, folder / "two.safetensors")
