"""The asynchronous trainer on two ranks, with FSDP2 or without: one process plans, each forwards as many rows."""

import os
import sys
from pathlib import Path

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from async_runs import ScriptedWorker, gradients, ours

CASES = {
    "all": {},
    "uneven": {"flat": {1}.__contains__, "token_budget": 24},  # more rows than calls, and an odd number of them
    "few": {"completion_prune_rate": 0.8, "flat": {0, 2, 4}.__contains__},  # fewer completions than ranks, at times
    "nothing": {"flat": lambda row: True},
}


def run(path: str, folder: Path, ranks: int) -> dict[str, list]:
    found = {}
    for name, case in CASES.items():
        options = {"completion_prune_rate": 0.0, "max_steps": 3} | case
        worker = ScriptedWorker(flat=options.pop("flat", lambda row: False))
        sizes = {"per_device_train_batch_size": 4 // ranks, "gradient_accumulation_steps": 2}
        found[name] = gradients(ours(path, folder / name, worker, **sizes | options))
    return found


def main(path: str, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == "fsdp":
        from fsdp_two_ranks import choose_fsdp_on_cpus  # importing it sets the environment

        choose_fsdp_on_cpus()
    found = run(path, Path(folder) / "two", 2)
    for each in (step for steps in found.values() for step in steps):
        each.update({name: value.full_tensor() for name, value in each.items() if kind == "fsdp"})
    if int(os.environ["RANK"]) == 0:
        torch.save(found, Path(folder) / "gradients.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
