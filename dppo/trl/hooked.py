"""Methods of TRL that are overridden or relied on, and a fingerprint of each in the TRL that was tested.

``python -m dppo.trl.hooked`` writes the fingerprints of the installed TRL, once all tests have passed with it.
"""

from pathlib import Path

from dppo.hooked import Hooked, changed, write_fingerprints

HOOKED: Hooked = {
    "trl.trainer.grpo_trainer.GRPOTrainer": (
        *("_prepare_inputs", "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "_generate"),
        *("_generate_single_turn", "_calculate_rewards", "get_high_entropy_mask", "_compute_loss", "compute_loss"),
        *("training_step", "log"),
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


def changed_methods(*, experimental: bool = False) -> list[str]:
    """Methods of the installed TRL, or of its experimental part, that are not as they were where they were tested."""
    part = {path: names for path, names in HOOKED.items() if path.startswith("trl.experimental.") == experimental}
    return changed(part, FILE)


if __name__ == "__main__":
    write_fingerprints(HOOKED, FILE)
