import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: there is one test per core already

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
torch.set_num_threads(1)


def pytest_collection_finish():
    """What is imported stays until the end: the garbage collector need not walk it again.

    Every training of TRL collects garbage once, and walking transformers was more than half of such a run's time.
    """
    gc.collect()
    gc.freeze()
