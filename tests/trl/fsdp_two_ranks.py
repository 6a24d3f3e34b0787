"""Runs on two ranks under FSDP2, on CPUs: a model that loads, a resume, an adapter, an empty rank, pairs."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

os.environ.update(
    ACCELERATE_USE_FSDP="true",
    FSDP_VERSION="2",
    FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
    FSDP_TRANSFORMER_CLS_TO_WRAP="Qwen3DecoderLayer",
    FSDP_RESHARD_AFTER_FORWARD="true",
    FSDP_STATE_DICT_TYPE="SHARDED_STATE_DICT",
)

import dpo_runs
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig
from tiny_runs import GENERATIONS, SHARDED, UNEVEN
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from trl_gradients import dppo_run
from two_ranks import HALF, at_home

from dppo.trl import DPPOTrainer
from dppo.trl.grpo import rollouts
from dppo.trl.safeguards import _end_group

PAIRS = {"data": dpo_runs.pairs(12), "max_steps": 9, "learning_rate": 1e-3}
"""A pruned run on pairs, of whose steps some leave a rank none."""
ONCE = UNEVEN | {"gradient_accumulation_steps": 2, "completion_prune_rate": 0.0, "num_iterations": 1, "max_steps": 1}
"""A step of two calls, of which a rank has all rows."""


def choose_fsdp_on_cpus() -> None:
    """accelerate takes FSDP for accelerators only: its state is told so."""
    original = AcceleratorState.__init__

    def made(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # what every later state starts from

    AcceleratorState.__init__ = made


def of_ranks(value) -> list:
    found = [None, None]
    dist.all_gather_object(found, value)
    return found


def run(path: str, folder: Path, **options) -> tuple[list, DPPOTrainer]:
    """Whole gradients of each step, and the trainer."""
    steps, trainer = dppo_run(path, folder, **HALF | options)
    return [{name: value.full_tensor() for name, value in step.items()} for step in steps], trainer


def synchronized(path: str, folder: Path, **options) -> tuple[list, dict]:
    """For each rank, True for every pass of a step that synchronizes gradients; and the gradient."""
    passes, original = [], DPPOTrainer._micro_batch_loss

    def watched(self, model, *args):
        states = [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
        (reduces,) = {state._fsdp_param_group.reduce_grads for state in states if state._fsdp_param_group}
        passes.append(reduces)
        return original(self, model, *args)

    with patch.object(DPPOTrainer, "_micro_batch_loss", watched):
        (step,), _ = run(path, folder, **ONCE | {"per_device_train_batch_size": 2 * GENERATIONS} | options)
    return of_ranks(passes), step


def main(path: str, folder: Path) -> dict:
    results = {}
    steps, trainer = run(path, folder / "straight", **SHARDED)
    wrapped = trainer.model_wrapped
    results["wrapper"], results["first"] = type(wrapped).__name__, steps[0]
    results["sharded"] = sum(isinstance(parameter, DTensor) for parameter in wrapped.parameters())
    trainer.save_model(str(folder / "saved"))
    checkpoint = folder / "straight" / "DPPOTrainer" / "checkpoint-2"
    _, trainer = run(path, folder / "resumed", **SHARDED, resume_from_checkpoint=str(checkpoint))
    trainer.save_model(str(folder / "resumed"))
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"])
    _, trainer = run(path, folder / "adapter", peft=lambda: adapter, max_steps=2)
    trainer.save_model(str(folder / "adapter"))
    each_batch = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}
    with patch.object(rollouts, "over_ranks", at_home):
        results["empty"], trainer = run(path, folder / "empty", completion_prune_rate=0.5, **UNEVEN)
        results["synchronized"], halved = synchronized(path, folder / "halves")
        results["each batch"], each = synchronized(path, folder / "each", **each_batch)
    results["halves"] = [halved, each]
    results["rows of each rank"] = of_ranks(int((trainer.in_use.batch.weight_UB > 0).sum()))
    return results


def run_on_pairs(path: str, folder: Path) -> dict:
    """A pruned run on pairs, its reference in shards too: its scores, and steps in which a rank has no pair."""
    trainer = dpo_runs.ours(path, folder, per_device_train_batch_size=1, **PAIRS)
    idle, own = [], trainer._dealt

    def watched(draw):
        batch = own(draw)
        idle.append(not bool(batch.weight_UB.any()))
        return batch

    trainer._dealt = watched
    trainer.train()
    sharded = [any(isinstance(p, DTensor) for p in m.parameters()) for m in (trainer.model, trainer.ref_model)]
    return {"scores": trainer.source.scores.score.tolist(), "idle": of_ranks(sum(idle)), "reference": sharded}


if __name__ == "__main__":
    torch.set_num_threads(1)
    choose_fsdp_on_cpus()
    folder = Path(sys.argv[2])
    results = main(sys.argv[1], folder) | run_on_pairs(sys.argv[1], folder / "pairs")
    if dist.get_rank() == 0:
        torch.save(results, folder / "results.pt")
    _end_group()
