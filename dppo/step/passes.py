"""How one rollout is used by several optimizer steps: passes over its completions, and shares of a pass."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.errors import raise_problems
from dppo.rng import Purpose, Streams
from dppo.typed import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often completions are trained on, and in how many parts.

    Raises:
        ConfigError: a number is below 1.
    """

    passes: int = 1
    """Times that all completions are gone through, >= 1; TRL's ``num_iterations``."""
    shares: int = 1
    """Optimizer steps of a pass, >= 1: each trains on a share of the completions."""

    def __post_init__(self) -> None:
        check_fields(self, "Passes(passes=2)")
        counts = {"passes": self.passes, "shares": self.shares}
        raise_problems(
            "Passes", [f"{name}={count} must be >= 1. Write {name}=1." for name, count in counts.items() if count < 1]
        )

    @property
    def steps(self) -> int:
        """U, optimizer steps that train on one rollout, each with another draw."""
        return self.passes * self.shares


def deal(process_N: Tensor, shares: int, streams: Streams) -> Tensor:
    """(N,) int64 the share each completion is trained in: near equal in size on every process, each equally likely."""
    share_N = torch.zeros(len(process_N), dtype=torch.int64)
    if shares == 1 or not len(process_N):
        return share_N
    for process in range(int(process_N.max()) + 1):
        rng = streams(Purpose.DEAL, process)
        mine = process_N == process
        dealt = (np.arange(int(mine.sum())) + rng.integers(shares)) % shares
        share_N[mine] = torch.from_numpy(rng.permutation(dealt))
    return share_N
