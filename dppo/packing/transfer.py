"""Index tensors of a step on their device, in one transfer."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Integer tensors of the host on ``device``: one copy of one buffer, which does not wait for the device.

    The buffer is pinned for a GPU. From memory that is not pinned each tensor would be a copy that the host waits for.
    """
    if device.type == "cpu" or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    if device.type == "cuda":
        flat = flat.pin_memory()
    parts = flat.to(device, non_blocking=True).split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
