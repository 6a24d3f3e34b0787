"""What the library was measured with, by what is asked. Run from the root: ``python -m benchmarks.speed.step --quick``.

| folder | asks |
|---|---|
| ``learning`` | which method learns most for its seconds |
| ``speed`` | what a step, or its forward and backward, costs |
| ``scale`` | what grows with size, which models are served, what survives a kill |
| ``results`` | committed figures; ``pages.py`` draws the tables of the pages from them |
"""

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental in TRL, and says so every time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
