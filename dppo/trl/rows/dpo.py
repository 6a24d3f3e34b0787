"""``DPPODPOTrainer``: TRL's ``DPOTrainer`` with pairs drawn by their recorded margins, weighted, in dense rows."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.errors import ConfigError, DataError
from dppo.methods import RowMethod
from dppo.packing.forward import Scored
from dppo.settings import UPDATE, RowSettings, described, setting
from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.state import fingerprint
from dppo.trl.hooks import reference_model
from dppo.trl.rows.data import (
    RowBatch,
    RowConfig,
    Rows,
    Sequence,
    check_dataset,
    content_key,
    prepared_rows,
    trained,
)
from dppo.trl.rows.metrics import OF_TOKENS
from dppo.trl.rows.pairs import (
    OF_ANSWERS,
    OF_BATCHES,
    OF_PAIRS,
    SERVED_LOSSES,
    MarginReward,
    Pairs,
    pair_losses,
    weights_of,
)
from dppo.trl.rows.trainer import RowTrainer
from dppo.trl.safeguards import models_named
from dppo.trl.served import check_overrides
from dppo.typed import check
from dppo.types import Draw

OF_LOGITS = ("logits/chosen", "logits/rejected")
PICTURES = "datasets of pictures are not served by DPPODPOTrainer. Use trl.DPOTrainer."
IF_WHOLE = "row['prompt'] and row['chosen'] and row['rejected']"
IF_SHARED = "row['chosen'][:1] == row['rejected'][:1]"
IF_TEXTS_SHARED = "row['chosen'].split()[:1] == row['rejected'].split()[:1]"
"""Pairs whose answers begin alike: that is their prompt where none has a column of its own."""


@dataclass
class DPPODPOConfig(RowConfig, DPOConfig):
    """Arguments of ``DPPODPOTrainer``: those of ``RowSettings``, and all of TRL's ``DPOConfig``, with their meaning.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option this trainer does not serve (with what to use instead).
    """

    margin_scale: float = setting(
        1.0,
        "With `margin_reward`: how far, in its unit, from the mean margin of the pairs a weight is well "
        "below or above 1, > 0.",
        range="(0, inf)",
        remembered=UPDATE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        losses, beta = list(self.loss_type or []), self.beta
        unserved = [name for name in losses if name not in SERVED_LOSSES]
        refused = [
            (
                bool(unserved) or not losses,
                f"loss_type={losses}: {', '.join(OF_BATCHES)} sort the pairs of a micro-batch, so there is no term "
                f"for each pair. Write loss_type: sigmoid, or one of {', '.join(SERVED_LOSSES)}.",
            ),
            (
                not (isinstance(beta, int | float) and 0 < beta < math.inf),
                f"beta={beta!r} must be a number > 0. Write beta: 0.1.",
            ),
            (
                self.use_weighting and "sft" in losses,
                "use_weighting with the sft loss: TRL multiplies two means over a micro-batch. Use one of them.",
            ),
            (self.truncation_mode != "keep_start", "truncation_mode: only keep_start is served."),
            (self.layout == "packed", "layout='packed' tears pairs apart, which share a prompt. Write layout: rows."),
        ]
        self.check_settings(refused)


class PairBatch(RowBatch):
    """A batch whose sequences are pairs, the preferred answer before the other: they stay in one forward pass."""

    together = 2

    @cached_property
    def prompt_group(self) -> list[int]:
        """(B,) the number of each sequence's pair."""
        return [place // 2 for place in range(len(self.prompt_ids))]


class DPPODPOTrainer(RowTrainer, DPOTrainer):
    """Training on preferences that skips pairs by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPODPOConfig`` in place of ``DPOTrainer`` and ``DPOConfig``. A step is,
    as TRL's, the mean of the means of its micro-batches: over pairs, and of the ``sft`` term over their preferred
    answers' tokens. What each pair is divided by is known before the draw.

    Args:
        model: as for ``DPOTrainer``.
        ref_model: as for ``DPOTrainer``.
        args: a ``DPPODPOConfig``.
        data_collator: must be None: pairs are laid out after the draw.
        train_dataset: as for ``DPOTrainer``; a streamed one is trained on whole, less pairs without a prompt or answer.
        margin_reward: a reward function of TRL's signature. Pairs that it hardly tells apart then weigh more, others
            less: MADPO-style. Asked once for all pairs, with the dataset's other columns; not ``async``.
        method: a ``RowMethod`` that is used as it is, or a name as for ``DPPODPOConfig(method=...)``; None for the
            method of ``args``.
        **kwargs: whatever else ``DPOTrainer`` takes.

    Raises:
        ConfigError: for a streamed dataset that pairs are to be dropped from, an unsupported model or option, with
            what to use instead.
        DataError: the dataset is empty, or pairs have equal answers or no prompt.
        RewardError: ``margin_reward`` raises, or gives something that is not one finite number per answer.
        CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
    """

    args: DPPODPOConfig
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    batch_kind = PairBatch
    together = 2
    figure_names = (*OF_TOKENS, *OF_LOGITS, *OF_PAIRS)

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: DPPODPOConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *,
        margin_reward: MarginReward | None = None,
        method: RowMethod | str | None = None,
        **kwargs: Any,
    ) -> None:
        args = DPPODPOConfig("dppo-output") if args is None else args
        check("args", args, DPPODPOConfig, "DPPODPOConfig in place of DPOConfig: it takes the same arguments.")
        check("method", method, RowMethod | str | None, 'DPPODPOTrainer(..., method=ROW_METHODS["uniform"]).')
        args = args if method is None else args.with_method(method)
        check_overrides(type(self))
        given = check_dataset(train_dataset, "DPPODPOTrainer", args.row_prune_rate)
        if data_collator is not None:
            raise ConfigError("data_collator is not served: pairs are laid out after the draw. Leave it out.")
        if margin_reward is not None and given is None:
            raise ConfigError("margin_reward is asked once for all pairs, and a stream has no end. Leave it out.")
        self._whole = IF_WHOLE
        if given and "prompt" not in train_dataset.column_names:
            self._whole = IF_TEXTS_SHARED if isinstance(train_dataset[0]["chosen"], str) else IF_SHARED
        with models_named(model, ref_model):
            super().__init__(model, ref_model, args, train_dataset=train_dataset, **kwargs)
        if given is None:
            self.train_dataset = cast(Any, self.train_dataset).filter(_is_whole)
        prepared: Any = self.train_dataset
        if given is not None and self.columns[0] not in prepared.column_names:
            raise ConfigError(PICTURES)
        if args.precompute_ref_log_probs:
            self.columns = (*self.columns, "ref_chosen_logps", "ref_rejected_logps")
        rows = None if given is None else self.measured(prepared_rows(prepared, self.columns, given, args.max_length))
        longest = 0 if rows is None else int(rows.tokens.max())
        if args.max_tokens_per_row is not None and args.max_tokens_per_row < longest:
            raise ConfigError(f"a pair has {longest} tokens, and stays in one row. Set max_tokens_per_row: {longest}.")
        self.start_rows(rows, method)
        self._margin_weight = np.ones(1)
        if rows is not None:
            processor: Any = self.processing_class
            tokenizer = getattr(processor, "tokenizer", processor)  # that of a vision model has one for texts
            texts = prepared.with_format(None)
            self._margin_weight = weights_of(margin_reward, texts, args.margin_scale, tokenizer.eos_token)

    def sequences_of(self, row: Mapping[str, Any]) -> list[Sequence]:
        """The two sequences of a pair, as TRL's collator truncates them."""
        found = []
        for answer in (row["chosen_ids"], row["rejected_ids"]):
            ids = [*row["prompt_ids"], *answer][: self.args.max_length]
            labels = [-100] * len(row["prompt_ids"]) + ids[len(row["prompt_ids"]) :]
            found.append(trained(ids, labels))
        return [each for each in found if each is not None]

    def measured(self, rows: Any, *, streamed: bool = False) -> Rows:
        """As of all trainers on rows; tokens have the prompt of a pair once."""
        found = [self.sequences_of(row) for row in rows]
        if not streamed:
            empty = [place for place, each in enumerate(found) if len(each) < 2 or not rows[place]["prompt_ids"]]
            alike = [
                place for place, each in enumerate(found) if len({tuple(one.completion.tolist()) for one in each}) == 1
            ]
            limit = self.args.max_length
            _refuse(empty, len(found), "no prompt or no answer", self._whole)
            longer = "" if limit is None else f", or raise max_length={limit}"
            what = "equal answers, as far as max_length goes, and no gradient"
            if not set(self.args.loss_type) & set(OF_ANSWERS):
                _refuse(alike, len(found), what, "row['chosen'] != row['rejected']", longer)
        counts = [[len(pair[0].prompt), *(len(each.completion) for each in pair)] for pair in found]
        prompt, chosen, rejected = np.array(counts, float).T
        names = ("prompt_ids", "chosen_ids", "rejected_ids")
        return Rows(
            rows=rows,
            identities=np.array([content_key(*(row[name] for name in names)) for row in rows], np.uint64),
            tokens=prompt + chosen + rejected,
            attended=2 * prompt + chosen + rejected,
            trained=chosen,
        )

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The pairs of TRL's batch, whose first half has the preferred answers."""
        answer_BT = batch["completion_mask"].bool()
        prompt_BT = batch["attention_mask"].bool() & ~answer_BT
        ids_BT, pairs = batch["input_ids"], len(answer_BT) // 2
        parts = {"prompt_ids": (prompt_BT, 0), "chosen_ids": (answer_BT, 0), "rejected_ids": (answer_BT, pairs)}
        return [
            {name: ids_BT[at + pair][mask[at + pair]].tolist() for name, (mask, at) in parts.items()}
            for pair in range(pairs)
        ]

    def shares(self, trained_N: Tensor, part_N: Tensor, draw: Draw) -> Tensor:
        """(2, N) of a mean over pairs and of one over the preferred answers' tokens, each of TRL's micro-batches."""
        counts = (torch.ones(len(trained_N)), trained_N)
        return torch.stack([self.method.shares(draw, count_N, part_N) for count_N in counts])

    @property
    def metrics_needed(self) -> bool:
        """WPO's weights are made of them."""
        return self.use_weighting

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted losses of pairs, TRL's own, and what both answers add to the score of their pair."""
        mask_BT, logp_BT = batch.completion(batch.rank_batch.loss_mask), scored.logp_BT
        with torch.no_grad():  # without pairs too: a model in shards is gathered by all ranks together
            reference = self._reference(batch)
        if batch.idle:  # a rank without pairs forwards one sequence
            return logp_BT.sum() * 0.0, torch.zeros(len(batch.places))
        metrics = scored.metrics or {}
        pairs = Pairs(logp_BT=logp_BT, mask_BT=mask_BT, log_sum_sq_BT=metrics.get("log_sum_sq_probs"), **reference)
        loss_P, of_pairs = pair_losses(self, pairs)
        if not self._streamed:
            margin_P = torch.from_numpy(self._margin_weight[self._rows_of_pairs(batch)])
            loss_P = loss_P * margin_P.to(loss_P.device, loss_P.dtype, non_blocking=True)
        (pair_P, token_P), weight_P = share_KB[:, ::2], batch.weight[::2]
        sft = dict(zip(self.loss_types, self.loss_weights, strict=True)).get("sft", 0.0)
        # In units of a pair's loss: what it is divided by depends on its micro-batch, and its score does not.
        total_P = loss_P - sft * (token_P / pair_P) * logp_BT[::2].sum(1)
        self._add_metrics(batch, scored, of_pairs)
        return (weight_P * pair_P * total_P).sum(), self._contributions(total_P, logp_BT)

    def _rows_of_pairs(self, batch: MicroBatch) -> list[int]:
        """Rows of the dataset that the pairs of a micro-batch are."""
        rows = self._block.numpy()
        return [int(rows[self._place_B[place]]) for place in batch.places[::2]]

    def _contributions(self, total_P: Tensor, logp_BT: Tensor) -> Tensor:
        """(2P,) what each answer adds to the score of its pair: squared slopes by squared norms, or the loss."""
        if self.method.score == "loss":
            return torch.stack([total_P.detach().clamp(min=0.0), torch.zeros_like(total_P)], 1).flatten()
        (slope_BT,) = torch.autograd.grad(total_P.sum(), logp_BT, retain_graph=True)
        return (slope_BT * (1 - logp_BT.detach().exp())).square().sum(1)

    def _add_metrics(self, batch: MicroBatch, scored: Scored, of_pairs: Mapping[str, Tensor]) -> None:
        """Add pairs to TRL's metrics."""
        one_P = torch.ones(len(batch.places) // 2)
        for name, value_P in of_pairs.items():
            self.add_part_metric(batch, name, value_P.detach(), one_P, every=2)
        if scored.metrics is None:
            return
        mask_BT, found = batch.completion(batch.rank_batch.loss_mask), scored.metrics
        count_B = mask_BT.sum(1)
        entropy_P2 = (found["entropy"] * mask_BT).sum(1).view(-1, 2)
        self.add_part_metric(batch, "entropy", entropy_P2.sum(1), count_B.view(-1, 2).sum(1), every=2)
        for side, name in enumerate(OF_LOGITS):
            value_BT = found["mean_logits"] * mask_BT
            self.add_part_metric(batch, name, value_BT[side::2].sum(1), count_B[side::2], every=2)
        right_BT = found["is_top1"] * mask_BT
        self.add_part_metric(batch, "mean_token_accuracy", right_BT[::2].sum(1), count_B[::2], every=2)

    @cached_property
    def content(self) -> str:
        """A fingerprint of all pairs and their weights."""
        return fingerprint(self.source.scores.identities, self._margin_weight)

    def _reference(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Log-probabilities under the reference, as ``Pairs`` has them; of one sequence they mean nothing."""
        if len(self.columns) > 3:
            rows = self._rows.rows[self._rows_of_pairs(batch)]
            both = [rows["ref_chosen_logps"], rows["ref_rejected_logps"]]
            return {"ref_P2": torch.tensor(both).to(batch.weight.device, non_blocking=True).T}
        with reference_model(self) as model:
            return {"ref_BT": self.forwards(model, batch).logp_BT}


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a pair of a stream can be trained on; a warning says that others are left out."""
    if DPPODPOTrainer.columns[0] not in row:
        raise ConfigError(PICTURES)
    whole = all(len(row[name]) for name in DPPODPOTrainer.columns)
    if not whole:
        warnings.warn(
            "pairs of the stream have no prompt or no answer, and are left out. To leave them out yourself: "
            f"dataset.filter(lambda row: {IF_WHOLE})",
            stacklevel=2,
        )
    return whole


def _refuse(places: list[int], rows: int, what: str, advice: str, longer: str = "") -> None:
    """Refuse pairs that cannot be trained on, where there are any."""
    if places:
        raise DataError(
            f"{len(places)} of {rows} pairs have {what} (from 0: {', '.join(map(str, places[:5]))}). Leave "
            f"them out: dataset.filter(lambda row: {advice}){longer}"
        )


DPPODPOConfig.__doc__ = described(DPPODPOConfig, RowSettings)
