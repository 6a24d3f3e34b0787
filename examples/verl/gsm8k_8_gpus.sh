#!/usr/bin/env bash
# Qwen3-4B on GSM8K with verl and dynamic pruning, one node with 8 GPUs. Written for that, and NOT RUN: there was no GPU.
# What was run is the same command on CPUs with a toy policy: tests_verl/ray_run.py. Options: docs/verl.md.
set -euo pipefail
DATA=${DATA:-$HOME/data/gsm8k}   # verl's examples/data_preprocess/gsm8k.py writes it
NODES=${NODES:-1}
PROMPTS=${PROMPTS:-256}

python -m verl.trainer.main_ppo \
    trainer.v1.trainer_mode=dynamic_pruning \
    algorithm.adv_estimator=grpo \
    data.train_files="$DATA/train.parquet" data.val_files="$DATA/test.parquet" \
    data.train_batch_size="$PROMPTS" data.max_prompt_length=512 data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2 \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS" \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    trainer.nnodes="$NODES" trainer.n_gpus_per_node=8 trainer.total_epochs=5 trainer.save_freq=20 trainer.test_freq=20 \
    'trainer.logger=[console]' "$@"
