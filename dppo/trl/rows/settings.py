"""The settings of a run on rows: what ``DPPOSFTConfig`` and ``DPPODPOConfig`` have beside TRL's, and their method."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_type_hints

from transformers.training_args import OptimizerNames

from dppo.errors import raise_problems
from dppo.methods import ROW_METHODS, RowMethod
from dppo.pruning import DESIGNS, PIVOTAL, SCHEDULES, constant
from dppo.settings import AUTO, FULL_SHARE, LEFT_OUT
from dppo.step.asked import DEFAULT_FLOOR, choice_problems
from dppo.typed import mismatch


@dataclass
class RowSettings:
    """What trainers on rows add to TRL's arguments."""

    method: str = field(
        default="dppo",
        metadata={
            "help": "How rows are pruned: `dppo` (probability proportional to the recorded score, unbiased), `uniform` "
            "(all alike: the control), `infobatch` (once an epoch, rows below the mean score, the last eighth of the "
            "run unpruned), or `infobatch_kept` (the same, averaged over what is kept as in its code: biased)."
        },
    )
    row_prune_rate: float = field(
        default=LEFT_OUT,
        metadata={
            "help": "Share of the rows with a recorded score that is not trained on, in [0, 1): of their tokens for "
            "`dppo` and `uniform`, of the rows below the mean for `infobatch`. Rows without a score are always "
            "trained on, so this does nothing in the first epoch. Default: the method's, 0.5."
        },
    )
    row_score: str = field(
        default=AUTO,
        metadata={
            "help": "What is recorded of a visit: `norm` (about the norm of the row's gradient), `loss`, or `auto`: "
            "the method's own, `norm` for `dppo` and `loss` for `infobatch`."
        },
    )
    prune_floor: float | None = field(
        default=None,
        metadata={
            "help": "Smallest probability of keeping a row, in (0, 1 - rate]; no weight exceeds one over it. Default: "
            "0.2, or half of 1 - rate where that is smaller."
        },
    )
    sampling_design: str = field(
        default=PIVOTAL.name,
        metadata={"help": "How rows are drawn given their probabilities: `pivotal`, `systematic`."},
    )
    prune_schedule: str = field(
        default=AUTO,
        metadata={
            "help": "How the rate changes over the run: `constant`, `stop` (0 after prune_until), `fade`, or `auto`: "
            "the method's own, `stop` for `infobatch` and `constant` for all others."
        },
    )
    prune_until: float = field(
        default=FULL_SHARE,
        metadata={"help": "Share of the run, in [0, 1], with the full rate where prune_schedule is not `constant`."},
    )
    recorded_scores: str | None = field(
        default=None,
        metadata={
            "help": "File with the scores that an earlier run recorded (`dppo_rows.npz` in its checkpoints): the first "
            "epoch is then pruned too. Default: none."
        },
    )
    max_tokens_per_row: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of one forward pass, >= 1: what bounds memory. Default: per_device_train_batch_size times "
            "the longest sequence of the step."
        },
    )
    layout: str = field(
        default="rows",
        metadata={
            "help": "How kept rows are forwarded. `rows`: dense, nothing padded, equal prompts once; `packed`: the "
            "same without sharing prompts; `auto`: `rows`, and padded if the self-check at the start fails; `padded`: "
            "length-sorted padding."
        },
    )
    accept_bias: bool = field(
        default=False,
        metadata={"help": "Must be set to train with a method whose expected gradient is not that of all rows."},
    )
    accept_missing: bool = field(
        default=False,
        metadata={
            "help": "Must be set to resume from a checkpoint without its optimizer, scheduler or random numbers, with "
            "new ones: the run is then another one."
        },
    )

    def build_method(self) -> RowMethod:
        """The ``RowMethod`` that these settings describe."""
        base = ROW_METHODS[self.method]
        rate = base.rows.rate if self.row_prune_rate is None else self.row_prune_rate
        floor = min(DEFAULT_FLOOR, (1 - rate) / 2) if self.prune_floor is None else self.prune_floor
        schedule = base.schedule if self.prune_schedule == AUTO else SCHEDULES[self.prune_schedule]
        return replace(
            base,
            rows=replace(base.rows, rate=rate, floor=floor, design=DESIGNS[self.sampling_design]),
            score=base.score if self.row_score == AUTO else self.row_score,  # pyright: ignore[reportArgumentType]
            schedule=schedule if schedule is constant else partial(schedule, until=self.prune_until),
        )


CHOICES = {
    "method": ROW_METHODS,
    "row_score": (AUTO, "norm", "loss"),
    "sampling_design": tuple(name for name, each in DESIGNS.items() if each.unbiased and each.fixed_size),
    "prune_schedule": (AUTO, *SCHEDULES),
    "layout": ("rows", "packed", "auto", "padded"),
}


def _refused_of_both(args: Any) -> list[tuple[bool, str]]:
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
        (
            args.use_liger_kernel,
            "use_liger_kernel is deprecated in TRL. Use model_init_kwargs: {use_kernels: true}.",
        ),
    ]


def check_rows_settings(args: Any, where: str, refused: list[tuple[bool, str]]) -> None:
    """Check the fields of ``RowSettings`` and TRL's.

    Args:
        args: with these fields.
        where: the class that has them.
        refused: whether an option of TRL's is not served, and the sentence that says why.

    Raises:
        ConfigError: listing every field that is out of range, biased without ``accept_bias``, or not served.
    """
    problems, hints = [], get_type_hints(RowSettings)
    for name in RowSettings.__annotations__:
        value = getattr(args, name)
        if value is not getattr(RowSettings, name, None) and value is not None:
            problems += filter(None, [mismatch(name, value, hints[name], "leaving it out.")])
    raise_problems(where, problems)
    raise_problems(where, choice_problems(args, CHOICES))
    rate = ROW_METHODS[args.method].rows.rate if args.row_prune_rate is None else args.row_prune_rate
    if not 0 <= rate < 1:
        problems.append(f"row_prune_rate={rate:g} must be in [0, 1). To prune half, write row_prune_rate: 0.5.")
    elif args.prune_floor is not None and not 0 < args.prune_floor <= round(1 - rate, 9):
        problems.append(
            f"prune_floor={args.prune_floor:g} must be in (0, {1 - rate:g}], the share that row_prune_rate={rate:g} "
            f"keeps. Try prune_floor: {(1 - rate) / 2:g}."
        )
    if not 0 <= args.prune_until <= 1:
        problems.append(f"prune_until={args.prune_until:g} must be in [0, 1]. Try prune_until: {FULL_SHARE:g}.")
    if args.max_tokens_per_row is not None and args.max_tokens_per_row < 1:
        problems.append(f"max_tokens_per_row={args.max_tokens_per_row} must be >= 1. Try max_tokens_per_row: 4096.")
    grouped = getattr(args, "train_sampling_strategy", "random")
    if grouped not in ("random", "sequential"):
        problems.append(
            f"train_sampling_strategy={grouped!r} makes batches of like lengths, which dense rows do not need. Use "
            "train_sampling_strategy: random."
        )
    raise_problems(where, problems + [sentence for wrong, sentence in [*_refused_of_both(args), *refused] if wrong])
    method = args.build_method()
    if method.biases and not args.accept_bias:
        raise_problems(
            where,
            [
                f"method={args.method!r} is biased: {'; '.join(method.biases)}. Use method='dppo', or set "
                "accept_bias=True to train with it on purpose."
            ],
        )
