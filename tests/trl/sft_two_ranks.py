"""A pruned run on rows or pairs on two ranks: weights and scores of the first, and how far the second is from it."""

import json
import os
import sys
from pathlib import Path

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import test_trl_dpo
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sft_runs import ours, solutions


def main(path: str, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == "pairs":  # steps of two pairs: where one is kept, a rank has none
        trainer = test_trl_dpo.ours(
            path, Path(folder), data=test_trl_dpo.pairs(12), per_device_train_batch_size=1, max_steps=9
        )
    else:
        trainer = ours(path, Path(folder), data=solutions(12), per_device_train_batch_size=1, max_steps=9)
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
        (Path(folder) / "two.json").write_text(json.dumps(found))
        save_file({n: w.clone() for n, w in weights.items() if n != "lm_head.weight"}, Path(folder) / "two.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
