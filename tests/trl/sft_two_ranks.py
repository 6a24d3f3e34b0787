"""A pruned run on rows or pairs on two ranks: weights and scores of the first, and how far the second is from it."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import test_trl_dpo
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sft_runs import ours, solutions

from dppo.trl.safeguards import _end_group


def main(path: str, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == "pairs":  # steps of two pairs: where one is kept, a rank has none
        trainer = test_trl_dpo.ours(
            path, Path(folder), data=test_trl_dpo.pairs(12), per_device_train_batch_size=1, max_steps=9
        )
    elif kind == "uneven":
        trainer = ours(
            path,
            Path(folder),
            data=solutions(11),
            per_device_train_batch_size=2,
            max_steps=6,
            accelerator_config={"even_batches": False},
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


def gloo_threads() -> list[str]:
    """Of this process, where the system says so."""
    tasks, names = Path("/proc/self/task"), []
    for task in tasks.iterdir() if tasks.is_dir() else []:
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert gloo_threads() or sys.platform != "linux", "there are some to be ended"
    _end_group()
    assert not gloo_threads(), gloo_threads()
