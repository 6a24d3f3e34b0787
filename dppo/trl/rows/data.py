"""The dataset of a trainer on rows: what it may be, and its rows as TRL has prepared them."""

from typing import Any

import datasets

from dppo.errors import ConfigError, DataError


def check_dataset(dataset: Any, name: str) -> int:
    """Rows of a training set that has some to come back to.

    Args:
        dataset: as given.
        name: of the trainer, for messages.

    Raises:
        ConfigError: it is streamed, or no dataset.
        DataError: it is empty.
    """
    if isinstance(dataset, datasets.Dataset):
        if not len(dataset):
            raise DataError("the dataset has 0 rows, and at least 1 is needed. Give it rows to train on.")
        return len(dataset)
    advice = "Write train_dataset=datasets.Dataset.from_list(rows)."
    if isinstance(dataset, datasets.IterableDataset):
        advice = "A streamed one has no rows to come back to: load it with streaming=False."
    if isinstance(dataset, dict):
        advice = f"Take one of its parts: train_dataset=dataset[{next(iter(dataset), 'train')!r}]."
    raise ConfigError(f"train_dataset is {type(dataset).__name__}, and {name} needs a datasets.Dataset. {advice}")


def prepared_rows(dataset: Any, columns: tuple[str, ...], given: int, max_length: int | None) -> Any:
    """Columns of a training set that TRL has prepared, with lists of numbers in its rows.

    Args:
        dataset: as TRL's trainer has it.
        columns: that it has.
        given: rows of it before.
        max_length: where TRL has cut them.

    Raises:
        DataError: no row is left.
    """
    if not len(dataset):
        raise DataError(
            f"none of the {given} rows is left: TRL drops rows whose prompt alone fills max_length={max_length}. "
            "Raise it, or write max_length: null to cut nothing."
        )
    return dataset.with_format(None).select_columns(list(columns))
