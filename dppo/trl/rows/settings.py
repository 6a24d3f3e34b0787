"""Settings of a trainer on the rows of a dataset: their checks, and the method they describe."""

from dataclasses import dataclass
from typing import Any, cast

from transformers.training_args import OptimizerNames

from dppo.errors import raise_problems
from dppo.methods import RowMethod
from dppo.methods.settings import ROW_CHOICES, bias_problems, row_method, row_rate, setting_problems
from dppo.pruning.prune import floor_problems
from dppo.settings import RowSettings
from dppo.trl.served import DEEPSPEED, LIGER, RANGES
from dppo.typed import NamedFields


@dataclass
class RowConfig(NamedFields, RowSettings):
    """``RowSettings`` with their checks."""

    def __post_init__(self) -> None:
        problems = [DEEPSPEED] if cast(Any, self).deepspeed else []  # before transformers looks for the package
        raise_problems(type(self).__name__, problems + setting_problems(self, ROW_CHOICES, RANGES))
        cast(Any, super()).__post_init__()

    def build_method(self) -> RowMethod:
        """The ``RowMethod`` that these settings describe."""
        return row_method(self)

    def check_settings(self, refused: list[tuple[bool, str]]) -> None:
        """Check fields of ``RowSettings`` against each other, and what is served of TRL's.

        ``refused`` says whether an option of TRL's is not served, and why.
        """
        where = type(self).__name__
        problems = [sentence for wrong, sentence in [*_refused_of_every_trainer(self), *refused] if wrong]
        if self.prune_floor is not None:
            rate = row_rate(self)
            problems += floor_problems(self.prune_floor, rate, "prune_floor", f"row_prune_rate={rate:g} keeps")
        raise_problems(where, problems)
        raise_problems(where, bias_problems(self, self.build_method().biases))


def _refused_of_every_trainer(args: Any) -> list[tuple[bool, str]]:
    """Options of every trainer of TRL's that would be another thing on dense rows, or nothing at all."""
    optimizer = OptimizerNames(args.optim).value
    return [
        (
            args.neftune_noise_alpha is not None,
            "neftune_noise_alpha: its noise is scaled by the length of a batch, which a dense row changes. Leave it "
            "out.",
        ),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size: what bounds memory is max_tokens_per_row, which leaves steps as they are. Use "
            "auto_find_batch_size: false.",
        ),
        (
            args.include_num_input_tokens_seen not in ("no", False),
            "include_num_input_tokens_seen: num_tokens is logged. Use include_num_input_tokens_seen: no.",
        ),
        (
            any(kind in optimizer for kind in ("lomo", "layerwise")),
            f"optim={optimizer!r} steps inside backward, and a step here has several. Use optim: adamw_torch.",
        ),
        (args.use_liger_kernel, LIGER),
        (
            args.train_sampling_strategy not in ("random", "sequential"),
            f"train_sampling_strategy={args.train_sampling_strategy!r} makes batches of like lengths, which dense rows "
            "do not need. Use train_sampling_strategy: random.",
        ),
    ]
