#!/usr/bin/env bash
# The same with verl's separate_async trainer: on each node 4 GPUs train and 4 sample; a step has 4 updates, after which
# samplers get the weights by NCCL. NOT RUN on a GPU. docs/verl.md, "The asynchronous trainers".
set -euo pipefail
PROMPTS=${PROMPTS:-256} UPDATES=4
PROMPTS=$PROMPTS "$(dirname "$0")/gsm8k_8_gpus.sh" \
    trainer.v1.trainer_mode=dynamic_pruning_separate_async \
    trainer.v1.separate_async.num_warmup_batches=1 trainer.v1.separate_async.parameter_sync_step=$UPDATES \
    actor_rollout_ref.actor.ppo_mini_batch_size=$((PROMPTS / UPDATES)) \
    trainer.n_gpus_per_node=4 actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.rollout.nnodes="${NODES:-1}" actor_rollout_ref.rollout.n_gpus_per_node=4 \
    actor_rollout_ref.rollout.checkpoint_engine.backend=nccl \
    trainer.v1.sampler.max_off_policy_threshold=4 algorithm.rollout_correction.rollout_is=token "$@"
