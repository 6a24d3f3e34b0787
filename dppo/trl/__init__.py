"""The adapter to TRL: ``DPPOConfig`` and ``DPPOTrainer`` in place of ``GRPOConfig`` and ``GRPOTrainer``.

``DPPOAsync``, ``DPPOSFT`` and ``DPPODPO`` take the place of ``AsyncGRPO``, ``SFT`` and ``DPO`` in the same way. The
asynchronous trainer is experimental, and imported when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dppo.install import install_line

try:
    from dppo.trl.served import check_trl_version
except ModuleNotFoundError as error:
    if error.name is None:  # as transformers raises for a package that is there and does not load
        raise
    line = f"dppo.trl needs {error.name}, which is not installed: {install_line('trl')}"
    raise ModuleNotFoundError(line, name=error.name) from None

check_trl_version()  # before anything imports what another TRL may not have

from dppo.trl.grpo.config import DPPOConfig  # noqa: E402
from dppo.trl.grpo.trainer import DPPOTrainer  # noqa: E402
from dppo.trl.rows.dpo import DPPODPOConfig, DPPODPOTrainer  # noqa: E402
from dppo.trl.rows.sft import DPPOSFTConfig, DPPOSFTTrainer  # noqa: E402

if TYPE_CHECKING:
    from dppo.trl.async_grpo.config import DPPOAsyncConfig
    from dppo.trl.async_grpo.trainer import DPPOAsyncTrainer

__all__ = ["DPPOAsyncConfig", "DPPOAsyncTrainer", "DPPOConfig", "DPPODPOConfig", "DPPODPOTrainer", "DPPOSFTConfig"]
__all__ += ["DPPOSFTTrainer", "DPPOTrainer"]


def __getattr__(name: str) -> Any:
    if name in ("DPPOAsyncConfig", "DPPOAsyncTrainer"):
        part = name.removeprefix("DPPOAsync").lower()
        return getattr(import_module(f"dppo.trl.async_grpo.{part}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
