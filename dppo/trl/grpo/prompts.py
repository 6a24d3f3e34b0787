"""The prompts of a run: its dataset's rows as a ``PromptSource``.

TRL's sampler cannot prune for us: it decides a block too early and loses its place on resume. So its loader only counts
steps, and candidates, draws and examples come from here, the same on every rank.
"""

from typing import Any

from datasets import Dataset
from torch import Tensor

from dppo.errors import ConfigError, DataError
from dppo.methods import Method
from dppo.pruning import PromptHistory, PromptStream, PromptValues
from dppo.pruning.values import read_values
from dppo.rewards import identities
from dppo.step import PromptSource
from dppo.trl.grpo.difficulty import difficulty_predictor

EPOCHS_REMEMBERED = 3
"""Default half-life of the prompt history."""


def prompt_source(
    dataset: Any, args: Any, method: Method, *, weight_F: Tensor, environment: bool
) -> PromptSource | None:
    """The prompts of a run; None for a streamed dataset, whose rows cannot be read again."""
    columns = getattr(dataset, "column_names", None)  # of some streams they are not known
    if columns is not None and "prompt" not in columns and not environment:
        raise DataError(
            f"the dataset has no column 'prompt', but {columns}. Try dataset.rename_column('text', 'prompt')"
        )
    if isinstance(dataset, Dataset):
        # First: it says where there are no rows.
        stream = PromptStream(len(dataset), seed=args.seed, shuffle=bool(args.shuffle_dataset))
        prompts = int(args.generation_batch_size or 0) // int(args.num_generations or 1)
        # Where an environment gives the prompt, rows are told apart by what else they hold.
        content = dataset["prompt"] if "prompt" in dataset.column_names else dataset
        history = PromptHistory(
            identities(content), half_life=args.history_half_life or EPOCHS_REMEMBERED * len(dataset) / prompts
        )
        values = None if args.prompt_values is None else read_values(args.prompt_values, history.identities)
        return PromptSource(
            stream,
            history,
            method,
            prompts=prompts,
            fill=args.prompt_mode == "fill",
            weight_F=weight_F,
            difficulty=difficulty_predictor(dataset, args, len(weight_F)),
            values=_of_functions(values, method, len(weight_F)),
        )
    _check_streamed(args, method)
    return None


def _check_streamed(args: Any, method: Method) -> None:
    """Raise an error where something is asked for that needs rows which can be read again."""
    if method.prompts.rate:
        raise ConfigError(
            f"prompt_prune_rate={args.prompt_prune_rate} needs a map-style dataset; a streamed one has no rows to come "
            "back to. Set prompt_prune_rate: 0, or load the dataset without streaming."
        )
    if method.advantages.from_history:
        raise ConfigError(
            f"method={args.method!r} has a baseline from each prompt's history, which needs a map-style dataset. Set "
            "method: dppo, or load the dataset without streaming."
        )
    if args.prompt_values is not None:
        raise ConfigError(
            f"prompt_values={args.prompt_values!r} are of the rows of a dataset, and a streamed one has none. Load the "
            "dataset without streaming, or leave them out with method: dppo."
        )
    if args.difficulty_features is not None:
        raise ConfigError(
            f"difficulty_features={args.difficulty_features!r} are of every row, and a streamed dataset has none to "
            "read beforehand. Leave them out, or load the dataset without streaming."
        )
    if method.rounds is not None:
        raise ConfigError(
            f"method={args.method!r} takes as many prompts as it needs, which needs a map-style dataset. Set method: "
            "grpo, or load the dataset without streaming."
        )


def _of_functions(values: PromptValues | None, method: Method, functions: int) -> PromptValues | None:
    """The values, where they can be what the method makes of them."""
    if values is not None and method.advantages.from_history and functions > 1:
        raise ConfigError(
            f"prompt_values are of the total of {functions} reward functions, and a history has a prior of each. Leave "
            "prompt_values out, or use one reward function."
        )
    return values
