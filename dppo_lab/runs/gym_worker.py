"""The score of a task of reasoning-gym, for worker processes.

Importing this module imports reasoning-gym, which takes seconds. A worker imports it before the first time limit.
"""

import reasoning_gym  # noqa: F401

from dppo_lab.gym import reasoning_gym_score

__all__ = ["reasoning_gym_score"]
