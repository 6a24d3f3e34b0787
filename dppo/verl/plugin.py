"""What verl loads by the entry point ``verl.plugins``: importing the trainers registers them as ``dynamic_pruning``,
``dynamic_pruning_colocate_async`` and ``dynamic_pruning_separate_async``.

verl passes over a plug-in that raises, and then says that the trainer is unknown. ``python -m dppo.verl.plugin`` shows
the reason.
"""

from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY  # pyright: ignore[reportMissingImports]

import dppo.verl.trainer_async  # noqa: F401
from dppo.verl.trainer import NAME

if __name__ == "__main__":
    for name in sorted(name for name in TRAINER_REGISTRY if name.startswith(NAME)):
        print(f"trainer.v1.trainer_mode={name} is there")
