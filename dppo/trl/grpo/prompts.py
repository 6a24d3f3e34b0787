"""The prompts of a run: rows of its dataset as a ``PromptSource``, with their priors, equal on all ranks.

TRL's sampler chooses a block before anything can be pruned, and loses its place on resume: it only counts steps.
"""

import hashlib
from collections.abc import Iterable, Iterator
from heapq import nlargest
from pathlib import PurePath
from typing import Any, cast

import numpy as np
import pyarrow as pa
from datasets import Dataset
from torch import Tensor

from dppo.errors import ConfigError, DataError
from dppo.methods import Method
from dppo.pruning import PromptHistory, PromptPrior, PromptStream
from dppo.pruning.prior import prior_of_column, read_values
from dppo.rewards import identities
from dppo.step import PromptSource
from dppo.trl.checkpoints.state import fingerprint

MEASURED_PROMPTS = 256
"""Prompts whose tokens are counted before training: the longest."""
ROWS_HASHED = 2**14
"""Rows whose columns are read for a fingerprint: less than a second for problems with solutions."""
BYTES_HASHED = 2**14
"""Bytes of a picture's file that are hashed, from its start and from its end: others are not read from disk."""


def prompt_source(
    dataset: Any, args: Any, method: Method, *, weight_F: Tensor, environment: bool
) -> PromptSource | None:
    """The prompts of a run; None for a streamed dataset, whose rows cannot be read again."""
    columns = getattr(dataset, "column_names", None)  # of some streams they are not known
    if columns is not None and "prompt" not in columns and not environment:
        raise DataError(f"no column 'prompt' among {columns}. Try dataset.rename_column('text', 'prompt')")
    if not isinstance(dataset, Dataset):
        _check_streamed(args, method)
        return None
    prompts = int(args.generation_batch_size or 0) // int(args.num_generations or 1)
    stream, history = stream_and_history(dataset, args, prompts, environment=environment)
    given = [name for name in ("prompt_values", "prompt_prior") if getattr(args, name) is not None]
    if given and method.advantages.from_history and len(weight_F) > 1:
        why = f"{given[0]} is a prior of the total of {len(weight_F)} reward functions, and a history needs one of each"
        raise ConfigError(f"{why}. Leave {given[0]} out, or use one reward function.")
    values = None if args.prompt_values is None else read_values(args.prompt_values, history.identities)
    prior, fill = column_prior(dataset, args), args.prompt_mode == "fill"
    return PromptSource(stream, history, prompts=prompts, fill=fill, weight_F=weight_F, values=values, prior=prior)


def stream_and_history(
    dataset: Dataset, args: Any, prompts: int, *, environment: bool
) -> tuple[PromptStream, PromptHistory]:
    """The order of a dataset's rows, and an empty history of them; ``prompts`` are those of a step."""
    # First: it refuses a dataset without rows.
    stream = PromptStream(len(dataset), seed=args.seed, shuffle=bool(args.shuffle_dataset))
    # If an environment gives the prompt, the other columns identify a row.
    if "prompt" in dataset.column_names and not environment:
        check_prompts(prompts_of(dataset))
    content = with_pictures(dataset) if "prompt" in dataset.column_names else dataset
    half_life = args.history_half_life or 3 * len(dataset) / prompts  # three epochs
    return stream, PromptHistory(identities(content), half_life=half_life)


def check_prompts(prompts: Iterable[Any]) -> None:
    """Raise ``DataError`` for a prompt that is no text or list of messages, or has a video: TRL would not notice."""
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(isinstance(m, dict) for m in prompt)):
            raise DataError(
                f"the prompt of row {row} is {prompt!r:.80}, and must be a text or a list of messages. Try "
                "dataset.map(lambda row: {'prompt': str(row['prompt'])})"
            )
        # TRL passes these to ``generate`` and not to the update.
        if kinds := [kind for kind in ("audio", "video") if any(part.get("type") == kind for part in _parts(prompt))]:
            raise DataError(
                f"the prompt of row {row} has a part of type {kinds[0]!r}: the update would not see it. Leave such "
                "rows out with dataset.filter, or write frames of a video as pictures in the column 'images'."
            )


