"""Pruning in TRL's asynchronous trainer: ``DPPOAsyncConfig`` and ``DPPOAsyncTrainer``."""
