"""``DPPOSFTTrainer``: TRL's ``SFTTrainer`` with rows drawn by their recorded scores, weighted, in dense rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments
from trl.data_utils import get_dataset_column_names
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from dppo.errors import ConfigError
from dppo.methods import RowMethod
from dppo.objective import weighted_sum
from dppo.packing.forward import Scored
from dppo.pruning import uncertainty
from dppo.pruning.recorded import mean_loss
from dppo.settings import RowSettings, described
from dppo.trl.batch import MicroBatch
from dppo.trl.rows.config import RowConfig
from dppo.trl.rows.data import ReadRow, StepRows, trained
from dppo.trl.rows.trainer import RowTrainer
from dppo.typed import check
from dppo.types import Draw

ANSWERS = {
    "completion": "row['completion']",
    "messages": "row['messages'][-1]['content']",
    "labels": "any(label >= 0 for label in row['labels'][1:])",
    "input_ids": "len(row['input_ids']) > 1",
}
"""By column of a dataset, the condition under which a row has a token to train on."""


@dataclass
class DPPOSFTConfig(RowConfig, SFTConfig):
    """Arguments of ``DPPOSFTTrainer``: those of ``RowSettings``, and all of TRL's ``SFTConfig``, with their meaning.

    Raises:
        ConfigError: at construction, with all fields that are out of range, biased or not served by this trainer.
    """

    def served(self) -> dict[str, bool]:
        return super().served() | {
            f"loss_type={self.loss_type!r} is not served. Use loss_type: nll.": self.loss_type in ("nll", "dft"),
            "label_smoothing_factor needs all logits. Use 0.0.": not self.label_smoothing_factor,
            "average_tokens_across_devices: a step is a mean over the tokens of all processes. Use "
            "average_tokens_across_devices: true.": self.world_size == 1 or self.average_tokens_across_devices,
        }


class DPPOSFTTrainer(RowTrainer, SFTTrainer):
    """Supervised fine-tuning that skips rows by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPOSFTConfig`` in place of ``SFTTrainer`` and ``SFTConfig``. As in TRL, a
    step is the mean over the trained tokens of all its rows. Their number is known before the draw, so the expected
    gradient stays. Evaluation is TRL's own.

    Args:
        model: as for ``SFTTrainer``, like all arguments that are not listed.
        args: a ``DPPOSFTConfig``; transformers' ``TrainingArguments`` are made into one, as TRL does.
        data_collator: must be None: rows are laid out after the draw.
        train_dataset: as for ``SFTTrainer``; all rows of a stream are trained on.
        method: a complete ``RowMethod``, or a name as for ``DPPOSFTConfig(method=...)``; None for that of ``args``.

    Raises:
        ConfigError: rows are to be dropped from a stream, or a model or option is not served.
        DataError: the dataset is empty, or rows have no token to train on.
        CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
    """

    args: DPPOSFTConfig
    ref_model = None

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
        if data_collator is not None or kwargs.get("compute_loss_func") is not None:
            unserved = "data_collator and compute_loss_func are not served"
            raise ConfigError(f"{unserved}. Leave them out: trl.SFTTrainer has them.")
        if args is None:
            args = DPPOSFTConfig("dppo-output")
        elif isinstance(args, TrainingArguments) and not isinstance(args, DPPOSFTConfig):  # made into ours, as TRL does
            given = args.to_dict()  # it hides the values of fields with "token" in their names, such as hub_token
            args = DPPOSFTConfig(**{name: getattr(args, name) if "token" in name else given[name] for name in given})
        check("args", args, DPPOSFTConfig, "DPPOSFTConfig in place of SFTConfig: it takes the same arguments.")
        formatted = kwargs.get("formatting_func") is not None  # then columns do not show the answer
        had = () if formatted else getattr(train_dataset, "column_names", None) or ()
        of_text = {args.dataset_text_field: f"row[{args.dataset_text_field!r}]"}
        answer = next((answer for name, answer in (ANSWERS | of_text).items() if name in had), "")
        self._untrained = "have no token to train on: their completion is empty, or beyond max_length. Leave them out"
        self._untrained += f": dataset.filter(lambda row: {answer})." if answer else " of the dataset."
        super().__init__(model, args, train_dataset, method, **kwargs)

    def prepared(self, dataset: Any) -> tuple[Any, tuple[str, ...]]:
        columns = get_dataset_column_names(dataset)
        if "input_ids" not in columns:
            problem = f"the dataset has the columns {', '.join(columns)} and no input_ids"
            raise ConfigError(f"{problem}: pictures are not served by DPPOSFTTrainer. Use trl.SFTTrainer.")
        return dataset, tuple(name for name in ("input_ids", "labels", "seq_lengths") if name in columns)

    def read(self, row: Mapping[str, Any]) -> ReadRow:
        ids = row["input_ids"]
        labels = row.get("labels", ids)  # without labels, after skip_prepare_dataset, TRL trains on every token
        # Of one sequence, or of those that TRL has packed.
        ends = [0, *accumulate(row.get("seq_lengths") or [len(ids)])]
        parts = [(torch.tensor(ids[at:end]), torch.tensor(labels[at:end])) for at, end in pairwise(ends)]
        found = [trained(*part, whole=self.aux_loss_enabled) for part in parts]
        sequences = [each for each in found if each is not None]
        count = sum(int(each.scored.sum()) for each in sequences)
        problem = "" if count or self.args.packing else self._untrained
        return ReadRow(sequences=sequences, ids=(ids, labels), counts=(len(ids), len(ids), count), problem=problem)

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        if "attention_mask" in batch:
            kept = [(line, mask.bool()) for line, mask in enumerate(batch["attention_mask"])]
        else:  # without padding, one sequence after the other
            of_token = batch["seq_idx"][0]
            kept = [(0, of_token == each) for each in of_token.unique()]
        names = ("input_ids", "labels")
        return [{name: batch[name][line][mask].tolist() for name in names} for line, mask in kept]

    def shares(self, rows: StepRows, draw: Draw) -> Tensor:
        """(1, N) one over the trained tokens of the step."""
        return self.method.shares(draw, rows.trained_N)[None]

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted negative log-likelihood over the step's tokens, and the score of each row."""
        logp_BT, mask_BT = scored.logp_BT, batch.completion(batch.rank_batch.loss_mask)
        if scored.metrics is not None:
            for name, of_head in (("entropy", "entropy"), ("mean_token_accuracy", "is_top1")):
                value_B = (scored.metrics[of_head] * mask_BT).sum(1)
                self.step_metrics.add(name, value_B, self.rows.trained_N, batch.weight, batch.rows)
        loss_BT = -logp_BT
        if self.args.loss_type == "dft":
            loss_BT = loss_BT * logp_BT.detach().exp()
        loss = weighted_sum(loss_BT, mask_BT, batch.weight * share_KB[0], per_sequence=False)
        logp_BT = logp_BT.detach()
        if self.method.score == "norm":
            return loss, uncertainty(logp_BT, mask_BT).square()
        tokens_B = self.rows.trained_N[self.places_of(batch)].float().to(logp_BT).clamp(min=1)
        return loss, mean_loss(logp_BT, mask_BT) * mask_BT.sum(1) / tokens_B


DPPOSFTConfig.__doc__ = described(DPPOSFTConfig, RowSettings)
