"""Recorded runs of both trainers on two ranks; each rank writes what it made itself."""

import json
import os
import sys
from pathlib import Path

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from conftest_trl import scripted
from trl_recorder_runs import make


def main(path: str, folder: str) -> None:
    torch.set_num_threads(1)
    for name in ("dppo", "trl"):
        made = []

        def rollouts(prompts, trainer, made=made):
            output = scripted(prompts, trainer)
            made.extend(len(ids) for ids in output["completion_ids"])
            return output

        trainer, recorder = make(path, Path(folder, name), ours=name == "dppo", per_device_train_batch_size=8)
        trainer.rollout_func = rollouts
        trainer.train()
        counts = {"rollouts": len(made), "tokens": sum(made), "trained": recorder.totals()["total/tokens_trained"]}
        Path(folder, f"{name}_{dist.get_rank()}.json").write_text(json.dumps(counts))
    try:
        dist.barrier()
    finally:  # tearing gloo down can abort a process, which says nothing about the results
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
