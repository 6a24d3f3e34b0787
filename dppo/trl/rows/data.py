"""Rows of a dataset: their sequences and counts, those of one optimizer step, this rank's batch, and TRL's metrics."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dppo.errors import DataError
from dppo.packing.rows import UNSCORED, on_device
from dppo.step import StepSizes
from dppo.trl.batch import RankBatch


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


def trained(ids_T: Tensor, label_T: Tensor, *, whole: bool) -> Sequence | None:
    """A sequence from TRL's columns; None if no token is trained on. Nothing predicts the first token.

    With ``whole``, tokens after the last trained one stay, and so do sequences without one: a router loss counts them.
    """
    scored_T = label_T != UNSCORED
    places = scored_T[1:].nonzero().flatten() + 1
    if not len(places) and not (whole and len(ids_T) > 1):
        return None
    first = int(places[0]) if len(places) else 1
    end = len(ids_T) if whole else int(places[-1]) + 1
    return Sequence(prompt=ids_T[:first], completion=ids_T[first:end], scored=scored_T[first:end])


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


def read_all(rows: Any, read: Callable[[Any], ReadRow]) -> tuple[np.ndarray, np.ndarray]:
    """(size,) uint64 hashes of all rows, and (size, 3) float64 counts; ``DataError`` names unusable ones."""
    identities, counts = np.empty(len(rows), np.uint64), np.zeros((len(rows), 3))
    problems: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        found = read(row)
        content = b"".join(np.asarray(part, np.int64).tobytes() + b"|" for part in found.ids)
        digest = hashlib.blake2b(content, digest_size=8).digest()  # the same in every process
        identities[place], counts[place] = int.from_bytes(digest, "little"), found.counts
        if found.problem:
            problems[found.problem].append(place)
    if problems:
        of = f"of {len(rows)} rows (from 0:"
        lines = [f"{len(at)} {of} {', '.join(map(str, at[:5]))}) {problem}" for problem, at in problems.items()]
        raise DataError("\n".join(lines))
    return identities, counts


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
    tokens_N: Tensor
    """(N,) float64 tokens in the forward pass of each row."""
    attended_N: Tensor
    """(N,) float64 tokens as TRL counts them: those of every sequence, prompts included."""
    trained_N: Tensor
    """(N,) float64 tokens that carry loss; of a pair those of the preferred answer."""


@dataclass(frozen=True, kw_only=True)
class RowBatch(RankBatch):
    """A batch of sequences, of which several may belong to one row."""

    length_setting = "max_length"
    row_tokens_B: Tensor
    """(B,) tokens of each sequence's row, which decide how many fit into a forward pass."""

    @property
    def lengths(self) -> Tensor:
        return self.row_tokens_B

    @property
    def padded_width(self) -> int:
        """Tokens of the longest sequence: TRL pads prompt and answer as one."""
        return max(map(sum, zip(self.prompt_tokens, self.completion_tokens, strict=True)))

    @classmethod
    def of(cls, sequences: list[Sequence], weight_B: Tensor, row_tokens_B: Tensor, device: torch.device) -> Self:
        """The batch of this rank's B >= 1 sequences in one optimizer step, with factors (B,) of their losses."""
        prompts, completions = [each.prompt for each in sequences], [each.completion for each in sequences]
        batch: dict[str, Tensor] = {
            "prompt_ids": pad_sequence(prompts, True, padding_side="left"),
            "prompt_mask": pad_sequence([*map(torch.ones_like, prompts)], True, padding_side="left"),
            "completion_ids": pad_sequence(completions, True),
            "completion_mask": pad_sequence([*map(torch.ones_like, completions)], True),
            "loss_mask": pad_sequence([each.scored.long() for each in sequences], True),
            "weight_UB": weight_B.float()[None],
            "row_tokens_B": row_tokens_B.float(),
        }
        # Not used: factors of the loss are known by row, and no denominator is needed.
        batch |= {"advantage_B": torch.ones(len(sequences)), "full_U3": torch.ones(1, 3)}
        placed: dict[str, Any] = {name: tensor.to(device) for name, tensor in batch.items()}
        return cls(**placed, sizes=StepSizes(1.0, 1.0))


class RowMetrics:
    """TRL's metrics of one optimizer step: weighted means over its rows. Sums stay on the device until its end.

    Micro-batches of equal number ``call_N`` on all ranks are one. ``place_B`` is the row, among the N, of each sequence
    of this rank.
    """

    def __init__(self, call_N: Tensor, weight_N: Tensor, place_B: list[int]) -> None:
        self._call_N, self._weight_N, self._place_B = call_N, weight_N, place_B
        self._factor, self._sums = dict[str, Tensor](), dict[str, Tensor]()

    def add(self, name: str, value_U: Tensor, count_N: Tensor, weight_U: Tensor, row_U: Tensor) -> None:
        """Add the (u,) sums over some rows, with their weights; ``row_U`` are their first sequences on this rank.

        ``count_N`` (N,) are the units of each row that the mean is over, dropped rows included: tokens, or 1.
        """
        if name not in self._factor:
            factor_N = mean_factors(count_N, self._call_N, self._weight_N)
            (self._factor[name],) = on_device([factor_N[self._place_B].float()], value_U.device)
        self.add_sum(name, (value_U.detach() * weight_U * self._factor[name][row_U]).sum())

    def add_sum(self, name: str, value: Tensor) -> None:
        """Add a term of a metric that is a sum over all ranks."""
        value = value.detach().float()
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def reduced(self) -> dict[str, float]:
        """The metrics over all ranks, which call together; some may have none."""
        here = torch.stack([*self._sums.values()]).tolist() if self._sums else []
        found: dict[str, float] = defaultdict(float)
        for name, value in gather_object([*zip(self._sums, here, strict=True)]):
            found[name] += value
        return found


def mean_factors(count_N: Tensor, call_N: Tensor, weight_N: Tensor) -> Tensor:
    """(N,) factors that make weighted sums over each kept row a mean over all rows of a step.

    With nothing dropped it is the mean over micro-batches of their own means, as TRL logs it. Micro-batches count as
    before the draw: over one kept row of a micro-batch its weight would cancel.
    """
    total_C = torch.zeros(int(call_N.max()) + 1, dtype=torch.float64).index_add(0, call_N, count_N.double())
    factor_N = total_C.clamp(min=1.0)[call_N].reciprocal()
    # Weights add up to the number of rows on average only: their sum is divided out, once for the whole step.
    kept = (factor_N * count_N * weight_N).sum()
    return factor_N / kept if kept > 0 else torch.zeros_like(factor_N)