def check_lengths(dataset: Dataset, tokenizer: Any, config: Any, most_completed: int) -> None:
    """Raise ``DataError`` for a prompt that fills the positions of a model: the run would fail late, or be nonsense.

    The longest prompts are tokenized if they may be too long by their characters. The advice leaves room for
    ``most_completed`` tokens of a completion.
    """
    text = config.get_text_config()
    scaled = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    positions = int((getattr(text, "max_position_embeddings", None) or 0) * (scaled.get("factor") or 1))
    if not positions or "prompt" not in dataset.column_names:
        return
    words = (" ".join(part.get("text") or "" for part in _parts(prompt)) for prompt in prompts_of(dataset))
    texts = ((text, row) for row, text in enumerate(words))
    longest = nlargest(MEASURED_PROMPTS, texts, key=lambda each: len(each[0]))
    # No token is shorter than a byte, of which a character has up to 4.
    long = [(len(tokenizer(text)["input_ids"]), row) for text, row in longest if 4 * len(text) >= positions]
    tokens, row = max(long, default=(0, 0))
    if tokens >= positions:
        raise DataError(
            f"the prompt of row {row} has {tokens} tokens, and the model has {positions} positions "
            "(max_position_embeddings). Leave such rows out with dataset.filter; in dppo train, write on_bad_rows: "
            f"drop and max_prompt_tokens: {max(1, positions - most_completed)}."
        )


def _parts(prompt: Any) -> list[dict[str, Any]]:
    """Parts of the messages of a prompt; a text is one part."""
    contents = [prompt] if isinstance(prompt, str) else [message.get("content") or "" for message in prompt]
    lists = [each if isinstance(each, list) else [{"text": each}] for each in contents]
    return [part for parts in lists for part in parts if isinstance(part, dict)]


def prompts_of(dataset: Dataset) -> Iterator[Any]:
    """All prompts, read in parts; a transform may make them of other columns."""
    read = dataset if dataset.format["type"] == "custom" else dataset.select_columns(["prompt"])
    for batch in read.iter(batch_size=1000):
        yield from cast(Any, batch)["prompt"]


def with_pictures(dataset: Dataset) -> Iterator[Any]:
    """All prompts, with digests of their pictures if they have any: equal texts about other pictures differ."""
    names = [name for name in ("image", "images") if name in dataset.column_names]
    if not names:
        yield from prompts_of(dataset)
        return
    batches = dataset.with_format("arrow").select_columns(names).iter(batch_size=100)
    pictures = (row for batch in batches for row in zip(*(cast(Any, batch)[name] for name in names), strict=True))
    for prompt, columns in zip(prompts_of(dataset), pictures, strict=True):
        digests = [digest for digest in map(_digest, columns) if digest]
        yield [prompt, digests] if digests else prompt


def _digest(value: pa.Scalar) -> Any:
    """The hash of a picture that is not decoded, the name of its file if it has only that, or a list of them."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.ListScalar):
        return [_digest(each) for each in cast(Any, value).values]
    if isinstance(value, pa.StructScalar):
        return next(filter(None, (_digest(value[name]) for name in ("bytes", "path") if name in value)), None)
    if isinstance(value, pa.StringScalar) or not isinstance(value, pa.BinaryScalar):
        return PurePath(str(value)).name  # the folder, maybe of a cache, is another on each machine
    data = cast(Any, value).as_buffer()
    read = [part.to_pybytes() for part in (data[:BYTES_HASHED], data[-BYTES_HASHED:])]
    return hashlib.blake2b(b"".join([*read, str(data.size).encode()]), digest_size=8).hexdigest()


def content_of(dataset: Any, identities: np.ndarray) -> str:
    """A fingerprint of a training set: all prompts, and columns of ``ROWS_HASHED`` rows without pictures and sounds."""
    table = dataset.with_format("arrow")
    rows = table[np.unique(np.linspace(0, len(dataset) - 1, ROWS_HASHED).astype(int)).tolist()]
    names = [field.name for field in rows.schema if "binary" not in str(field.type)]
    return fingerprint(identities, repr(rows.select(sorted(names)).to_pylist()))


def _check_streamed(args: Any, method: Method) -> None:
    """Refuse settings that need rows which can be read again."""
    name, rate, values = f"method={args.method!r}", args.prompt_prune_rate, args.prompt_values
    needs_rows = {
        f"prompt_prune_rate={rate} needs rows to come back to. Set prompt_prune_rate: 0": method.prompts.rate > 0,
        f"{name} has a baseline from each prompt's history. Set method: dppo": method.advantages.from_history,
        "prompt_prior is a column of a dataset's rows. Leave it out": args.prompt_prior is not None,
        f"prompt_values={values!r} are of a dataset's rows. Leave them out with method: dppo": values is not None,
        f"{name} rolls out prompts until enough groups count. Set method: grpo": method.rounds is not None,
    }
    for why in (why for why, holds in needs_rows.items() if holds):
        raise ConfigError(f"The dataset is streamed, and {why}, or load the dataset without streaming.")


def column_prior(dataset: Any, args: Any) -> PromptPrior | None:
    """The pass rates of the column that ``prompt_prior`` names."""
    if args.prompt_prior is None:
        return None
    column = args.prompt_prior["column"]
    if column not in dataset.column_names:
        raise DataError(f"prompt_prior: the dataset has no column {column!r}, only {dataset.column_names}. Name one.")
    return prior_of_column(dataset[column], args.prompt_prior["completions"], column)
