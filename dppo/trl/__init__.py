"""The adapter to TRL: ``DPPOConfig`` and ``DPPOTrainer`` in place of ``GRPOConfig`` and ``GRPOTrainer``."""

from dppo.trl.support import check_trl_version

check_trl_version()  # before anything imports what another TRL may not have

from dppo.trl.config import DPPOConfig  # noqa: E402
from dppo.trl.trainer import DPPOTrainer  # noqa: E402

__all__ = ["DPPOConfig", "DPPOTrainer"]
