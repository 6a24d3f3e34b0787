"""Methods of TRL that are overridden or relied on, and a fingerprint of each in the TRL that was tested.

``python -m dppo.trl.hooked`` writes the fingerprints of the installed TRL, once all tests have passed with it.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

HOOKED: Mapping[str, tuple[str, ...]] = {
    "trl.trainer.grpo_trainer.GRPOTrainer": (
        *("_prepare_inputs", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_generate"),
        *("_generate_single_turn", "_calculate_rewards", "_compute_loss", "compute_loss", "training_step", "log"),
    ),
    "trl.trainer.sft_trainer.SFTTrainer": ("compute_loss", "log"),
    "trl.trainer.dpo_trainer.DPOTrainer": ("_compute_loss", "compute_loss", "log"),
    "trl.trainer.base_trainer._BaseTrainer": ("create_model_card",),
    "trl.experimental.async_grpo.async_grpo_trainer.AsyncGRPOTrainer": (
        *("compute_loss", "_log_step_metrics", "get_train_dataloader", "_save_checkpoint", "_inner_training_loop"),
    ),
    "trl.experimental.async_grpo.async_grpo_trainer.DataCollatorForRollout": ("torch_call",),
    "trl.experimental.async_grpo.async_rollout_worker._AsyncRolloutLoop": (
        *("_generate_loop", "_score_loop", "_score_group", "_repeat_iterator"),
    ),
    "trl.experimental.async_grpo.packing.TreeRow": ("fits", "add", "pack"),
}
"""By class. Methods that transformers has are not among them: its range is in pyproject.toml."""
FILE = Path(__file__).with_name("hooked.json")


def fingerprint(method: Any) -> str:
    """A hash of the lines of a method, without blank lines and lines that are a comment."""
    lines = [line.strip() for line in inspect.getsource(inspect.unwrap(method)).splitlines()]
    code = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


def fingerprints(*, experimental: bool) -> dict[str, str]:
    """Of each method of the installed TRL, or of its experimental part; empty text for one that it does not have."""
    found = {}
    for path, names in HOOKED.items():
        if path.startswith("trl.experimental.") != experimental:
            continue
        module, _, kind = path.rpartition(".")
        try:
            owner = getattr(import_module(module), kind)
        except (ImportError, AttributeError):
            owner = None
        for name in names:
            method = getattr(owner, name, None)
            found[f"{kind}.{name}"] = "" if method is None else fingerprint(method)
    return found


def changed_methods(*, experimental: bool = False) -> list[str]:
    """Methods of the installed TRL, or of its experimental part, that are not as they were where they were tested."""
    tested = json.loads(FILE.read_text(encoding="utf-8"))
    return [name for name, digest in fingerprints(experimental=experimental).items() if tested.get(name) != digest]


if __name__ == "__main__":
    found = fingerprints(experimental=False) | fingerprints(experimental=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
