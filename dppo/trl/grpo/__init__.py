"""GRPO: the configuration, the trainer, and its steps."""
