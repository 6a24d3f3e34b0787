"""A rank's completions of one generation with their weights, and parts of them for one forward pass."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dppo.errors import CheckpointError
from dppo.objective import Tokens
from dppo.packing.rows import Row
from dppo.step import StepSizes
from dppo.trl.correction import Correction
from dppo.trl.pictures import SAVED, Pictures


@dataclass(frozen=True, kw_only=True)
class Padded:
    """The B completions of one rank with their prompts, as TRL pads them."""

    prompt_ids: Tensor
    """(B, Tp) left-padded."""
    prompt_mask: Tensor
    """(B, Tp)."""
    completion_ids: Tensor
    """(B, T) right-padded."""
    completion_mask: Tensor
    """(B, T) tokens that are attended to."""
    loss_mask: Tensor
    """(B, T) tokens that carry loss: not those of tools, nor of masked truncated completions."""
    sampler_logp: Tensor | None = None
    """(B, T) log-probabilities that the rollout engine reported; None if it reports none."""
    pictures: Pictures | None = None
    """Pictures of each row, for a vision-language model."""


@dataclass(frozen=True, kw_only=True)
class RankBatch(Padded):
    """This rank's completions of one generation, with the weight of each in every optimizer step."""

    together: ClassVar[int] = 1
    """Sequences that must share one forward pass: neighbours."""
    least: ClassVar[str] = "one completion with its prompt"
    """These sequences, for messages."""
    length_setting: ClassVar[str] = "max_completion_length"
    """Setting to lower if they do not fit into memory."""
    advantage_B: Tensor
    """(B,) from the full group."""
    weight_UB: Tensor
    """(U, B) float32, 0 if a completion is not trained on in that optimizer step."""
    sizes: StepSizes
    """Sizes of the full batch of all ranks, before anything was dropped."""
    full_U3: Tensor
    """(U, 3) float32 sizes of the full batch in each optimizer step, estimated if prompts were not rolled out: tokens,
    completions, and completions that have tokens but no advantage."""
    old_logp: Tensor | None = None
    """(B, T) under the policy that generated, for rows that later draws keep; None with one draw."""
    ref_logp: Tensor | None = None
    """(B, T) under the reference policy, for completions kept; None if beta is 0."""
    ratio: Tensor | None = None
    """(B, T) or (B, 1) correction from the rollout engine's policy to ours, for rows that later draws keep; or None."""
    policy_mask: Tensor | None = None
    """(B, T) bool, tokens of high entropy, which alone have a policy loss; None for all."""
    length_UB: Tensor | None = None
    """(U, B) int64 tokens of each completion that are forwarded in each optimizer step; None for all."""
    token_weight_UBT: Tensor | None = None
    """(U, B, T) float32 weight of each token's loss beside ``weight_UB``, 0 if it was not drawn; None for 1 each."""
    uncut: "RankBatch | None" = None
    """The batch that it was cut from; None for a whole one."""
    draws: tuple[int, ...] = ()
    """Draws at whose cuts its completions end; empty if nothing is cut."""
    token_weight: Tensor | None = None
    """(B, T) float32 weight of each token's loss beside its completion's, if it is cut; else None."""

    def cut(self, draws: slice) -> "RankBatch":
        """The batch up to the last token of each completion that some of these draws keep; itself if all are kept.

        Tokens that no draw keeps carry no loss. Weights of tokens are those of the first draw.
        """
        if self.length_UB is None or self.token_weight_UBT is None:
            return self
        length_B, weight_UBT = self.length_UB[draws].amax(0), self.token_weight_UBT[draws]
        reached_BT = torch.arange(self.completion_ids.shape[1], device=length_B.device) < length_B[:, None]
        return replace(
            self,
            completion_mask=self.completion_mask * reached_BT,
            loss_mask=self.loss_mask * (weight_UBT > 0).any(0),
            token_weight=weight_UBT[0],
            uncut=self,
            draws=tuple(range(*draws.indices(len(self.weight_UB)))),
        )

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence, before anything was cut."""
        return int((self.uncut or self).lengths.max())

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each row's prompt and completion."""
        return self.prompt_mask.sum(1) + self.completion_mask.sum(1)

    @cached_property
    def prompt_tokens(self) -> list[int]:
        """(B,) tokens of each row's prompt."""
        return self.prompt_mask.sum(1).tolist()

    @cached_property
    def completion_tokens(self) -> list[int]:
        """(B,) tokens of each row's completion, those without loss included."""
        return self.completion_mask.sum(1).tolist()

    @property
    def padded_width(self) -> int:
        """Tokens of a row as TRL pads it: the widest prompt and the widest completion."""
        return self.prompt_ids.shape[1] + self.completion_ids.shape[1]

    @cached_property
    def prompt_group(self) -> list[int]:
        """(B,) a number per row, equal for equal prompts."""
        numbers: dict[bytes, int] = {}
        ids, width = self.prompt_ids.cpu().numpy(), self.prompt_ids.shape[1]
        keys = [row[width - n :].tobytes() for row, n in zip(ids, self.prompt_tokens, strict=True)]
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    @cached_property
    def on_host(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Prompt ids, completion ids and loss mask in the host's memory; no mask if all tokens carry loss."""
        scored = None if torch.equal(self.loss_mask, self.completion_mask) else self.loss_mask.cpu().bool()
        return self.prompt_ids.cpu(), self.completion_ids.cpu(), scored

    def save(self, path: Path) -> None:
        """Write every tensor to ``path`` as safetensors."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        tensors = {name: value.detach().cpu() for name, value in values.items() if isinstance(value, Tensor)}
        tensors |= {name: torch.tensor(size, dtype=torch.float64) for name, size in self.sizes._asdict().items()}
        tensors |= {} if self.pictures is None else self.pictures.saved()
        # Cloned: the loss mask may be the completion mask itself, and safetensors refuses shared memory.
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "RankBatch":
        """Read the file that ``save`` wrote."""
        try:
            found: dict[str, Any] = load_file(path)
            pictures = Pictures.of_saved(found)
            sizes = StepSizes(*(found.pop(name).item() for name in StepSizes._fields))
            # Read first: safetensors has no device cpu:0, which a rank on a CPU has.
            tensors = {name: each.to(device) for name, each in found.items() if not name.startswith(SAVED)}
            return cls(**tensors, sizes=sizes, pictures=None if pictures is None else pictures.to(device))
        except (KeyError, OSError, SafetensorError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}. Resume from an earlier checkpoint.") from error


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a batch, cut to the longest prompt and completion among them."""

    rank_batch: RankBatch
    places: list[int]
    """Indices of the b rows in the batch, on the host."""
    rows: Tensor
    """(b,) int64, the same on the device."""
    weight: Tensor
    """(b,) float32 weight of each row's loss."""
    tokens: int
    """Tokens of its forward pass, with padding if the layout pads."""
    row: Row | None = None
    """The row that it is forwarded as; None in the padded layout."""
    idle: bool = False
    """True for a pass at weight 0 that a rank without rows runs."""

    @cached_property
    def completion_width(self) -> int:
        """Longest completion among the rows, at least 1."""
        return max(1, *(self.rank_batch.completion_tokens[place] for place in self.places))

    @property
    def prompt_width(self) -> int:
        """Longest prompt among the rows, at least 1."""
        return max(1, *(self.rank_batch.prompt_tokens[place] for place in self.places))

    @property
    def loss_weight(self) -> Tensor:
        """(b,) weight of each row's loss; (b, T) if tokens have their own."""
        of_tokens = self.rank_batch.token_weight
        return self.weight if of_tokens is None else self.weight[:, None] * self.completion(of_tokens)

    @property
    def counted_B(self) -> Tensor | None:
        """(b,) tokens that carry loss, those cut off included; None if nothing is cut."""
        uncut = self.rank_batch.uncut
        return None if uncut is None else uncut.loss_mask[self.rows].sum(1)

    def completion(self, tensor: Tensor) -> Tensor:
        """``tensor`` (B, T) at these rows, cut to ``completion_width``; a (B, 1) tensor stays (b, 1)."""
        return tensor[self.rows, : self.completion_width]

    def tokens_of(self, logp_BT: Tensor, *, first: bool, correct: Correction | None = None) -> Tokens:
        """Inputs of the loss. In the ``first`` step of a generation ``logp_BT`` are the old log-probabilities too."""
        whole = self.rank_batch

        def cut(value: Tensor | None) -> Tensor | None:
            return None if value is None else self.completion(value)

        old, ratio, sampler = None if first else cut(whole.old_logp), cut(whole.ratio), cut(whole.sampler_logp)
        mask_BT = self.completion(whole.loss_mask)
        if first and correct is not None and sampler is not None:
            ratio = correct(logp_BT.detach(), sampler, mask_BT * (not self.idle))
        return Tokens(
            logp_BT=logp_BT,
            old_logp_BT=logp_BT.detach() if old is None else old,
            advantage_B=whole.advantage_B[self.rows],
            mask_BT=mask_BT,
            ref_logp_BT=cut(whole.ref_logp),
            sampler_logp_BT=sampler,
            correction_B1=ratio,
            policy_BT=cut(whole.policy_mask),
            counted_B=self.counted_B,
        )

    def inputs(self) -> tuple[Tensor, Tensor]:
        """``input_ids`` and ``attention_mask``, each (b, prompt + completion) without columns that are all padding."""
        whole, width = self.rank_batch, self.prompt_width
        ids = torch.cat([whole.prompt_ids[self.rows, -width:], self.completion(whole.completion_ids)], 1)
        return ids, torch.cat([whole.prompt_mask[self.rows, -width:], self.completion(whole.completion_mask)], 1)

    def seen(self) -> dict[str, Any]:
        """Arguments of TRL's forward for the pictures of these rows alone; empty for a model of text."""
        whole = self.rank_batch
        if whole.pictures is None:
            return {}
        prompts = [whole.prompt_tokens[place] for place in self.places]
        return whole.pictures.select(self.places).inputs(prompts, self.prompt_width, self.completion_width)


@torch.no_grad()
def fill_tokens(
    rank_batch: RankBatch, micro_batches: Iterable[MicroBatch], value: Callable[[MicroBatch], Tensor]
) -> Tensor:
    """(B, T) float32 values of the tokens of the rows in ``micro_batches``, each (b, width) there; 0 elsewhere."""
    ids = rank_batch.completion_ids
    found_BT = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    for batch in micro_batches:
        found_BT[batch.rows, : batch.completion_width] = value(batch).float()
    return found_BT
