"""TRL's own loss with one value for each pair of answers, so that each can be weighted; and weights of their margins.

``DPOTrainer`` takes the mean over a micro-batch inside its loss. Here that mean does nothing.
"""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.errors import ConfigError, RewardError
from dppo.objective import margin_weights
from dppo.packing.head import TOKEN_METRICS
from dppo.rewards import guarded, is_async
from dppo.trl.loop import loss_of_pairs
from dppo.typed import check

OF_BATCHES = ("aot", "aot_unpaired")
"""Losses of TRL that sort the pairs of a micro-batch: they have no term for each pair."""
SERVED_LOSSES = ("sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard")
SERVED_LOSSES += ("apo_zero", "apo_down", "discopop", "sft")
"""Losses of TRL with one term for each pair; ``sft`` has one for each token."""
OF_ANSWERS = ("nca_pair", "bco_pair", "sppo_hard", "apo_down", "sft")
"""Served losses that have a gradient even if both answers of a pair are equal."""
OF_PAIRS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
OF_PAIRS += ("logps/chosen", "logps/rejected")
"""TRL's metrics that have a value for each pair."""


class PerPair(TorchFunctionMode):
    """A context in which ``mean`` and ``item`` leave (P,) values of pairs as they are, where TRL has a mean of them.

    A tensor indexed by a mask stays too: TRL does so for metrics that are unused here, and would wait for the device.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        of_pairs = func in (Tensor.mean, Tensor.item) and args[0].dim() == 1
        of_mask = func is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool
        return args[0] if of_pairs or of_mask else func(*args, **(kwargs or {}))


def pair_losses(
    trainer: DPOTrainer,
    logp_BT: Tensor,
    mask_BT: Tensor,
    *,
    ref_BT: Tensor | None = None,
    ref_P2: Tensor | None = None,
    log_sum_sq_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss (P,) of each pair, with gradient and without the ``sft`` term; and ``OF_PAIRS``, each (P,).

    Args:
        trainer: has TRL's settings of the loss.
        logp_BT: (2P, T) log-probabilities in nats, 0 at padding; in each pair the preferred answer comes first.
        mask_BT: (2P, T) 1 for tokens of the answers.
        ref_BT: (2P, T) log-probabilities under the reference, without a gradient.
        ref_P2: (P, 2) in their place, those of whole answers that TRL has precomputed.
        log_sum_sq_BT: (2P, T) logs of sums of squared probabilities, for WPO's weights.
    """
    weights = zip(trainer.loss_types, trainer.loss_weights, strict=True)
    logp_BT, mask_BT = _by_answer(logp_BT), _by_answer(mask_BT)
    answer_BT = F.pad(mask_BT, (1, 0))  # TRL's masks have a first position, which nothing predicts
    inputs: dict[str, Tensor] = dict.fromkeys(("input_ids", "attention_mask", "completion_mask"), answer_BT)
    if ref_P2 is not None:
        inputs |= {"ref_chosen_logps": ref_P2[:, 0], "ref_rejected_logps": ref_P2[:, 1]}
    others: dict[str, Tensor] = dict.fromkeys(TOKEN_METRICS, mask_BT.bool())  # of unused metrics
    if log_sum_sq_BT is not None:
        others["log_sum_sq_probs"] = _by_answer(log_sum_sq_BT)
    policy = SimpleNamespace(log_probs=logp_BT, **others)
    reference = None if ref_BT is None else SimpleNamespace(log_probs=_by_answer(ref_BT))
    alone: Any = copy.copy(trainer)
    alone.model = model = cast(Any, torch.nn.Module())
    model.is_gradient_checkpointing = False
    alone.ref_model, alone.precompute_ref_logps = lambda **_: reference, reference is None
    alone.accelerator = SimpleNamespace(
        device=logp_BT.device,
        gather=lambda value: value,
        # Metrics of tokens are not used: a number of the host takes their place.
        gather_for_metrics=lambda value: np.float64(0.0),
    )
    alone.aux_loss_enabled = False
    alone.loss_weights = [0.0 if name == "sft" else weight for name, weight in weights]
    with PerPair():
        loss_P, logged = loss_of_pairs(alone, lambda **_: policy, inputs)
    return loss_P, {name: logged[name][0] for name in OF_PAIRS}


def _by_answer(value_BT: Tensor) -> Tensor:
    """(2P, T) with all preferred answers first, as TRL's batches have them."""
    return torch.cat([value_BT[::2], value_BT[1::2]])


MarginReward = Callable[..., list[float | None]]
"""``margin_reward(prompts=..., completions=..., **columns)``: one number per completion, with the other columns."""
GIVEN_OTHERWISE = ("prompt", "chosen", "rejected", "prompt_ids", "chosen_ids", "rejected_ids")
GIVEN_OTHERWISE += ("ref_chosen_logps", "ref_rejected_logps", "prompts", "completions")
"""Columns of a prepared dataset that ``margin_reward`` gets under other names, or does not need."""


def weights_of(reward: MarginReward, rows: Any, scale: float, end: str | None) -> Tensor:
    """(size,) float64 MADPO-style weight of each pair by its margin; ``end`` is TRL's text behind every answer."""
    check("margin_reward", reward, Callable, "margin_reward=my_reward")
    if is_async(reward):
        raise ConfigError("margin_reward is async. Write margin_reward=lambda **given: asyncio.run(mine(**given)).")
    columns = {name: list(rows[name]) for name in rows.column_names if name not in GIVEN_OTHERWISE}
    values = []
    for name in ("chosen", "rejected"):
        answers = [each.removesuffix(end or "") if isinstance(each, str) else each for each in rows[name]]
        found = guarded(reward)(prompts=list(rows["prompt"]), completions=answers, **columns)
        missing = [place for place, value in enumerate(found) if value is None or value != value]
        if missing:
            wrong = f"{len(missing)} of {len(found)} answers (from 0: {missing[0]}, ...)"
            raise RewardError(f"margin_reward gave no number for {wrong}. Return one, or leave those pairs out.")
        values.append(torch.tensor(found, dtype=torch.float64))
    margin_P = values[0] - values[1]
    return margin_weights(margin_P, centre=float(margin_P.mean()), scale=scale)
