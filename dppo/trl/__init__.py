"""The adapter to TRL: ``DPPOConfig`` and ``DPPOTrainer`` in place of ``GRPOConfig`` and ``GRPOTrainer``."""

from dppo.trl.config import DPPOConfig
from dppo.trl.trainer import DPPOTrainer

__all__ = ["DPPOConfig", "DPPOTrainer"]
