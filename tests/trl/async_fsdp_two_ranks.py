"""The asynchronous trainer on two ranks under FSDP2, on CPUs. Writes gradients."""

import os
import sys
from pathlib import Path

import torch
from async_two_ranks import run
from fsdp_two_ranks import choose_fsdp_on_cpus


def main(path: str, folder: str) -> None:
    torch.set_num_threads(1)
    choose_fsdp_on_cpus()
    found = {
        name: [{of: value.full_tensor() for of, value in each.items()} for each in found]
        for name, found in run(path, Path(folder) / "two", 2).items()
    }
    if int(os.environ["RANK"]) == 0:
        torch.save(found, Path(folder) / "gradients.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
