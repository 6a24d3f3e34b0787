"""The predictor of difficulty of a run: from names in its configuration to features of its dataset."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dppo.errors import DataError
from dppo.methods import METHODS
from dppo.pruning import DifficultyPredictor, column_features, length_features

LENGTH, COLUMN = "length", "column:"


def difficulty_problems(args: Any) -> list[str]:
    """One sentence per field about difficulty that is unreadable or would change nothing; empty where there is none."""
    problems = []
    if args.difficulty_features is None:
        unread = "reward_range is what difficulty_features rescale by, and there are none. Leave it out."
        return problems if args.reward_range is None else [unread]
    bad = [name for name in _names(args) if name != LENGTH and not re.fullmatch(rf"{COLUMN}.+", name)]
    if bad:
        problems.append(
            f"difficulty_features={args.difficulty_features!r} has {bad[0]!r}, which is neither 'length' nor "
            "'column:NAME'. Try difficulty_features: length,column:level."
        )
    method = METHODS.get(args.method)
    if method is not None and not method.advantages.from_history:
        problems.append(
            f"difficulty_features are the prior of a baseline from history, and method={args.method!r} has none. Leave "
            "them out, or try method: dppo_history."
        )
    bounds = args.reward_range
    if bounds is not None and (len(bounds) < 2 or len(bounds) % 2 or not _ordered(bounds)):
        problems.append(
            f"reward_range={bounds!r} must be a lowest and a highest reward, or those of each reward function in turn. "
            "Try reward_range: [0, 1]."
        )
    return problems


def difficulty_predictor(dataset: Any, args: Any, functions: int) -> DifficultyPredictor | None:
    """The predictor that ``difficulty_features`` describe; None where there are none."""
    if args.difficulty_features is None:
        return None
    bounds = args.reward_range or [0.0, 1.0]
    ranges = [(float(low), float(high)) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]
    ranges = ranges * functions if len(ranges) == 1 else ranges
    if len(ranges) != functions:
        raise DataError(
            f"reward_range has {len(ranges)} ranges, and there are {functions} reward functions. Give one for all: "
            "reward_range: [0, 1], or one each."
        )
    return DifficultyPredictor(np.concatenate([_feature(name, dataset) for name in _names(args)], 1), ranges=ranges)


def _feature(name: str, dataset: Any) -> np.ndarray:
    """(P, 1) one feature of every row."""
    column = "prompt" if name == LENGTH else name.removeprefix(COLUMN)
    if column not in dataset.column_names:
        present = ", ".join(map(repr, dataset.column_names))
        raise DataError(
            f"difficulty_features: the dataset has no column {column!r}, only {present}. Name one of those."
        )
    if name == LENGTH:
        return length_features(map(_text, dataset[column]))
    return column_features({column: dataset[column]})


def _text(prompt: Any) -> str:
    """What a prompt says: a text, or that of all its messages."""
    return prompt if isinstance(prompt, str) else "".join(str(message.get("content") or "") for message in prompt)


def _names(args: Any) -> list[str]:
    return [name.strip() for name in args.difficulty_features.split(",")]


def _ordered(bounds: Sequence[Any]) -> bool:
    numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return numbers and all(-np.inf < low < high < np.inf for low, high in pairs)
