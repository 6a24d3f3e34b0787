"""What a trainer on rows is given: its settings and its dataset, checked, and the sequences of a step in tokens."""

import copy
import hashlib
from dataclasses import dataclass
from typing import Any, Self, cast

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dppo.errors import ConfigError, DataError, raise_problems
from dppo.methods import RowMethod
from dppo.methods.from_settings import row_method, row_rate
from dppo.methods.own import ROW_DECIDED, is_own, row_method_named, settle
from dppo.methods.settings import ROW_CHOICES, bias_problems, row_problems, setting_problems
from dppo.packing.rows import UNSCORED
from dppo.pruning.level import floor_problems
from dppo.settings import DEFAULT_METHOD, RowSettings
from dppo.trl.batch import PADDED, RankBatch
from dppo.trl.served import DEEPSPEED, ranges_of, unserved_in_rows
from dppo.typed import NamedFields


@dataclass
class RowConfig(NamedFields, RowSettings):
    """``RowSettings`` with their checks."""

    def __post_init__(self) -> None:
        problems = [DEEPSPEED] if cast(Any, self).deepspeed else []  # before transformers looks for the package
        raise_problems(type(self).__name__, problems + setting_problems(self, ROW_CHOICES, ranges_of(self)))
        cast(Any, super()).__post_init__()

    def build_method(self, own: RowMethod | None = None) -> RowMethod:
        """The ``RowMethod`` of a run: of a preset and these settings, or the method of one's own as it is.

        ``own`` is the method that ``with_method`` was given; None for the one that ``method`` names.
        """
        if own is not None:
            return own
        return row_method_named(self.method) if is_own(self.method) else row_method(self)

    def with_method(self, method: RowMethod | str) -> Self:
        """A copy for another method. Settings that were left out get its values.

        Raises:
            ConfigError: the configuration names another method, or a setting contradicts this one.
        """
        name, where = method if isinstance(method, str) else method.name, type(self).__name__
        if self.method not in (DEFAULT_METHOD, method):
            raise_problems(where, [f"method={name!r} beside args.method={self.method!r}. Leave method out of {where}."])
        other = copy.copy(self)
        other.method = name
        if isinstance(method, str):
            raise_problems(where, setting_problems(other, ROW_CHOICES, ranges_of(other)))
        other._check_method(other.build_method() if is_own(name) else method if isinstance(method, RowMethod) else None)
        return other

    def check_settings(self, refused: list[tuple[bool, str]]) -> None:
        """Check fields of ``RowSettings`` against each other, and what is served of TRL's.

        ``refused`` says whether an option of TRL's is not served, and why.
        """
        problems = [sentence for wrong, sentence in [*_refused_of_every_trainer(self), *refused] if wrong]
        raise_problems(type(self).__name__, problems)
        self._check_method(self.build_method() if is_own(self.method) else None)

    def _check_method(self, own: RowMethod | None) -> None:
        where, problems = type(self).__name__, list[str]()
        if own is not None:
            problems = settle(self, own, {"row_prune_rate": own.rows.rate, "row_score": own.score}, ROW_DECIDED)
        else:
            problems = row_problems(self)
        if own is None and self.prune_floor is not None:
            rate = row_rate(self)
            problems += floor_problems(self.prune_floor, rate, "prune_floor", f"row_prune_rate={rate:g} keeps")
        raise_problems(where, problems)
        raise_problems(where, bias_problems(self, self.build_method(own).biases))


def _refused_of_every_trainer(args: Any) -> list[tuple[bool, str]]:
    """Options of every trainer of TRL's that would be another thing on dense rows, or nothing at all."""
    return [
        *unserved_in_rows(args),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size: what bounds memory is max_tokens_per_row, which leaves steps as they are. Use "
            "auto_find_batch_size: false.",
        ),
        (
            args.include_num_input_tokens_seen not in ("no", False),
            "include_num_input_tokens_seen: num_tokens is logged. Use include_num_input_tokens_seen: no.",
        ),
        (
            args.train_sampling_strategy not in ("random", "sequential"),
            f"train_sampling_strategy={args.train_sampling_strategy!r} makes batches of like lengths, which dense rows "
            "do not need. Use train_sampling_strategy: random.",
        ),
    ]


def check_dataset(dataset: Any, name: str, rate: float | None) -> int | None:
    """Rows of a training set; None for a streamed one, of which rows can be trained on and none can be dropped.

    ``rate`` is ``row_prune_rate`` as given, None where it is left out.
    """
    if isinstance(dataset, datasets.Dataset):
        if not len(dataset):
            raise DataError("the dataset has 0 rows, and at least 1 is needed. Give it rows to train on.")
        return len(dataset)
    if isinstance(dataset, datasets.IterableDataset):
        if rate:
            raise ConfigError(
                f"train_dataset is streamed, and row_prune_rate={rate:g} drops rows by their last visit: a stream has "
                "none. Write row_prune_rate: 0, or load it with streaming=False."
            )
        return None
    advice = "Write train_dataset=datasets.Dataset.from_list(rows)."
    if isinstance(dataset, dict):
        advice = f"Take one of its parts: train_dataset=dataset[{next(iter(dataset), 'train')!r}]."
    if dataset is None:
        raise ConfigError(f"`train_dataset` is required. {advice}")
    raise ConfigError(f"train_dataset is {type(dataset).__name__}, and {name} needs a datasets.Dataset. {advice}")


