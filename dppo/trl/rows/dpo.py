"""``DPPODPOTrainer``: TRL's ``DPOTrainer`` with pairs drawn by their recorded margins, weighted, in dense rows."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import datasets
import torch
from torch import Tensor
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.errors import ConfigError
from dppo.methods import RowMethod
from dppo.packing.forward import Scored
from dppo.settings import UPDATE, RowSettings, described, setting
from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.state import fingerprint
from dppo.trl.rows.config import RowConfig
from dppo.trl.rows.data import ReadRow, RowBatch, Sequence, StepRows
from dppo.trl.rows.pairs import OF_ANSWERS, OF_BATCHES, SERVED_LOSSES, MarginReward, pair_losses, weights_of
from dppo.trl.rows.trainer import RowTrainer
from dppo.typed import check, is_number
from dppo.types import Draw

PICTURES = "datasets of pictures are not served by DPPODPOTrainer. Use trl.DPOTrainer."
IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""Columns of TRL's prepared dataset."""
IF_WHOLE = "row['prompt'] and row['chosen'] and row['rejected']"
"""Condition of pairs that can be trained on."""


@dataclass
class DPPODPOConfig(RowConfig, DPOConfig):
    """Arguments of ``DPPODPOTrainer``: those of ``RowSettings``, and all of TRL's ``DPOConfig``, with their meaning.

    Raises:
        ConfigError: at construction, with all fields that are out of range, biased or not served by this trainer.
    """

    margin_scale: float = setting(
        1.0,
        "With `margin_reward`: distance from the mean margin, in the unit of the reward, at which a weight is well "
        "below or above 1, > 0.",
        range="(0, inf)",
        remembered=UPDATE,
    )

    def served(self) -> dict[str, bool]:
        losses, beta = list(self.loss_type or []), self.beta
        return super().served() | {
            f"loss_type={losses}: {', '.join(OF_BATCHES)} sort the pairs of a micro-batch, so there is no term for "
            f"each pair. Write loss_type: sigmoid, or one of {', '.join(SERVED_LOSSES)}.": (
                bool(losses) and {*losses} <= {*SERVED_LOSSES}
            ),
            f"beta={beta!r} must be a number > 0. Write beta: 0.1.": is_number(beta) and 0 < beta < math.inf,
            "use_weighting with the sft loss: TRL multiplies two means over a micro-batch. Use one of them.": (
                not self.use_weighting or "sft" not in losses
            ),
            "truncation_mode: only keep_start is served.": self.truncation_mode == "keep_start",
            "layout='packed' tears pairs apart, which share a prompt. Write layout: rows.": self.layout != "packed",
        }


