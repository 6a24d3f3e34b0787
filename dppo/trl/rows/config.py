"""Settings of the trainers on rows, checked: their fields, TRL's options, the dataset and the method of a run."""

import copy
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import datasets

from dppo.errors import ConfigError, DataError, raise_problems
from dppo.methods import RowMethod
from dppo.methods.from_settings import row_method
from dppo.methods.own import imported, is_own, settle
from dppo.methods.settings import ROW_CHOICES, bias_problems, row_problems, setting_problems
from dppo.settings import DEFAULT_METHOD, RowSettings
from dppo.trl.served import DEEPSPEED, ranges_of, served_in_rows
from dppo.typed import NamedFields


@dataclass
class RowConfig(NamedFields, RowSettings):
    """``RowSettings`` before the fields of a config of TRL's, all checked at construction."""

    def __post_init__(self) -> None:
        problems = [DEEPSPEED] if cast(Any, self).deepspeed else []  # before transformers looks for the package
        self._refuse(*problems, *setting_problems(self, ROW_CHOICES, ranges_of(self)))
        cast(Any, super()).__post_init__()
        self._refuse(*(problem for problem, fine in self.served().items() if not fine))
        self._check_method(None)

    def served(self) -> dict[str, bool]:
        """By the sentence that refuses an option of TRL, True if its value is served."""
        trl = cast(Any, self)
        strategy = trl.train_sampling_strategy
        return served_in_rows(self) | {
            "auto_find_batch_size: max_tokens_per_row bounds the memory and does not change the steps. Use "
            "auto_find_batch_size: false.": not trl.auto_find_batch_size,
            "include_num_input_tokens_seen: num_tokens is logged. Use include_num_input_tokens_seen: no.": (
                trl.include_num_input_tokens_seen in ("no", False)
            ),
            f"train_sampling_strategy={strategy!r} makes batches of similar lengths. Dense rows do not need them. Use "
            "train_sampling_strategy: random.": strategy in ("random", "sequential"),
        }

    def build_method(self, own: RowMethod | None = None) -> RowMethod:
        """The ``RowMethod`` of a run: ``own``, or the one that ``method`` names, completed by these settings."""
        if own is not None:
            return own
        return imported(self.method, RowMethod) if is_own(self.method) else row_method(self)

    def with_method(self, method: RowMethod | str) -> Self:
        """A copy for another method, which no setting may contradict. Settings that were left out get its values."""
        name, own = (method, None) if isinstance(method, str) else (method.name, method)
        if self.method not in (DEFAULT_METHOD, method):
            self._refuse(f"method={name!r} beside args.method={self.method!r}. Leave method out of the arguments.")
        other = copy.copy(self)
        other.method = name
        if own is None:
            self._refuse(*setting_problems(other, ROW_CHOICES, ranges_of(other)))
        other._check_method(own)
        return other

    def _check_method(self, own: RowMethod | None) -> None:
        """Check settings against ``own``, or against the method that they name."""
        if own is None and is_own(self.method):
            own = self.build_method()
        if own is None:
            self._refuse(*row_problems(self))
        else:
            self._refuse(*settle(self, own, {"row_prune_rate": own.rows.rate, "row_score": own.score}))
        self._refuse(*bias_problems(self, self.build_method(own).biases))


def check_dataset(dataset: Any, trainer: str, rate: float | None) -> int | None:
    """Number of rows of a training set; None for a stream, whose ``rate`` as given must be 0 or None."""
    if isinstance(dataset, datasets.Dataset):
        if not len(dataset):
            raise DataError("the dataset has 0 rows, and at least 1 is needed. Give it rows to train on.")
        return len(dataset)
    if isinstance(dataset, datasets.IterableDataset):
        if rate:
            why = f"row_prune_rate={rate:g} needs a map-style dataset: rows are chosen by their last visit"
            raise ConfigError(f"train_dataset is streamed, and {why}. Write row_prune_rate: 0, or streaming=False.")
        return None
    advice = "Write train_dataset=datasets.Dataset.from_list(rows)."
    if isinstance(dataset, dict):
        advice = f"Take one of its splits: train_dataset=dataset[{next(iter(dataset), 'train')!r}]."
    if dataset is None:
        raise ConfigError(f"`train_dataset` is required. {advice}")
    raise ConfigError(f"train_dataset is {type(dataset).__name__}, and {trainer} needs a datasets.Dataset. {advice}")


def method_of_run(args: Any, own: RowMethod | None, *, router_coef: float, streamed: bool) -> tuple[RowMethod, str]:
    """The method of a run, and the reason for a rate of 0 if ``row_prune_rate`` was left out; "" if rows are pruned."""
    method, reason = replace(args.build_method(own), router_coef=router_coef), ""
    if args.row_prune_rate is None and streamed:
        reason = "nothing pruned: a stream has no row to come back to"
    elif args.row_prune_rate is None and router_coef and not args.accept_bias:
        reason = "nothing pruned: the router loss is biased under pruning. To prune: router_aux_loss_coef: 0.0, or "
        reason += "accept_bias: true"
    if reason:
        method = replace(method, rows=method.rows.at_rate(0.0))
    advice = " Or train without it, router_aux_loss_coef: 0.0, or on all rows, row_prune_rate: 0." * bool(router_coef)
    raise_problems(type(args).__name__, [each + advice for each in bias_problems(args, method.biases)])
    return method, reason
