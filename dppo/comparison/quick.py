"""The comparison that ``dppo compare`` makes without a configuration: minutes on two cores, and no download."""

QUICK = """\
# Three methods on the short form of the embedded task, 3 seeds: no download, about five minutes on two cores.
#   dppo compare examples/embedded_compare.yaml --seeds 3
# It shows how a comparison reads. It is too short to judge methods by.
model_name_or_path: scratch:embedded_quick
dataset_name: embedded_quick
embedded_problems: 128
rollout_func: embedded
eval_benchmarks: [embedded_quick]
eval_benchmark_every: 5
eval_benchmark_limit: 96
eval_benchmark_samples: 2
output_dir: runs/compare

method: dppo
completion_prune_rate: 0.5

loss_type: dr_grpo
scale_rewards: none
num_generations: 8
per_device_train_batch_size: 128
max_completion_length: 72
temperature: 1.0
beta: 0.0

max_steps: 25
learning_rate: 2.0e-4
lr_scheduler_type: linear
warmup_steps: 5
adam_beta2: 0.98
weight_decay: 0.0
max_grad_norm: 1.0
gradient_checkpointing: false
use_cpu: true
bf16: false

logging_steps: 5
save_steps: 25
save_total_limit: 1
report_to: none
seed: 0

compare:
  methods:
    trl: {}
    grpo: {}
    dppo: {}
"""
