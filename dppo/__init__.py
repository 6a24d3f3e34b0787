"""Dynamic pruning policy optimization: GRPO that skips what teaches nothing, with the gradient left unbiased."""

__version__ = "0.3.0"
