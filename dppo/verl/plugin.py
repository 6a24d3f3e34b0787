"""What verl loads by the entry point ``verl.plugins``: importing the trainer registers it as ``dynamic_pruning``.

verl passes over a plug-in that raises, and then says that the trainer is unknown. ``python -m dppo.verl.plugin`` shows
the reason.
"""

import dppo.verl.trainer  # noqa: F401

if __name__ == "__main__":
    print("trainer.v1.trainer_mode=dynamic_pruning is there")
