"""``DPPOSFTTrainer``: TRL's ``SFTTrainer`` with rows drawn by their recorded scores, weighted, in dense rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainingArguments
from trl.data_utils import get_dataset_column_names
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from dppo.errors import ConfigError, DataError
from dppo.methods import RowMethod
from dppo.objective import weighted_sum
from dppo.packing.forward import Scored
from dppo.pruning import mean_loss, uncertainty
from dppo.settings import RowSettings, described
from dppo.trl.batch import MicroBatch
from dppo.trl.rows.data import RowConfig, Rows, Sequence, check_dataset, content_key, prepared_rows, trained
from dppo.trl.rows.trainer import RowTrainer
from dppo.trl.safeguards import models_named
from dppo.trl.served import check_overrides
from dppo.typed import check
from dppo.types import Draw


@dataclass
class DPPOSFTConfig(RowConfig, SFTConfig):
    """Arguments of ``DPPOSFTTrainer``: those of ``RowSettings``, and all of TRL's ``SFTConfig``, with their meaning.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option this trainer does not serve (with what to use instead).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        refused = [
            (self.loss_type not in ("nll", "dft"), f"loss_type={self.loss_type!r} is not served. Use loss_type: nll."),
            (bool(self.label_smoothing_factor), "label_smoothing_factor needs all logits. Use 0.0."),
            (
                self.world_size > 1 and not self.average_tokens_across_devices,
                "average_tokens_across_devices: a step is a mean over the tokens of all processes. Use "
                "average_tokens_across_devices: true.",
            ),
        ]
        self.check_settings(refused)


class DPPOSFTTrainer(RowTrainer, SFTTrainer):
    """Supervised fine-tuning that skips rows by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPOSFTConfig`` in place of ``SFTTrainer`` and ``SFTConfig``. A step is the
    mean over the trained tokens of all its rows, as TRL's: their number is known before the draw, so dropping rows
    leaves the expected gradient as it is. Evaluation is TRL's own.

    Args:
        model: as for ``SFTTrainer``.
        args: a ``DPPOSFTConfig``; transformers' ``TrainingArguments`` are made into one, as TRL does.
        data_collator: must be None: rows are laid out after the draw.
        train_dataset: as for ``SFTTrainer``; a streamed one is trained on whole.
        method: a ``RowMethod`` that is used as it is, or a name as for ``DPPOSFTConfig(method=...)``; None for the
            method of ``args``.
        **kwargs: whatever else ``SFTTrainer`` takes.

    Raises:
        ConfigError: for a streamed dataset that rows are to be dropped from, an unsupported model or option, with
            what to use instead.
        DataError: the dataset is empty, or rows have no token to train on.
        CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
    """

    args: DPPOSFTConfig
    columns = ("input_ids", "labels")
    ref_model = None
    """There is none."""

    def __init__(
        self,
        model: Any,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *,
        method: RowMethod | str | None = None,
        **kwargs: Any,
    ) -> None:
        own = _own(args)
        check("method", method, RowMethod | str | None, 'DPPOSFTTrainer(..., method=ROW_METHODS["infobatch"]).')
        own = own if method is None else own.with_method(method)
        check_overrides(type(self))
        given = check_dataset(train_dataset, "DPPOSFTTrainer", own.row_prune_rate)
        if data_collator is not None or kwargs.get("compute_loss_func") is not None:
            raise ConfigError(
                "data_collator and compute_loss_func are not served: rows are laid out after the draw, and their loss "
                "is weighted. Leave them out, or use trl.SFTTrainer."
            )
        formatted = kwargs.get("formatting_func") is not None  # its columns are another's business
        had = () if formatted else getattr(train_dataset, "column_names", None) or ()
        of_text = {own.dataset_text_field: f"row[{own.dataset_text_field!r}]"}
        self._answer = next((answer for name, answer in (ANSWERS | of_text).items() if name in had), "")
        with models_named(model):
            super().__init__(model, own, train_dataset=train_dataset, **kwargs)
        prepared: Any = self.train_dataset
        columns = get_dataset_column_names(prepared)
        if "input_ids" not in columns:
            raise ConfigError(
                f"the dataset has the columns {', '.join(columns)} and no input_ids: pictures, and "
                "skip_prepare_dataset without token ids, are not served by DPPOSFTTrainer. Use trl.SFTTrainer."
            )
        # skip_prepare_dataset may leave labels out: TRL then trains on every token
        self.columns = tuple(name for name in ("input_ids", "labels", "seq_lengths") if name in columns)
        rows = None if given is None else prepared_rows(prepared, self.columns, given, own.max_length)
        self.start_rows(None if rows is None else self.measured(rows), method)

    def sequences_of(self, row: Mapping[str, Any]) -> list[Sequence]:
        """The sequence of a row, or those that TRL has packed into it."""
        ids, labels, whole = row["input_ids"], _labels(row), self.aux_loss_enabled
        found, start = [], 0
        for tokens in row.get("seq_lengths") or [len(ids)]:
            part = slice(start, start + tokens)
            found.append(trained(ids[part], labels[part], whole=whole))
            start += tokens
        return [each for each in found if each is not None]

    def measured(self, rows: Any, *, streamed: bool = False) -> Rows:
        """As of all trainers on rows; tokens are all of a row."""
        identities, tokens, counts = [], [], []
        for row in rows:
            identities.append(content_key(row["input_ids"], _labels(row)))
            tokens.append(len(row["input_ids"]))
            counts.append(sum(int(each.scored.sum()) for each in self.sequences_of(row)))
        if not (streamed or self.args.packing):
            _refuse_untrained(counts, self._answer)
        tokens = np.array(tokens, np.float64)
        return Rows(
            rows=rows,
            identities=np.array(identities, np.uint64),
            tokens=tokens,
            attended=tokens,
            trained=np.array(counts, np.float64),
        )

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The sequences of TRL's batch, padded or one after the other."""
        if "attention_mask" in batch:
            kept = [(line, mask.bool()) for line, mask in enumerate(batch["attention_mask"])]
        else:
            of_token = batch["seq_idx"][0]
            kept = [(0, of_token == each) for each in of_token.unique()]
        names = ("input_ids", "labels")
        return [{name: batch[name][line][mask].tolist() for name in names} for line, mask in kept]

    def shares(self, trained_N: Tensor, part_N: Tensor, draw: Draw) -> Tensor:
        """(1, N) one over the trained tokens of the step."""
        return torch.full((1, len(trained_N)), 1 / self.method.denominator(draw, trained_N))

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted negative log-likelihood over the step's tokens, and the score of each row."""
        self.add_token_metrics(batch, scored)
        logp_BT, mask_BT = scored.logp_BT, batch.completion(batch.rank_batch.loss_mask)
        loss_BT = -logp_BT
        if self.args.loss_type == "dft":
            loss_BT = loss_BT * logp_BT.detach().exp()
        loss = weighted_sum(loss_BT, mask_BT, batch.weight * share_KB[0], per_sequence=False)
        logp_BT = logp_BT.detach()
        if self.method.score == "norm":
            return loss, uncertainty(logp_BT, mask_BT).square()
        tokens_B = self._trained_B[batch.rows].to(logp_BT).clamp(min=1)
        return loss, mean_loss(logp_BT, mask_BT) * mask_BT.sum(1) / tokens_B


