"""A pruned run on pairs on two ranks under FSDP2, its reference in shards too: its scores, and pairs of each rank."""

import json
import sys
from pathlib import Path

from fsdp_two_ranks import choose_fsdp_on_cpus

sys.path.insert(0, str(Path(__file__).parent))

import test_trl_dpo
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from dppo.trl.safeguards import _end_group


def main(path: str, folder: str) -> None:
    torch.set_num_threads(1)
    choose_fsdp_on_cpus()
    trainer = test_trl_dpo.ours(
        path, Path(folder), data=test_trl_dpo.pairs(12), per_device_train_batch_size=1, max_steps=9, learning_rate=1e-3
    )
    idle, own = [], trainer._own

    def watched(draw):
        batch = own(draw)
        idle.append(not bool(batch.weight_UB.any()))
        return batch

    trainer._own = watched
    trainer.train()
    found = [None, None]
    dist.all_gather_object(found, sum(idle))
    if trainer.accelerator.is_main_process:
        sharded = [any(isinstance(p, DTensor) for p in m.parameters()) for m in (trainer.model, trainer.ref_model)]
        results = {"scores": trainer.source.scores.score.tolist(), "idle": found, "sharded": sharded}
        (Path(folder) / "pairs.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
    _end_group()
