"""The prompts of a run: rows of verl's dataset as a ``PromptSource``. verl's own loader is unused."""

from typing import Any

from torch import Tensor

from dppo.errors import ConfigError, DataError
from dppo.pruning import PromptHistory, PromptStream
from dppo.rewards import identities
from dppo.step import PromptSource
from dppo.verl.settings import PruningSettings

GENERATIONS = "__rollout_n__"
"""The column from which verl's agent loops read the number of completions of a prompt."""


def prompt_source(dataset: Any, settings: PruningSettings, data: Any) -> PromptSource:
    """The prompts of a run. ``dataset`` is verl's training set, ``data`` its section of that name.

    Raises:
        ConfigError: the dataset has no table, or has group sizes of its own.
        DataError: it has too few rows.
    """
    table, prompts, key = getattr(dataset, "dataframe", None), data.train_batch_size, data.get("prompt_key", "prompt")
    if table is None or key not in getattr(table, "column_names", ()):
        none = f"data.train_files gives a {type(dataset).__name__} without a table with the column {key!r}"
        raise ConfigError(f"{none}. Write data.custom_cls.path=null, or give the dataset a dataframe.")
    if GENERATIONS in table.column_names:
        sizes = f"data.train_files has a column {GENERATIONS}, by which verl replaces rollout.n of a group"
        raise ConfigError(f"{sizes}. Remove it: dataset.remove_columns({GENERATIONS!r}).")
    if len(table) < prompts:
        few = f"data.train_files has {len(table)} prompts, fewer than data.train_batch_size={prompts}"
        raise DataError(f"{few}. Write data.train_batch_size={len(table)}.")
    half_life = settings.history_half_life or 3 * len(table) / prompts  # three epochs
    return PromptSource(
        PromptStream(len(table), seed=settings.seed, shuffle=bool(data.shuffle)),
        PromptHistory(identities(table[key]), half_life=half_life),
        prompts=prompts,
        fill=settings.prompt_mode == "fill",
    )


def examples(dataset: Any, row_Q: Tensor, size_Q: Tensor | None) -> list[dict[str, Any]]:
    """The examples of rows of verl's training set; ``size_Q`` completions each, or ``rollout.n``."""
    found = [dict(dataset[row]) for row in row_Q.tolist()]
    if size_Q is not None:
        found = [example | {GENERATIONS: size} for example, size in zip(found, size_Q.tolist(), strict=True)]
    return found
