"""Pairs of answers: TRL's own loss with one value for each pair, so that each can be weighted, and their weights.

``DPOTrainer`` takes the mean over a micro-batch inside the loss itself. Here it is given log-probabilities whose mean
over pairs leaves every pair as it is: all its losses, divergences and weights that treat pairs one by one come from
TRL's code, and so do its metrics of pairs.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.errors import ConfigError, RewardError
from dppo.objective import margin_weights
from dppo.packing.head import TOKEN_METRICS
from dppo.rewards import guarded, is_async
from dppo.trl.hooks import loss_of_pairs
from dppo.typed import check

OF_BATCHES = ("aot", "aot_unpaired")
"""Losses of TRL that sort the pairs of a micro-batch: there is no term for each pair."""
SERVED_LOSSES = ("sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard")
SERVED_LOSSES += ("apo_zero", "apo_down", "discopop", "sft")
"""Losses of TRL with one term for each pair; ``sft`` has one for each token."""
OF_ANSWERS = ("nca_pair", "bco_pair", "sppo_hard", "apo_down", "sft")
"""Those of them with a gradient where both answers of a pair are equal."""
OF_PAIRS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
OF_PAIRS += ("logps/chosen", "logps/rejected")
"""TRL's metrics that have a value for each pair."""


class PerPair(torch.Tensor):
    """A tensor whose mean over pairs is not taken: what TRL averages over a micro-batch keeps a value for each pair."""

    def mean(self, *args: Any, **kwargs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Itself where it has a value for each pair."""
        return super().mean(*args, **kwargs) if args or kwargs or self.dim() != 1 else self

    def item(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Itself where it has a value for each pair, else a number."""
        return self if self.dim() else super().item()


class Unread(torch.Tensor):
    """A tensor for TRL's metrics of tokens, which are not used: choosing its elements by a mask is not done.

    The choice would wait for the device in every pass.
    """

    def __getitem__(self, index: Any) -> Tensor:
        """Itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What a loss of P pairs looks at; the preferred answer of a pair is before the other."""

    logp_BT: Tensor
    """(2P, T) log-probabilities of the answers' tokens under the policy, in nats, 0 where there is none."""
    mask_BT: Tensor
    """(2P, T) 1 for tokens of the answers."""
    ref_BT: Tensor | None = None
    """(2P, T) under the reference, without a gradient; None where ``ref_P2`` is given."""
    ref_P2: Tensor | None = None
    """(P, 2) of the answers under the reference, as TRL computed them before."""
    log_sum_sq_BT: Tensor | None = None
    """(2P, T) logs of sums of squared probabilities, for WPO's weights."""


def pair_losses(trainer: DPOTrainer, pairs: Pairs) -> tuple[Tensor, Mapping[str, Tensor]]:
    """(P,) the loss of each pair, with gradient, without the ``sft`` term; and (P,) each of ``OF_PAIRS``.

    ``trainer`` has TRL's settings of the loss.
    """
    per_pair = [each for each in zip(trainer.loss_types, trainer.loss_weights, strict=True) if each[0] != "sft"]
    logp_BT, mask_BT = _by_answer(pairs.logp_BT), _by_answer(pairs.mask_BT)
    answer_BT = F.pad(mask_BT, (1, 0))  # TRL's masks have a first position, which nothing predicts
    inputs: dict[str, Tensor] = {"input_ids": answer_BT, "attention_mask": answer_BT, "completion_mask": answer_BT}
    if pairs.ref_P2 is not None:
        inputs |= {"ref_chosen_logps": pairs.ref_P2[:, 0], "ref_rejected_logps": pairs.ref_P2[:, 1]}
    unread = torch.zeros_like(logp_BT).as_subclass(Unread)
    nothing: dict[str, Tensor] = dict.fromkeys(TOKEN_METRICS, unread) | {"is_top1": torch.zeros_like(mask_BT).bool()}
    if pairs.log_sum_sq_BT is not None:
        nothing["log_sum_sq_probs"] = _by_answer(pairs.log_sum_sq_BT)
    policy = SimpleNamespace(log_probs=logp_BT.as_subclass(PerPair), **nothing)
    reference = None if pairs.ref_BT is None else SimpleNamespace(log_probs=_by_answer(pairs.ref_BT))
    alone: Any = copy.copy(trainer)
    model: Any = torch.nn.Module()
    model.is_gradient_checkpointing = False
    alone.model = model
    # Metrics of other processes, and those of tokens, are not wanted: a number of the host in their place.
    alone.accelerator = SimpleNamespace(
        device=logp_BT.device, gather=_itself, gather_for_metrics=lambda value: np.float64(0.0)
    )
    alone.ref_model = lambda **_: reference
    alone.precompute_ref_logps = reference is None
    alone.aux_loss_enabled = False
    alone.loss_types, alone.loss_weights = [name for name, _ in per_pair], [weight for _, weight in per_pair]
    loss, logged = loss_of_pairs(alone, lambda **_: policy, inputs)
    metrics = {name: logged[name][0].as_subclass(Tensor) for name in OF_PAIRS}
    plain = loss.as_subclass(Tensor) if per_pair else logp_BT.new_zeros(len(logp_BT) // 2)
    return plain, metrics


def _itself(value: Tensor) -> Tensor:
    return value


def _by_answer(value_BT: Tensor) -> Tensor:
    """(2P, T) with all preferred answers first, as TRL's batches have them."""
    return torch.cat([value_BT[::2], value_BT[1::2]])


MarginReward = Callable[..., list[float | None]]
"""``margin_reward(prompts=..., completions=..., **columns)``: one number for each completion, as a reward function of
TRL; columns are the dataset's others."""
GIVEN_OTHERWISE = ("prompt", "chosen", "rejected", "prompt_ids", "chosen_ids", "rejected_ids")
GIVEN_OTHERWISE += ("ref_chosen_logps", "ref_rejected_logps", "prompts", "completions")
"""Columns of a prepared dataset that ``margin_reward`` is given under other names, or has no use for."""


def weights_of(reward: MarginReward | None, rows: Any, scale: float, end: str | None) -> np.ndarray:
    """(size,) MADPO-style weight of each pair, by its margin less the mean one; 1 without a reward function."""
    if reward is None:
        return np.ones(len(rows))
    check("margin_reward", reward, Callable, "margin_reward=my_reward")
    if is_async(reward):
        raise ConfigError(
            "margin_reward is async, and is asked before the loop that would wait for it. Wrap it: "
            "margin_reward=lambda **given: asyncio.run(my_reward(**given))."
        )
    columns = {name: list(rows[name]) for name in rows.column_names if name not in GIVEN_OTHERWISE}
    values = []
    for name in ("chosen", "rejected"):
        answers = [each.removesuffix(end or "") if isinstance(each, str) else each for each in rows[name]]
        values.append(_rewards(reward, prompts=list(rows["prompt"]), completions=answers, **columns))
    margin_P = torch.tensor(values[0]).double() - torch.tensor(values[1]).double()
    return margin_weights(margin_P, centre=float(margin_P.mean()), scale=scale).numpy()


def _rewards(reward: MarginReward, **given: list[Any]) -> list[float]:
    """Rewards of all answers of one kind, each a finite number."""
    found = guarded(reward)(**given)
    missing = [place for place, value in enumerate(found) if value is None or value != value]
    if missing:
        raise RewardError(
            f"margin_reward gave no number for {len(missing)} of {len(found)} answers (from 0: {missing[0]}, ...). A "
            "margin needs both: leave those pairs out, or return a number."
        )
    return [float(value) for value in found if value is not None]
