"""``DPPOSFTTrainer``: TRL's ``SFTTrainer`` with rows drawn by their recorded scores, weighted, in dense rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from dppo.errors import ConfigError, DataError
from dppo.objective import weighted_sum
from dppo.pruning import confidence, mean_loss
from dppo.settings import RowSettings, described
from dppo.trl.batch import MicroBatch
from dppo.trl.rows.data import Sequence, check_dataset, content_key, prepared_rows, trained
from dppo.trl.rows.settings import RowConfig
from dppo.trl.rows.trainer import RowTrainer
from dppo.trl.safeguards import check_model
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
            (self.packing, "packing: rows are packed anew in each step, after the draw. Use packing: false."),
            (self.padding_free, "padding_free: rows are dense here in any case. Use padding_free: false."),
            (self.loss_type not in ("nll", "dft"), f"loss_type={self.loss_type!r} is not served. Use loss_type: nll."),
            (bool(self.label_smoothing_factor), "label_smoothing_factor needs all logits. Use 0.0."),
            (
                self.world_size > 1 and not self.average_tokens_across_devices,
                "average_tokens_across_devices: a step is a mean over the tokens of all processes. Use "
                "average_tokens_across_devices: true.",
            ),
            (bool(self.router_aux_loss_coef), "router_aux_loss_coef is not served. Use router_aux_loss_coef: 0.0."),
        ]
        self.check_settings(refused)


class DPPOSFTTrainer(RowTrainer, SFTTrainer):
    """Supervised fine-tuning that skips rows by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPOSFTConfig`` in place of ``SFTTrainer`` and ``SFTConfig``. A step is the
    mean over the trained tokens of all its rows, as TRL's: their number is known before the draw, so dropping rows
    leaves the expected gradient as it is. Evaluation is TRL's own.

    Args:
        model: as for ``SFTTrainer``.
        args: a ``DPPOSFTConfig``.
        data_collator: must be None: rows are laid out after the draw.
        train_dataset: as for ``SFTTrainer``, and not streamed.
        **kwargs: whatever else ``SFTTrainer`` takes.

    Raises:
        ConfigError: for a streamed dataset, an unsupported model or option, with what to use instead.
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
        args: DPPOSFTConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        args = DPPOSFTConfig("dppo-output") if args is None else args
        check("args", args, DPPOSFTConfig, "DPPOSFTConfig in place of SFTConfig: it takes the same arguments.")
        check_overrides(type(self))
        check_model(model)
        given = check_dataset(train_dataset, "DPPOSFTTrainer")
        if data_collator is not None or kwargs.get("compute_loss_func") is not None:
            raise ConfigError(
                "data_collator and compute_loss_func are not served: rows are laid out after the draw, and their loss "
                "is weighted. Leave them out, or use trl.SFTTrainer."
            )
        super().__init__(model, args, train_dataset=train_dataset, **kwargs)
        if self.aux_loss_enabled:
            raise ConfigError("the router loss of this model is not served. Set router_aux_loss_coef: 0.0.")
        prepared: Any = self.train_dataset
        if "input_ids" not in prepared.column_names:
            raise ConfigError(
                f"the dataset has the columns {', '.join(prepared.column_names)} and no input_ids: pictures, and "
                "skip_prepare_dataset without token ids, are not served by DPPOSFTTrainer. Use trl.SFTTrainer."
            )
        if "labels" not in prepared.column_names:  # skip_prepare_dataset: TRL then trains on every token
            self.columns = ("input_ids",)
        rows = prepared_rows(prepared, self.columns, given, args.max_length)
        identities, tokens, self._trained = _measured(rows)
        self.start_rows(rows, identities, tokens)

    def sequences_of(self, row: Mapping[str, Any]) -> list[Sequence]:
        """The one sequence of a row."""
        found = trained(row["input_ids"], _labels(row))
        assert found is not None, "rows without trained tokens were refused"
        return [found]

    def denominator(self, row_N: Tensor, draw: Draw) -> float:
        """Trained tokens of the step."""
        return self.method.denominator(draw, torch.from_numpy(self._trained[row_N.numpy()]))

    def loss_and_scores(self, model: Any, batch: MicroBatch, logp_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted negative log-likelihood over the step's tokens, and the score of each row."""
        mask_BT = batch.completion(batch.rank_batch.loss_mask)
        loss_BT = -logp_BT
        if self.args.loss_type == "dft":
            loss_BT = loss_BT * logp_BT.detach().exp()
        loss = weighted_sum(loss_BT, mask_BT, batch.weight, per_sequence=False) / float(batch.rank_batch.denominator)
        score = confidence if self.method.score == "norm" else mean_loss
        return loss, score(logp_BT.detach(), mask_BT)


def _labels(row: Mapping[str, Any]) -> list[int]:
    """Of a row of TRL's prepared dataset; as its collator, every token where it has none."""
    return row.get("labels", row["input_ids"])


def _measured(rows: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Identity, tokens and trained tokens of each row."""
    identities, tokens, counts = [], [], []
    for row in rows:
        labels = np.asarray(_labels(row))
        identities.append(content_key(row["input_ids"], _labels(row)))
        tokens.append(len(labels))
        counts.append(int(np.count_nonzero(labels[1:] != -100)))
    empty = [place for place, count in enumerate(counts) if not count]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(counts)} rows have no token to train on (from 0: {', '.join(map(str, empty[:5]))}): "
            "their completion is empty, or beyond max_length. Leave them out: dataset.filter(lambda row: "
            "row['completion'])."
        )
    return np.array(identities, np.uint64), np.array(tokens, np.float64), np.array(counts, np.float64)


DPPOSFTConfig.__doc__ = described(DPPOSFTConfig, RowSettings)
