#!/usr/bin/env bash
# The same with verl's colocate_async trainer: samplers stop in each update and go on where they were. NOT RUN on a GPU.
# Rollouts may be of several policies, so verl's importance ratios are on. docs/verl.md, "The asynchronous trainers".
set -euo pipefail
"$(dirname "$0")/gsm8k_8_gpus.sh" \
    trainer.v1.trainer_mode=dynamic_pruning_colocate_async \
    trainer.v1.colocate_async.num_warmup_batches=1 trainer.v1.sampler.max_off_policy_threshold=4 \
    algorithm.rollout_correction.rollout_is=token "$@"
