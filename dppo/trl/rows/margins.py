"""Weights of pairs by a reward model's margin between their answers."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dppo.errors import ConfigError, RewardError
from dppo.objective import margin_weights
from dppo.rewards import guarded
from dppo.typed import check

MarginReward = Callable[..., list[float | None]]
"""``margin_reward(prompts=..., completions=..., **columns)``: one number for each completion, as a reward function of
TRL; columns are the dataset's others."""
OF_PAIRS = ("prompt", "chosen", "rejected", "prompt_ids", "chosen_ids", "rejected_ids")
OF_PAIRS += ("ref_chosen_logps", "ref_rejected_logps", "prompts", "completions")
"""Columns of a prepared dataset that ``margin_reward`` is given under other names, or has no use for."""


def weights_of(reward: MarginReward | None, rows: Any, scale: float, end: str | None) -> np.ndarray:
    """(size,) MADPO-style weight of each pair, by its margin less the mean one; 1 without a reward function.

    Args:
        reward: function.
        rows: that TRL has prepared.
        scale: of the margins.
        end: what TRL has put behind answers that are plain text.

    Raises:
        ConfigError: ``reward`` is no function, or ``async``.
        RewardError: it raises, or gives something that is not one finite number per answer.
    """
    if reward is None:
        return np.ones(len(rows))
    check("margin_reward", reward, Callable, "margin_reward=my_reward")
    if inspect.iscoroutinefunction(reward):
        raise ConfigError(
            "margin_reward is async, and is asked before the loop that would wait for it. Wrap it: "
            "margin_reward=lambda **given: asyncio.run(my_reward(**given))."
        )
    columns = {name: list(rows[name]) for name in rows.column_names if name not in OF_PAIRS}
    values = []
    for name in ("chosen", "rejected"):
        answers = [each.removesuffix(end or "") if isinstance(each, str) else each for each in rows[name]]
        values.append(_rewards(reward, prompts=list(rows["prompt"]), completions=answers, **columns))
    margin_P = torch.tensor(values[0]).double() - torch.tensor(values[1]).double()
    return margin_weights(margin_P, centre=float(margin_P.mean()), scale=scale).numpy()


def _rewards(reward: MarginReward, **given: list[Any]) -> list[float]:
    """Rewards of all answers of one kind, each a finite number.

    Raises:
        RewardError: the function raises, or gives something else.
    """
    found = guarded(reward)(**given)
    missing = [place for place, value in enumerate(found) if value is None or value != value]
    if missing:
        raise RewardError(
            f"margin_reward gave no number for {len(missing)} of {len(found)} answers (from 0: {missing[0]}, ...). A "
            "margin needs both: leave those pairs out, or return a number."
        )
    return [float(value) for value in found if value is not None]
