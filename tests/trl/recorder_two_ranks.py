"""Recorded runs of both trainers on two ranks; each rank writes what it made itself. Part of ``two_ranks.py``."""

import json
from pathlib import Path

import torch.distributed as dist
from conftest_trl import scripted
from trl_recorder_runs import make


def recorded_runs(path: str, folder: str) -> None:
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
