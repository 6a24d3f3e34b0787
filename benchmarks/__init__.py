"""Benchmarks of the library, by question. Run from the root: ``python -m benchmarks.speed.step --quick``.

| folder | asks |
|---|---|
| ``speed`` | what a step, or its forward and backward, costs on a CPU or a GPU |
| ``learning`` | which method learns most for its seconds |
| ``scale`` | what grows with size, which models are served, what survives a kill |
| ``swap`` | whether what TRL's own tests ask of its trainers holds of ours |
| ``results`` | committed figures; ``pages.py`` draws the tables of the pages from them |
"""

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental in TRL, and says so every time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