class PairBatch(RowBatch):
    """A batch of pairs, each the preferred answer and then the other. A pair stays in one forward pass."""

    together, least = 2, "one prompt with its answers"

    @cached_property
    def prompt_group(self) -> list[int]:
        """(B,) number of each sequence's pair."""
        return [place // 2 for place in range(len(self.prompt_ids))]


class DPPODPOTrainer(RowTrainer, DPOTrainer):
    """Training on preferences that skips pairs by chance and reweights those it keeps.

    A TRL script runs with this class and ``DPPODPOConfig`` in place of ``DPOTrainer`` and ``DPOConfig``. As in TRL, a
    step is the mean of the means of its micro-batches: over pairs, and for the ``sft`` term over the tokens of their
    preferred answers. The denominators are known before the draw.

    Args:
        model: as for ``DPOTrainer``, like all arguments that are not listed.
        args: a ``DPPODPOConfig``.
        data_collator: must be None: pairs are laid out after the draw.
        train_dataset: as for ``DPOTrainer``; all pairs of a stream are trained on that have a prompt and two answers.
        margin_reward: a reward function of TRL's signature, not ``async``. It is called once for all pairs, with the
            dataset's other columns. Pairs of a small margin then weigh more, others less: MADPO-style.
        method: a complete ``RowMethod``, or a name as for ``DPPODPOConfig(method=...)``; None for that of ``args``.

    Raises:
        ConfigError: pairs are to be dropped from a stream, or a model or option is not served.
        DataError: the dataset is empty, or pairs have equal answers or no prompt.
        RewardError: ``margin_reward`` raises, or does not return one finite number per answer.
        CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
    """

    args: DPPODPOConfig
    batch_kind = PairBatch

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
        if data_collator is not None:
            raise ConfigError("data_collator is not served: pairs are laid out after the draw. Leave it out.")
        if margin_reward is not None and isinstance(train_dataset, datasets.IterableDataset):
            raise ConfigError("margin_reward is called once for all pairs, and a stream has no end. Leave it out.")
        self._keep = IF_WHOLE
        if isinstance(train_dataset, datasets.Dataset) and "prompt" not in train_dataset.column_names:
            # TRL takes the common beginning of both answers for the prompt.
            texts = len(train_dataset) and isinstance(train_dataset[0].get("chosen"), str)
            begins = ".split()[:1]" if texts else "[:1]"
            self._keep = f"row['chosen']{begins} == row['rejected']{begins}"
        super().__init__(model, args, train_dataset, method, ref_model=ref_model, **kwargs)
        self._margin_weight = None
        if self.table is not None and margin_reward is not None:
            processor: Any = self.processing_class
            tokenizer = getattr(processor, "tokenizer", processor)  # that of a vision model has one for texts
            pairs = cast(Any, self.train_dataset).with_format(None)
            self._margin_weight = weights_of(margin_reward, pairs, self.args.margin_scale, tokenizer.eos_token)
            self.content = fingerprint(self.source.scores.identities, self._margin_weight.numpy())

    def prepared(self, dataset: Any) -> tuple[Any, tuple[str, ...]]:
        if isinstance(dataset, datasets.IterableDataset):
            return dataset.filter(_is_whole), IDS
        if IDS[0] not in dataset.column_names:
            raise ConfigError(PICTURES)
        before = ("ref_chosen_logps", "ref_rejected_logps") if self.args.precompute_ref_log_probs else ()
        return dataset, (*IDS, *before)

    def read(self, row: Mapping[str, Any]) -> ReadRow:
        """The two sequences of a pair, cut as TRL's collator does."""
        ids, limit, problem = [row[name] for name in IDS], self.args.max_length, ""
        prompt, *answers = (torch.tensor(each, dtype=torch.int64) for each in ids)
        answers = [each[: None if limit is None else max(0, limit - len(prompt))] for each in answers]
        chosen, rejected = map(len, answers)
        if not (len(prompt) and chosen and rejected):
            problem = f"have no prompt or no answer. Leave them out: dataset.filter(lambda row: {self._keep})"
        elif answers[0].equal(answers[1]) and not {*self.args.loss_type} & {*OF_ANSWERS}:
            longer = "" if limit is None else f", or raise max_length={limit}"
            problem = "have equal answers, as far as max_length goes, and no gradient. Leave them out: "
            problem += f"dataset.filter(lambda row: row['chosen'] != row['rejected']){longer}"
        tokens = len(prompt) + chosen + rejected
        counts = (tokens, len(prompt) + tokens, chosen)  # TRL counts the prompt with each answer
        pair = [Sequence(prompt=prompt, completion=each, scored=torch.ones(len(each)).bool()) for each in answers]
        return ReadRow(sequences=pair, ids=tuple(ids), counts=counts, problem=problem)

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        answer_BT = batch["completion_mask"].bool()
        prompt_BT = batch["attention_mask"].bool() & ~answer_BT
        ids_BT, pairs = batch["input_ids"], len(answer_BT) // 2  # the preferred answers are the first half
        columns = []
        for mask_BT, first in ((prompt_BT, 0), (answer_BT, 0), (answer_BT, pairs)):
            columns.append([ids_BT[at][mask_BT[at]].tolist() for at in range(first, first + pairs)])
        return [dict(zip(IDS, pair, strict=True)) for pair in zip(*columns, strict=True)]

    def shares(self, rows: StepRows, draw: Draw) -> Tensor:
        """(2, N) of a mean over pairs and of one over the preferred answers' tokens, each of TRL's micro-batches."""
        counts = (torch.ones(len(rows.row_N)), rows.trained_N)
        return torch.stack([self.method.shares(draw, count_N, rows.part_N) for count_N in counts])

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of TRL's losses of pairs, and the score of each pair."""
        mask_BT, logp_BT = batch.completion(batch.rank_batch.loss_mask), scored.logp_BT
        row_U = self.rows.row_N[self.places_of(batch)]
        with torch.no_grad():  # without pairs too: a model in shards is gathered by all ranks together
            reference = self._reference(batch, row_U)
        if batch.idle:  # a rank without pairs forwards one sequence
            return logp_BT.sum() * 0.0, torch.zeros(0)
        log_sum_sq_BT = (scored.metrics or {}).get("log_sum_sq_probs")
        loss_P, metrics = pair_losses(self, logp_BT, mask_BT, log_sum_sq_BT=log_sum_sq_BT, **reference)
        self._measure(batch, metrics, scored.metrics, mask_BT)
        if self._margin_weight is not None:
            loss_P = loss_P * self._margin_weight[row_U].to(loss_P.device, loss_P.dtype, non_blocking=True)
        (pair_P, token_P), weight_P = share_KB[:, ::2], batch.weight[::2]
        sft = dict(zip(self.loss_types, self.loss_weights, strict=True)).get("sft", 0.0)
        # In units of a pair's loss: its denominator depends on its micro-batch, and its score does not.
        total_P = loss_P - sft * (token_P / pair_P) * logp_BT[::2].sum(1)
        loss = (weight_P * pair_P * total_P).sum()
        if self.method.score == "loss":
            return loss, total_P.clamp(min=0.0)
        # About the squared norm of the gradient: for each answer squared slopes by squared norms of its tokens.
        (slope_BT,) = torch.autograd.grad(total_P.sum(), logp_BT, retain_graph=True)
        return loss, (slope_BT * (1 - logp_BT.detach().exp())).square().sum(1).view(-1, 2)

    def _measure(
        self, batch: MicroBatch, of_pairs: Mapping[str, Tensor], of_head: Mapping[str, Tensor] | None, mask_BT: Tensor
    ) -> None:
        """Add TRL's metrics of pairs, (P,) each, and of tokens if the head has measured them."""
        chosen_N, both_N = self.rows.trained_N, 2 * self.rows.tokens_N - self.rows.attended_N  # tokens of both answers
        found = {name: (value_P, torch.ones_like(both_N)) for name, value_P in of_pairs.items()}
        if of_head is not None:
            names = ("entropy", "mean_logits", "is_top1")
            entropy_B, logits_B, right_B = ((of_head[name] * mask_BT).sum(1) for name in names)
            found["entropy"] = entropy_B[::2] + entropy_B[1::2], both_N
            found["mean_token_accuracy"], found["logits/chosen"] = (right_B[::2], chosen_N), (logits_B[::2], chosen_N)
            found["logits/rejected"] = logits_B[1::2], both_N - chosen_N
        for name, (value_P, count_N) in found.items():
            self.step_metrics.add(name, value_P, count_N, batch.weight[::2], batch.rows[::2])

    def _reference(self, batch: MicroBatch, row_U: Tensor) -> dict[str, Tensor]:
        """Log-probabilities under the reference, as ``pair_losses`` takes them; not used in an idle pass."""
        if before := self.columns[len(IDS) :]:
            found = self.rows.data[row_U.tolist()]
            both = torch.tensor([found[name] for name in before])
            return {"ref_P2": both.to(batch.weight.device, non_blocking=True).T}
        with self.forwards.reference() as model:
            return {"ref_BT": self.forwards(model, batch).logp_BT}


def _is_whole(row: Mapping[str, Any]) -> bool:
    """True if a pair of a stream can be trained on; a warning says that others are left out."""
    if IDS[0] not in row:
        raise ConfigError(PICTURES)
    whole = all(len(row[name]) for name in IDS)
    if not whole:
        left_out = "pairs of the stream have no prompt or no answer, and are left out"
        warnings.warn(f"{left_out}. Do so yourself: dataset.filter(lambda row: {IF_WHOLE})", stacklevel=2)
    return whole


DPPODPOConfig.__doc__ = described(DPPODPOConfig, RowSettings)
