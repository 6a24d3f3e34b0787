"""Options of verl that every run of the toy has: float32, the FSDP engine, rows without padding."""

FP32 = [f"+actor_rollout_ref.actor.fsdp_config.mixed_precision.{n}_dtype=fp32" for n in ("param", "reduce", "buffer")]
BASE = [
    *("algorithm.adv_estimator=grpo", "data.max_prompt_length=16", "data.max_response_length=12"),
    *("data.shuffle=False", "data.filter_overlong_prompts=False", "data.dataloader_num_workers=0"),
    *("actor_rollout_ref.model.use_remove_padding=True", "actor_rollout_ref.model.enable_gradient_checkpointing=False"),
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    *("actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.ref.strategy=fsdp2"),
    *("actor_rollout_ref.actor.optim.lr=1e-2", "actor_rollout_ref.actor.use_dynamic_bsz=True"),
    *("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64", "actor_rollout_ref.actor.use_torch_compile=False"),
    *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
    *("trainer.device=cpu", "trainer.n_gpus_per_node=1", "trainer.total_epochs=1", "trainer.total_training_steps=4"),
    *("trainer.resume_mode=disable", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"),
    *FP32,
]
"""Micro-batches of 64 tokens, so that each mini-batch has several."""
