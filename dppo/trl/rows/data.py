"""Rows of a dataset: their sequences and counts, the rows of one optimizer step, and this rank's batch of them."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dppo.errors import DataError
from dppo.packing.rows import UNSCORED
from dppo.trl.batch import PADDED, RankBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence, cut before its first trained token and after its last: later tokens have no gradient."""

    prompt: Tensor
    """Token ids before the first trained one, at least one."""
    completion: Tensor
    """Token ids from the first trained one to the last."""
    scored: Tensor
    """Bool for each token of the completion: True if it carries loss."""


IDLE = Sequence(prompt=torch.tensor([0]), completion=torch.tensor([0]), scored=torch.tensor([True]))
"""Sequence that a process without rows forwards, at weight 0."""


def trained(ids: list[int], labels: list[int], *, whole: bool = False) -> Sequence | None:
    """A sequence from TRL's columns; None if no token is trained on.

    The first token is never trained on, because nothing predicts it. With ``whole``, tokens after the last trained one
    stay, and so do sequences without one: a router loss counts them.
    """
    ids_T, scored_T = torch.as_tensor(ids), torch.as_tensor(labels) != UNSCORED
    places = scored_T[1:].nonzero().flatten() + 1
    if not len(places) and not (whole and len(ids_T) > 1):
        return None
    first = int(places[0]) if len(places) else 1
    end = len(ids_T) if whole else int(places[-1]) + 1
    return Sequence(prompt=ids_T[:first], completion=ids_T[first:end], scored=scored_T[first:end])


def content_key(*parts: list[int]) -> int:
    """64 bits of a hash of a row's token ids, the same in every process."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(np.asarray(part, np.int64).tobytes() + b"|")
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """One row as it is trained on."""

    sequences: list[Sequence]
    ids: tuple[list[int], ...]
    """Lists of token ids by which a saved run finds the row again."""
    counts: tuple[int, int, int]
    """``tokens``, ``attended`` and ``trained`` of ``StepRows``."""
    problem: str = ""
    """End of the sentence "n rows ...", if the row cannot be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """The rows of a dataset, with their counts."""

    rows: Any
    identities: np.ndarray
    """(size,) uint64 hashes of the rows' content."""
    counts: np.ndarray
    """(size, 3) float64, as of ``ReadRow``."""

    @classmethod
    def of(cls, rows: Any, read: Callable[[Any], ReadRow]) -> "RowTable":
        """Read all rows once.

        Raises:
            DataError: some rows cannot be trained on.
        """
        identities, counts = np.empty(len(rows), np.uint64), np.zeros((len(rows), 3))
        problems: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            found = read(row)
            identities[place], counts[place] = content_key(*found.ids), found.counts
            if found.problem:
                problems[found.problem].append(place)
        lines = []
        for problem, places in problems.items():
            first = ", ".join(map(str, places[:5]))
            lines.append(f"{len(places)} of {len(rows)} rows (from 0: {first}) {problem}")
        if lines:
            raise DataError("\n".join(lines))
        return cls(rows=rows, identities=identities, counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The N rows of one optimizer step on all ranks, equal on every rank."""

    data: Any
    """The dataset; or the N rows of a stream, None for those of other ranks."""
    row_N: Tensor
    """(N,) int64 index in ``data``."""
    part_N: Tensor
    """(N,) int64 micro-batch of TRL's loader, numbered over all ranks: ``rank * stride + call``."""
    calls: int
    """Calls of the loss on this rank, one for each micro-batch of TRL's loader."""
    stride: int
    """At least the calls of every rank: ranks may differ in the last step of an epoch."""
    count_3N: Tensor
    """(3, N) float64 ``tokens_N``, ``attended_N`` and ``trained_N``."""

    @property
    def tokens_N(self) -> Tensor:
        """(N,) tokens in the forward pass of each row."""
        return self.count_3N[0]

    @property
    def attended_N(self) -> Tensor:
        """(N,) tokens as TRL counts them: those of every sequence, prompts included."""
        return self.count_3N[1]

    @property
    def trained_N(self) -> Tensor:
        """(N,) tokens that carry loss; of a pair those of the preferred answer."""
        return self.count_3N[2]

    @property
    def call_N(self) -> Tensor:
        """(N,) int64 call of the loss that each row belongs to, on its rank."""
        return self.part_N % self.stride

    def of_rank(self, rank: int) -> list[int]:
        """Places among the N rows of those that a rank has loaded."""
        return (self.part_N // self.stride == rank).nonzero().flatten().tolist()

    def row(self, place: int) -> Any:
        """The row at one of the N places."""
        return self.data[int(self.row_N[place])]


@dataclass(frozen=True, kw_only=True)
class RowBatch(RankBatch):
    """A batch of sequences, of which several may belong to one row."""

    row_tokens_B: Tensor
    """(B,) tokens of each sequence's row, which decide how many fit into a forward pass."""

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sequence's row."""
        return self.row_tokens_B

    @property
    def padded_width(self) -> int:
        """Tokens of the longest sequence: TRL pads prompt and answer as one."""
        return max(map(sum, zip(self.prompt_tokens, self.completion_tokens, strict=True)))


def batch_of(
    kind: type[RowBatch], sequences: list[Sequence], weight_B: Tensor, row_tokens_B: Tensor, device: torch.device
) -> RowBatch:
    """The batch of this rank's B >= 1 sequences in one optimizer step.

    ``weight_B`` is (B,) the factor of each sequence's loss, ``row_tokens_B`` (B,) the tokens of its row.
    """
    prompts = _padded([each.prompt for each in sequences], side="left")
    completions = _padded([each.completion for each in sequences], side="right")
    unused = torch.tensor(1.0)  # factors of the loss are known by row, and no denominator is needed
    batch = {
        **dict(zip(PADDED, (*prompts, *completions), strict=True)),
        "loss_mask": pad_sequence([each.scored.long() for each in sequences], batch_first=True),
        "advantage_B": torch.ones(len(sequences)),
        "weight_UB": weight_B.float()[None],
        **dict.fromkeys(("denominator", "tokens", "attended"), unused),
        "share_UB4": unused.expand(1, len(sequences), 4),
        "unclipped_UC": unused.expand(1, 1),
        "call_B": torch.zeros(len(sequences), dtype=torch.int64),
        "row_tokens_B": row_tokens_B.float(),
    }
    return kind(**{name: tensor.to(device) for name, tensor in batch.items()})


def _padded(parts: list[Tensor], *, side: str) -> tuple[Tensor, Tensor]:
    """Padded token ids and the mask of tokens, each (B, T)."""
    ones = [torch.ones_like(part) for part in parts]
    ids, mask = (pad_sequence(each, batch_first=True, padding_side=side) for each in (parts, ones))
    return ids, mask
