"""Schedule of the optimizer steps on one rollout: passes over its completions, and shares of a pass."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.rng import Purpose, Streams
from dppo.typed import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSchedule:
    """Passes over the completions of a rollout, and optimizer steps of each pass."""

    passes: int = 1
    """Passes over all completions, >= 1; TRL's ``num_iterations``."""
    shares: int = 1
    """Optimizer steps of a pass, >= 1; each trains on a share of the completions."""

    def __post_init__(self) -> None:
        check_fields(self, "UpdateSchedule(passes=2, shares=1)", passes="[1, inf)", shares="[1, inf)")

    @property
    def steps(self) -> int:
        """U, optimizer steps on one rollout, each with its own draw."""
        return self.passes * self.shares

    def parts(self, prompts: int, multiple: int = 1) -> int:
        """Draws for a block of ``prompts``: the shares, or 1 if these cannot be equal multiples of ``multiple``."""
        # A share's parameters must not depend on its draw, and a draw needs a choice.
        each, rest = divmod(prompts, self.shares * multiple)
        return self.shares if each > 1 and not rest else 1


def shares_of(
    passes: UpdateSchedule, group_N: Tensor, process_N: Tensor | None, part_Q: Tensor | None, streams: Streams
) -> Tensor:
    """(U, N) bool completions that each optimizer step trains on.

    They are of the prompts drawn for it, by ``part_Q`` (Q,) and ``group_N`` (N,). Without ``part_Q`` completions are
    dealt, evenly on each process of ``process_N`` (N,); None is a single process.
    """
    if part_Q is None:
        share_N = deal(torch.zeros_like(group_N) if process_N is None else process_N, passes.shares, streams)
    elif bool((part_Q < passes.shares).all()):
        share_N = part_Q[group_N]
    else:
        drawn = f"prompts were drawn for {int(part_Q.max()) + 1} shares, and a pass has {passes.shares}"
        raise ShapeError(f"{drawn}. Draw them with parts=passes.parts(prompts).")
    return torch.stack([share_N == index % passes.shares for index in range(passes.steps)])


def deal(process_N: Tensor, shares: int, streams: Streams) -> Tensor:
    """(N,) int64 share of each completion: near equal in size on every process, each equally likely."""
    share_N = torch.zeros(len(process_N), dtype=torch.int64)
    if shares == 1 or not len(process_N):
        return share_N
    for process in range(int(process_N.max()) + 1):
        rng = streams(Purpose.DEAL, process)
        mine = process_N == process
        dealt = (np.arange(int(mine.sum())) + rng.integers(shares)) % shares
        share_N[mine] = torch.from_numpy(rng.permutation(dealt))
    return share_N
