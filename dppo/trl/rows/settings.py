"""Settings of a trainer on the rows of a dataset: their checks, and the method they describe."""

from dataclasses import dataclass
from typing import Any

from transformers.training_args import OptimizerNames

from dppo.errors import raise_problems
from dppo.methods import RowMethod
from dppo.methods.settings import ROW_CHOICES, bias_problems, row_method, row_rate, setting_problems
from dppo.pruning.prune import floor_problems
from dppo.settings import RowSettings
from dppo.trl.support import LIGER, RANGES


@dataclass
class RowConfig(RowSettings):
    """``RowSettings`` with their checks."""

    def build_method(self) -> RowMethod:
        """The ``RowMethod`` that these settings describe."""
        return row_method(self)

    def check_settings(self, refused: list[tuple[bool, str]]) -> None:
        """Check the fields of ``RowSettings`` and TRL's.

        Args:
            refused: whether an option of TRL's is not served, and the sentence that says why.
        """
        where = type(self).__name__
        raise_problems(where, setting_problems(self, ROW_CHOICES, RANGES))
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
