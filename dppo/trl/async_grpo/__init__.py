"""Pruning in TRL's asynchronous trainer: ``DPPOAsyncConfig`` and ``DPPOAsyncTrainer``."""

from dppo.trl.served import check_trl_version

check_trl_version(experimental=True)
