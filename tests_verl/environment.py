"""Environment variables that verl reads when it is imported."""

import os
import socket

import torch

FIXED = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_USE_EXTERNAL_MODULES": "platform_cpu",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def set_up(rank: int = 0, ranks: int = 1, port: int | None = None) -> None:
    """This process as one of some ranks, before verl is imported."""
    os.environ.update(FIXED | {"RANK": str(rank), "WORLD_SIZE": str(ranks)})
    os.environ["MASTER_PORT"] = str(free_port() if port is None else port)
    torch.set_num_threads(1)
