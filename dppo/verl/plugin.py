"""verl's entry point ``verl.plugins``: an import of trainers and engines registers them by their names.

verl ignores a plug-in that raises, and then reports an unknown trainer. ``python -m dppo.verl.plugin`` shows it.
"""

from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY  # pyright: ignore[reportMissingImports]

import dppo.verl.engine
import dppo.verl.trainers  # noqa: F401
from dppo.verl.checkpoint import NAME

if __name__ == "__main__":
    for name in sorted(name for name in TRAINER_REGISTRY if name.startswith(NAME)):
        print(f"trainer.v1.trainer_mode={name} is available")
