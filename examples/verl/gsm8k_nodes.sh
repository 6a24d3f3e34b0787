#!/usr/bin/env bash
# The same on 2 nodes of 8 GPUs, from the head node of a Ray cluster that is up (`ray status` lists 16); NODES=8 for 64 GPUs. NOT RUN.
# Every node needs `pip install 'dppo[verl] @ git+URL'`: workers import the weighted loss. `auto` skips prompts where the run finds that
# it pays; `fill` then keeps rollout batches full, which is what many GPUs want: about PROMPTS prompts are rolled out in each step.
set -euo pipefail
NODES=${NODES:-2}
NODES=$NODES PROMPTS=${PROMPTS:-$((128 * NODES))} "$(dirname "$0")/gsm8k_8_gpus.sh" \
    +trainer.v1.sampler.sampler_kwargs.pruning.prompt_prune_rate=auto \
    +trainer.v1.sampler.sampler_kwargs.pruning.prompt_mode=fill "$@"
