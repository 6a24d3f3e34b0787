"""Runs on two ranks under FSDP2, on CPUs: a model that loads, a resume, an adapter, an empty rank. Prints nothing."""

import json
import os
import sys
from pathlib import Path
from unittest.mock import patch

os.environ.update(
    TRL_EXPERIMENTAL_SILENCE="1",
    HF_HUB_OFFLINE="1",
    ACCELERATE_USE_FSDP="true",
    FSDP_VERSION="2",
    FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
    FSDP_TRANSFORMER_CLS_TO_WRAP="Qwen3DecoderLayer",
    FSDP_RESHARD_AFTER_FORWARD="true",
    FSDP_STATE_DICT_TYPE="SHARDED_STATE_DICT",
)
sys.path.insert(0, str(Path(__file__).parent))

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


def choose_fsdp_on_cpus() -> None:
    """accelerate takes FSDP for accelerators only: its state is told so."""
    original = AcceleratorState.__init__

    def made(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # what every later state starts from

    AcceleratorState.__init__ = made


def run(path: str, folder: Path, **options) -> tuple[list, DPPOTrainer]:
    return dppo_run(path, folder, **HALF | options)


def main(path: str, folder: Path) -> None:
    torch.set_num_threads(1)
    choose_fsdp_on_cpus()
    results = {}
    steps, trainer = run(path, folder / "straight", **SHARDED)
    wrapped = trainer.model_wrapped
    results["wrapper"] = type(wrapped).__name__
    results["sharded"] = sum(isinstance(parameter, DTensor) for parameter in wrapped.parameters())
    trainer.save_model(str(folder / "saved"))
    first = {name: value.full_tensor() for name, value in steps[0].items()}
    if dist.get_rank() == 0:
        torch.save(first, folder / "first.pt")

    checkpoint = folder / "straight" / "DPPOTrainer" / "checkpoint-2"
    results["list"] = (checkpoint / "dppo_files.json").exists()
    _, trainer = run(path, folder / "resumed", **SHARDED, resume_from_checkpoint=str(checkpoint))
    trainer.save_model(str(folder / "resumed"))

    _, trainer = run(
        path, folder / "adapter", peft=lambda: LoraConfig(target_modules=["q_proj", "v_proj"]), max_steps=2
    )
    trainer.save_model(str(folder / "adapter"))
    halves = UNEVEN | {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2 * GENERATIONS}
    halves["completion_prune_rate"] = 0.0
    each_batch = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}
    with patch.object(rollouts, "over_ranks", at_home):
        steps, trainer = run(path, folder / "empty", completion_prune_rate=0.5, **UNEVEN)
        results["synchronized"], halved = synchronized(path, folder / "halves", **halves)
        results["each batch"], each = synchronized(path, folder / "each", **halves, **each_batch)
    if dist.get_rank() == 0:
        torch.save([halved, each], folder / "halves.pt")
    empty = [{name: value.full_tensor() for name, value in step.items()} for step in steps]
    kept = [None, None]
    dist.all_gather_object(kept, int((trainer.in_use.batch.weight_UB > 0).sum()))
    results["rows of each rank"] = kept
    if dist.get_rank() == 0:
        torch.save(empty, folder / "empty.pt")
        (folder / "fsdp.json").write_text(json.dumps(results))


def synchronized(path: str, folder: Path, **options) -> tuple[list, list]:
    """Of each rank, for every pass of a step, whether its backward synchronizes gradients; and the gradients."""
    passes, original = [], DPPOTrainer._micro_batch_loss

    def watched(self, model, *args):
        states = [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
        (reduces,) = {state._fsdp_param_group.reduce_grads for state in states if state._fsdp_param_group}
        passes.append(reduces)
        return original(self, model, *args)

    with patch.object(DPPOTrainer, "_micro_batch_loss", watched):
        steps, _ = run(path, folder, **options | {"num_iterations": 1, "max_steps": 1})
    found = [None, None]
    dist.all_gather_object(found, passes)
    return found, [{name: value.full_tensor() for name, value in step.items()} for step in steps]


def run_on_pairs(path: str, folder: Path) -> None:
    """A pruned run on pairs, its reference in shards too: its scores, and steps in which a rank has no pair."""
    trainer = dpo_runs.ours(
        path, folder, data=dpo_runs.pairs(12), per_device_train_batch_size=1, max_steps=9, learning_rate=1e-3
    )
    idle, own = [], trainer._dealt

    def watched(draw):
        batch = own(draw)
        idle.append(not bool(batch.weight_UB.any()))
        return batch

    trainer._dealt = watched
    trainer.train()
    found = [None, None]
    dist.all_gather_object(found, sum(idle))
    if trainer.accelerator.is_main_process:
        sharded = [any(isinstance(p, DTensor) for p in m.parameters()) for m in (trainer.model, trainer.ref_model)]
        results = {"scores": trainer.source.scores.score.tolist(), "idle": found, "sharded": sharded}
        (folder / "pairs.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    run_on_pairs(sys.argv[1], Path(sys.argv[2], "pairs"))
    _end_group()
