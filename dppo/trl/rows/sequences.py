"""Sequences of a dataset in tokens, as what a rank trains on in a step."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dppo.packing.rows import UNSCORED
from dppo.trl.batch import RankBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence, cut before its first trained token and after its last: nothing behind that has a gradient."""

    prompt: Tensor
    """Token ids before the first trained one, at least one."""
    completion: Tensor
    """Token ids from the first trained one to the last."""
    scored: Tensor
    """Of these, bool: which carry loss."""


def trained(ids: list[int], labels: list[int]) -> Sequence | None:
    """A sequence from TRL's columns; None where no token is trained on.

    Args:
        ids: of its tokens.
        labels: the same, with -100 where a token carries no loss; the first token never does, nothing predicts it.
    """
    ids_T, scored_T = torch.as_tensor(ids), torch.as_tensor(labels) != UNSCORED
    places = scored_T[1:].nonzero().flatten() + 1
    if not len(places):
        return None
    first, end = int(places[0]), int(places[-1]) + 1
    return Sequence(prompt=ids_T[:first], completion=ids_T[first:end], scored=scored_T[first:end])


def content_key(*parts: list[int]) -> int:
    """64 bits of a hash of what a row holds, the same in every process.

    Args:
        *parts: lists of token ids.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(np.asarray(part, np.int64).tobytes() + b"|")
    return int.from_bytes(digest.digest(), "little")


def batch_of(
    sequences: list[Sequence], weight_B: Tensor, *, denominator: float, device: torch.device, kind: type[RankBatch]
) -> RankBatch:
    """Sequences as the batch of one optimizer step, for ``ForwardPasses``.

    Args:
        sequences: of this rank, at least one.
        weight_B: (B,) what multiplies the loss of each, 0 where it is not trained on.
        denominator: what the sum over all ranks is divided by.
        device: of the model.
        kind: ``RankBatch``, or one whose sequences belong together in another way.
    """
    prompt_ids, prompt_mask = _padded([each.prompt for each in sequences], left=True)
    completion_ids, completion_mask = _padded([each.completion for each in sequences], left=False)
    loss_mask = pad_sequence([each.scored.long() for each in sequences], batch_first=True)
    count = torch.tensor(float(denominator), dtype=torch.float64)
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "loss_mask": loss_mask,
        "advantage_B": torch.ones(len(sequences)),
        "weight_UB": weight_B.float()[None],
        "denominator": count,
        "tokens": count,
        "attended": count,
        "tokens_U": count[None],
        "sequences_U": torch.tensor([float(len(sequences))]).double(),
    }
    return kind(**{name: tensor.to(device) for name, tensor in batch.items()})


def _padded(parts: list[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids and the mask of tokens."""
    side = "left" if left else "right"
    ones = [torch.ones_like(part) for part in parts]
    ids, mask = (pad_sequence(each, batch_first=True, padding_side=side) for each in (parts, ones))
    return ids, mask