def _own(args: Any) -> DPPOSFTConfig:
    """The arguments of a run, made into ours where they are transformers' or TRL's own, as TRL does."""
    if args is None:
        return DPPOSFTConfig("dppo-output")
    if isinstance(args, TrainingArguments) and not isinstance(args, DPPOSFTConfig):
        given = args.to_dict()  # it hides tokens, of the hub and of the tokenizer alike
        return DPPOSFTConfig(**{name: getattr(args, name) if "token" in name else given[name] for name in given})
    check("args", args, DPPOSFTConfig, "DPPOSFTConfig in place of SFTConfig: it takes the same arguments.")
    return args


def _labels(row: Mapping[str, Any]) -> list[int]:
    """Of a row of TRL's prepared dataset; as its collator, every token where it has none."""
    return row.get("labels", row["input_ids"])


ANSWERS = {
    "completion": "row['completion']",
    "messages": "row['messages'][-1]['content']",
    "labels": "any(label >= 0 for label in row['labels'][1:])",
    "input_ids": "len(row['input_ids']) > 1",
}
"""By the column that a dataset may have, what of a row is trained on."""


def _refuse_untrained(counts: list[int], answer: str) -> None:
    """Refuse rows without a trained token, by the trained tokens of all; ``answer`` is what of a row is trained on."""
    empty = [place for place, count in enumerate(counts) if not count]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(counts)} rows have no token to train on (from 0: {', '.join(map(str, empty[:5]))}): "
            "their completion is empty, or beyond max_length. Leave them out"
            f"{f': dataset.filter(lambda row: {answer})' if answer else ' of the dataset'}."
        )


DPPOSFTConfig.__doc__ = described(DPPOSFTConfig, RowSettings)
