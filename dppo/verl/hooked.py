"""Methods and functions of verl that are overridden or called, with a fingerprint of each in the tested verl.

``python -m dppo.verl.hooked`` writes the fingerprints of the installed verl, once all tests have passed with it.
"""

from pathlib import Path

from dppo.hooked import Hooked, changed, write_fingerprints

V1, MEGATRON = "verl.trainer.ppo.v1", "verl.workers.engine.megatron.transformer_impl"
HOOKED: Hooked = {
    f"{V1}.trainer_base.PPOTrainer": (
        *("__init__", "_init_dataloader", "_fetch_one_gen_batch", "step", "_next_train_batch"),
        *("_submit_batch_to_rollout", "_step_once", "_balance_batch", "_get_required_batch_multiple", "_update_actor"),
        *("_compute_old_log_prob", "_compute_ref_log_prob", "_compute_metrics", "_compute_advantage"),
        *("_save_checkpoint", "_load_checkpoint", "fit", "_add_async_warmup_batches", "_add_prompts_to_generate"),
        *("_add_batch_to_generate", "prepare_step", "_reissue_inflight_prompts"),
    ),
    f"{V1}.trainer_base": ("register_trainer",),
    f"{V1}.trainer_sync.PPOTrainerSync": ("on_init_end",),
    f"{V1}.trainer_colocate_async.PPOTrainerColocateAsync": ("on_train_begin", "on_step_end", "on_sample_end"),
    f"{V1}.trainer_separate_async.PPOTrainerSeparateAsync": (
        *("__init__", "on_train_begin", "_compute_old_log_prob", "prepare_step"),
    ),
    f"{V1}.agent_loop_tq.AgentLoopWorkerTQ": ("_run_prompt", "_agent_loop_postprocess"),
    f"{V1}.replay_buffer.ReplayBuffer": ("sample", "_clear_groups", "_materialize_batch"),
    f"{V1}.replay_buffer.ReplayBufferAsync": ("sample", "wait_for_sampleable", "_terminal_eviction_reasons"),
    "verl.trainer.ppo.rollout_corr_helper": ("compute_rollout_correction_and_add_to_batch",),
    "verl.utils.seqlen_balancing": ("log_seqlen_unbalance",),
    "verl.utils.metric.utils": ("reduce_metrics",),
    "verl.workers.utils.padding": ("response_to_nested",),
    "verl.trainer.ppo.padding_utils": ("upsample_batch_to_divisible_size",),
    "verl.trainer.ppo.core_algos": (
        *("agg_loss", "compute_policy_loss_vanilla", "compute_policy_loss_gspo", "compute_policy_loss_bypass_mode"),
        *("kl_penalty", "kl_penalty_forward"),
    ),
    "verl.workers.utils.losses": ("ppo_loss",),
    "verl.workers.engine_workers.TrainingWorker": ("train_mini_batch",),
    "verl.workers.engine_workers.ActorRolloutRefWorker": ("set_loss_fn",),
    "verl.workers.engine.base.EngineRegistry": ("register", "new"),
    "verl.workers.engine.fsdp.transformer_impl.FSDPEngine": ("__init__", "_build_module", "forward_backward_batch"),
    "verl.workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead": (
        *("prepare_model_inputs", "prepare_model_outputs", "forward_step"),
    ),
    "verl.workers.engine.utils": ("prepare_micro_batches", "postprocess_batch_func"),
    f"{MEGATRON}.MegatronEngine": ("_build_tf_config", "forward_backward_batch"),
    f"{MEGATRON}.MegatronEngineWithLMHead": ("postprocess_micro_batch_func",),
}
"""By class or module."""
FILE = Path(__file__).with_name("hooked.json")


def changed_methods(*, megatron: bool = False) -> list[str]:
    """Methods of the installed verl that are not as tested. With ``megatron`` those of its engine are among them."""
    return changed({path: names for path, names in HOOKED.items() if megatron or MEGATRON not in path}, FILE)


if __name__ == "__main__":
    write_fingerprints(HOOKED, FILE)