def prepared_rows(dataset: Any, columns: tuple[str, ...], given: int, max_length: int | None) -> Any:
    """Columns of a training set that TRL has prepared, with lists of numbers in its rows."""
    if not len(dataset):
        raise DataError(
            f"none of the {given} rows is left: TRL drops rows whose prompt alone fills max_length={max_length}. "
            "Raise it, or write max_length: null to cut nothing."
        )
    return dataset.with_format(None).select_columns(list(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence, cut before its first trained token and after its last: nothing behind that has a gradient."""

    prompt: Tensor
    """Token ids before the first trained one, at least one."""
    completion: Tensor
    """Token ids from the first trained one to the last."""
    scored: Tensor
    """Of these, bool: which carry loss."""


IDLE = Sequence(prompt=torch.tensor([0]), completion=torch.tensor([0]), scored=torch.tensor([True]))
"""What a process without rows forwards, at weight 0."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that steps are drawn from: those of a dataset, or of one step of a stream."""

    rows: Any
    """By place; of a stream those of other processes are None."""
    identities: np.ndarray
    """(size,) uint64 hashes of what they hold."""
    tokens: np.ndarray
    """(size,) tokens that a forward pass over each computes."""
    attended: np.ndarray
    """(size,) tokens as TRL counts them: those of every sequence, prompts included."""
    trained: np.ndarray
    """(size,) tokens that carry loss: of pairs those of the preferred answer."""

    def __len__(self) -> int:
        return len(self.identities)


def trained(ids: list[int], labels: list[int], *, whole: bool = False) -> Sequence | None:
    """A sequence from TRL's columns; None where no token is trained on.

    The first token is never trained on, since nothing predicts it. With ``whole``, tokens after the last trained one
    stay, and sequences without one: a router loss counts them.
    """
    ids_T, scored_T = torch.as_tensor(ids), torch.as_tensor(labels) != UNSCORED
    places = scored_T[1:].nonzero().flatten() + 1
    if not len(places) and not (whole and len(ids_T) > 1):
        return None
    first = int(places[0]) if len(places) else 1
    end = len(ids_T) if whole else int(places[-1]) + 1
    return Sequence(prompt=ids_T[:first], completion=ids_T[first:end], scored=scored_T[first:end])


def content_key(*parts: list[int]) -> int:
    """64 bits of a hash of what a row holds, the same in every process."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(np.asarray(part, np.int64).tobytes() + b"|")
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True, kw_only=True)
class RowBatch(RankBatch):
    """A batch whose sequences are of rows that may have several."""

    row_tokens_B: Tensor
    """(B,) tokens of each sequence's row, by which rows of a forward pass are sized."""

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sequence's row."""
        return self.row_tokens_B

    @property
    def padded_width(self) -> int:
        """Tokens of the longest sequence: its prompt and its answer are padded as one."""
        return max(map(sum, zip(self.prompt_tokens, self.completion_tokens, strict=True)))


def batch_of(
    sequences: list[Sequence],
    weight_B: Tensor,
    *,
    row_tokens: list[float],
    device: torch.device,
    kind: type[RowBatch],
) -> RowBatch:
    """Sequences as the batch of one optimizer step, for ``ForwardPasses``.

    There is at least one, and ``weight_B`` is (B,) what multiplies the loss of each. ``row_tokens`` are of the row of
    each, and ``kind`` says how they belong together.
    """
    prompts = _padded([each.prompt for each in sequences], left=True)
    completions = _padded([each.completion for each in sequences], left=False)
    loss_mask = pad_sequence([each.scored.long() for each in sequences], batch_first=True)
    none = torch.tensor(1.0)  # shares of the loss are known by row
    batch = {
        **dict(zip(PADDED, (*prompts, *completions), strict=True)),
        "loss_mask": loss_mask,
        "advantage_B": torch.ones(len(sequences)),
        "weight_UB": weight_B.float()[None],
        "denominator": none,
        "tokens": none,
        "attended": none,
        "counts_U5C": none.expand(1, 5, 1),
        "call_B": torch.zeros(len(sequences), dtype=torch.int64),
        "row_tokens_B": torch.tensor(row_tokens),
    }
    return kind(**{name: tensor.to(device) for name, tensor in batch.items()})


def _padded(parts: list[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids and the mask of tokens."""
    side = "left" if left else "right"
    ones = [torch.ones_like(part) for part in parts]
    ids, mask = (pad_sequence(each, batch_first=True, padding_side=side) for each in (parts, ones))
    return ids, mask
