"""``DPPODPOTrainer``: TRL's ``DPOTrainer`` with pairs drawn by their recorded margins, weighted, in dense rows."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.objective import sigmoid_preference
from dppo.pruning import confidence
from dppo.settings import UPDATE, RowSettings, described, setting
from dppo.trl.batch import MicroBatch, RankBatch
from dppo.trl.checkpoints.state import fingerprint
from dppo.trl.hooks import reference_model
from dppo.trl.layouts import RowLayout
from dppo.trl.rows.data import MarginReward, Sequence, check_dataset, content_key, prepared_rows, trained, weights_of
from dppo.trl.rows.settings import RowConfig
from dppo.trl.rows.trainer import RowTrainer
from dppo.trl.safeguards import check_model
from dppo.trl.served import check_overrides
from dppo.typed import check
from dppo.types import Draw


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
        losses = [self.loss_type] if isinstance(self.loss_type, str) else list(self.loss_type or [])
        beta = self.beta
        refused = [
            (
                sorted(losses) not in (["sigmoid"], ["sft", "sigmoid"]),
                f"loss_type={losses} is not served: only sigmoid, and RPO: loss_type: [sigmoid, sft].",
            ),
            (
                not (isinstance(beta, int | float) and 0 < beta < math.inf),
                f"beta={beta!r} must be a number > 0. Write beta: 0.1.",
            ),
            (self.padding_free, "padding_free: rows are dense here in any case. Use padding_free: false."),
            (self.use_weighting, "use_weighting (WPO) is not served. Use use_weighting: false."),
            (self.ld_alpha is not None, "ld_alpha is not served. Leave it out."),
            (self.f_divergence_type != "reverse_kl", "f_divergence_type: only reverse_kl is served."),
            (self.truncation_mode != "keep_start", "truncation_mode: only keep_start is served."),
            (bool(self.router_aux_loss_coef), "router_aux_loss_coef is not served. Use router_aux_loss_coef: 0.0."),
            (self.layout != "rows", f"layout={self.layout!r}: the answers of a pair share a row. Use layout: rows."),
        ]
        self.check_settings(refused)


class PairBatch(RankBatch):
    """A batch whose sequences are pairs, the preferred answer before the other: they stay in one row."""

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each sequence's pair, the prompt once."""
        prompt_B, completion_B = self.prompt_mask.sum(1), self.completion_mask.sum(1)
        return prompt_B + completion_B.view(-1, 2).sum(1).repeat_interleave(2)

    @cached_property
    def prompt_group(self) -> list[int]:
        """(B,) the number of each sequence's pair."""
        return [place // 2 for place in range(len(self.prompt_ids))]


class DPPODPOTrainer(RowTrainer, DPOTrainer):
    """Training on preferences that skips pairs by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPODPOConfig`` in place of ``DPOTrainer`` and ``DPOConfig``. A step is the
    mean over all its pairs, of the ``sft`` term over their preferred answers' tokens: both are known before the draw.

    Args:
        model: as for ``DPOTrainer``.
        ref_model: as for ``DPOTrainer``.
        args: a ``DPPODPOConfig``.
        data_collator: must be None: pairs are laid out after the draw.
        train_dataset: as for ``DPOTrainer``, and not streamed.
        margin_reward: a reward function of TRL's signature. Pairs that it hardly tells apart then weigh more, others
            less: MADPO-style. Asked once for all pairs, with the dataset's other columns; not ``async``.
        **kwargs: whatever else ``DPOTrainer`` takes.

    Raises:
        ConfigError: for a streamed dataset, an unsupported model or option, with what to use instead.
        DataError: the dataset is empty, or pairs have equal answers or no prompt.
        RewardError: ``margin_reward`` raises, or gives something that is not one finite number per answer.
        CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
    """

    args: DPPODPOConfig
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    batch_kind = PairBatch
    together = 2

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: DPPODPOConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *,
        margin_reward: MarginReward | None = None,
        **kwargs: Any,
    ) -> None:
        args = DPPODPOConfig("dppo-output") if args is None else args
        check("args", args, DPPODPOConfig, "DPPODPOConfig in place of DPOConfig: it takes the same arguments.")
        check_overrides(type(self))
        check_model(model)
        given = check_dataset(train_dataset, "DPPODPOTrainer")
        if data_collator is not None:
            raise ConfigError("data_collator is not served: pairs are laid out after the draw. Leave it out.")
        super().__init__(model, ref_model, args, train_dataset=train_dataset, **kwargs)
        if self.aux_loss_enabled:
            raise ConfigError("the router loss of this model is not served. Set router_aux_loss_coef: 0.0.")
        prepared: Any = self.train_dataset
        if self.columns[0] not in prepared.column_names:
            raise ConfigError("datasets of pictures are not served by DPPODPOTrainer. Use trl.DPOTrainer.")
        if args.precompute_ref_log_probs:
            self.columns = (*self.columns, "ref_chosen_logps", "ref_rejected_logps")
        rows = prepared_rows(prepared, self.columns, given, args.max_length)
        pairs = _measured(rows, self.sequences_of, args.max_length)
        self._chosen_tokens, longest = pairs.chosen, int(pairs.tokens.max())
        if args.max_tokens_per_row is not None and args.max_tokens_per_row < longest:
            raise ConfigError(f"a pair has {longest} tokens, and stays in one row. Set max_tokens_per_row: {longest}.")
        self._pairs_in_step = self._tokens_in_step = 1.0
        self._reported = torch.zeros(3)
        self.start_rows(rows, pairs.identities, pairs.tokens)
        if not isinstance(self.forwards.layout, RowLayout):
            raise ConfigError(f"rows cannot serve this model ({self.forwards.layout}). Use trl.DPOTrainer.")
        tokenizer: Any = self.processing_class
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

    def denominator(self, row_N: Tensor, draw: Draw) -> float:
        """Pairs of the step; tokens of their preferred answers are counted too."""
        self._tokens_in_step = self.method.denominator(draw, torch.from_numpy(self._chosen_tokens[row_N.numpy()]))
        self._pairs_in_step = self.method.denominator(draw, torch.ones(len(row_N)))
        return self._pairs_in_step

    def loss_and_scores(self, model: Any, batch: MicroBatch, logp_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted losses of pairs over those of the step, and the score of each sequence's pair."""
        mask_BT = batch.completion(batch.rank_batch.loss_mask)
        with torch.no_grad():  # without pairs too: a model in shards is gathered by all ranks together
            ref_B2 = self._reference(batch, mask_BT)
        if not bool(batch.weight.any()):  # a rank without pairs forwards one sequence
            return logp_BT.sum() * 0.0, torch.zeros(len(batch.rows))
        chosen_B, rejected_B = (logp_BT * mask_BT).sum(1).view(-1, 2).unbind(1)
        margin_B = (chosen_B - ref_B2[:, 0]) - (rejected_B - ref_B2[:, 1])
        rows = [int(self._block[self._place_B[row]]) for row in batch.rows.tolist()[::2]]
        own_B = torch.from_numpy(self._margin_weight[rows]).to(margin_B)
        weight_B, beta = batch.weight[::2], self.args.beta
        named = dict(zip(self.loss_types, self.loss_weights, strict=True))
        loss_B = own_B * sigmoid_preference(margin_B, beta=beta)
        loss = named["sigmoid"] * (weight_B * loss_B).sum() / self._pairs_in_step
        sft = named.get("sft", 0.0)
        if sft:
            loss = loss - sft * (weight_B * chosen_B).sum() / self._tokens_in_step
        with torch.no_grad():
            self._report(margin_B, weight_B)
            if self.method.score == "loss":
                score_B = named["sigmoid"] * loss_B - sft * chosen_B * self._pairs_in_step / self._tokens_in_step
            else:
                norm_B2 = confidence(logp_BT, mask_BT).view(-1, 2).to(margin_B)
                slope_B = named["sigmoid"] * own_B * beta * torch.sigmoid(-beta * margin_B)
                tokens = self._pairs_in_step / self._tokens_in_step
                score_B = slope_B * norm_B2.square().sum(1).sqrt() + sft * tokens * norm_B2[:, 0]
        return loss, score_B.repeat_interleave(2)

    @cached_property
    def content(self) -> str:
        """A fingerprint of all pairs and their weights."""
        return fingerprint(self.source.scores.identities, self._margin_weight)

    def load_extra(self, folder: Path) -> None:
        """As of all trainers on rows; a reference that follows the policy is in no checkpoint, as in TRL.

        Raises:
            CheckpointError: ``sync_ref_model`` without ``accept_missing``; or as of all.
        """
        super().load_extra(folder)
        if self.args.sync_ref_model:
            lacks = f"{folder} lacks the reference that sync_ref_model has moved: the run goes on with the one given"
            if not self.args.accept_missing:
                raise CheckpointError(f"{lacks}, and is another run. To go on so: accept_missing=True.")
            warnings.warn(f"{lacks}, and is another run.", stacklevel=2)

    def _reference(self, batch: MicroBatch, mask_BT: Tensor) -> Tensor:
        """(b / 2, 2) log-probabilities of both answers under the reference; of one sequence they mean nothing."""
        if len(self.columns) > 3:
            rows = self._rows[[int(self._block[self._place_B[row]]) for row in batch.rows.tolist()[::2]]]
            return torch.tensor([rows["ref_chosen_logps"], rows["ref_rejected_logps"]], device=mask_BT.device).T
        with reference_model(self) as model:
            logp_B = (self.forwards(model, batch).logp_BT * mask_BT).sum(1)
        return logp_B.view(-1, 2) if len(logp_B) > 1 else logp_B.expand(1, 2)

    def _report(self, margin_B: Tensor, weight_B: Tensor) -> None:
        """Add pairs to what the step logs."""
        values = torch.stack([torch.ones_like(margin_B), self.args.beta * margin_B, (margin_B > 0).to(margin_B)])
        self._reported = self._reported + (values * weight_B).sum(1).double().cpu().float()

    def step_ended(self) -> None:
        """Log estimates over all pairs of the step, from those kept and their weights."""
        total: Any = self.accelerator.reduce(self._reported.to(self.accelerator.device), reduction="sum")
        count, margin, right = total.tolist()
        if count:
            self.add_figures({"rewards/margins": margin / count, "rewards/accuracies": right / count})
        self._reported = torch.zeros(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    identities: np.ndarray
    tokens: np.ndarray
    chosen: np.ndarray


def _measured(rows: Any, sequences_of: Callable[[Any], list[Sequence]], max_length: int | None) -> _Pairs:
    """Identity, tokens and trained tokens of the preferred answer of each pair."""
    identities, tokens, chosen = [], [], []
    equal, empty = list[int](), list[int]()
    for place, row in enumerate(rows):
        found = sequences_of(row)
        if len(found) < 2 or not row["prompt_ids"]:
            empty.append(place)
            continue
        if len({tuple(each.completion.tolist()) for each in found}) == 1:
            equal.append(place)
        identities.append(content_key(row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]))
        tokens.append(len(found[0].prompt) + sum(len(each.completion) for each in found))
        chosen.append(int(found[0].scored.sum()))
    for places, what, advice in (
        (empty, "no prompt or no answer", "row['prompt'] and row['chosen'] and row['rejected']"),
        (equal, "equal answers, as far as max_length goes, and no gradient", "row['chosen'] != row['rejected']"),
    ):
        if places:
            longer = "" if places is empty or max_length is None else f", or raise max_length={max_length}"
            raise DataError(
                f"{len(places)} of {len(rows)} pairs have {what} (from 0: {', '.join(map(str, places[:5]))}). Leave "
                f"them out: dataset.filter(lambda row: {advice}){longer}"
            )
    return _Pairs(
        identities=np.array(identities, np.uint64), tokens=np.array(tokens, float), chosen=np.array(chosen, float)
    )


DPPODPOConfig.__doc__ = described(DPPODPOConfig, RowSettings)
