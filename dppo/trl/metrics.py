"""Seconds of a trainer by phase, and TRL's metrics of a step (``entropy``, ``kl``, ...), from the completions kept."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import IntervalStrategy, TrainerState, TrainingArguments

from dppo.methods import Method
from dppo.objective import Tokens, losses, weighted_sum
from dppo.trl.batch import MicroBatch

PHASES = ("rollout", "reward", "prune", "log_probs", "forward_backward", "optimizer")
RECORD, CHECK = "record", "check"
"""Phases that are not training. No other phase counts them, and they are not logged."""
STEP, LOADING = "step", "loading"
"""A whole optimizer step with all its phases, and reading its batches. They are not logged."""
MAIN = {"candidates/reward", "candidates/zero_variance_groups", "prune/prompts_kept_share", "prune/kept_share"}
MAIN |= {"prune/added_variance", "saved/seconds", "saved/share", "time/rollout", "time/update", "time/other"}
"""Metrics of ours that are logged under ``log_metrics: main``; the last three add up to a step's seconds."""
OURS = ("candidates/", "rollout/groups", "rollout/rounds", "rollout/zero_variance_groups", "prune/", "rows/", "time/")
"""Beginnings of the names of ours; TRL's asynchronous trainer has others under ``rollout/``."""


def logs_next_step(args: TrainingArguments, state: TrainerState) -> bool:
    """True if the optimizer step in progress will be logged: then costly metrics are computed."""
    if args.logging_strategy != IntervalStrategy.STEPS:
        return args.logging_strategy != IntervalStrategy.NO
    step = state.global_step + 1
    return (step == 1 and args.logging_first_step) or step % max(1, state.logging_steps) == 0


def share_done(state: TrainerState) -> float:
    """Share of the run's optimizer steps that are done, in [0, 1]; 0 before training has begun."""
    return min(state.global_step / max(state.max_steps, 1), 1.0)


def wall() -> float:
    """Seconds of the wall clock, after the accelerator has finished the work of this process."""
    device = torch.accelerator.current_accelerator()
    if device is not None:
        used = getattr(torch.get_device_module(device), "is_initialized", torch.accelerator.is_available)
        if used():
            torch.accelerator.synchronize()
    return time.perf_counter()


class PhaseClock:
    """Seconds of the clock ``now`` in each phase since the last ``flush``; nested phases are not counted twice."""

    def __init__(self, now: Callable[[], float] = wall) -> None:
        self.now = now
        self._seconds: dict[str, float] = defaultdict(float)
        self.total: dict[str, float] = defaultdict(float)
        """Seconds of each phase since the beginning."""
        self._inner = [0.0]

    @contextmanager
    def __call__(self, phase: str, *, wait: bool | None = None) -> Iterator[None]:
        """Add the time of a ``with`` block to ``phase``, less what inner phases took.

        Start and end wait for the accelerator. If ``wait`` is given, only the end does, if it is True.
        """
        start = self._read(wait is None)
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = self._read(wait is not False) - start
            self.add(phase, seconds - self._inner.pop())
            self._inner[-1] += seconds

    def _read(self, wait: bool) -> float:
        return self.now() if wait or self.now is not wall else time.perf_counter()

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds to ``phase``, whatever phases have run in them."""
        self._seconds[phase] += seconds
        self.total[phase] += seconds

    def flush(self) -> dict[str, float]:
        """``time/<phase>`` to seconds, and of a whole step ``time/other``, its rest; then start again from zero."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        found = {f"time/{phase}": seconds[phase] for phase in PHASES}
        if STEP in seconds:
            found["time/other"] = seconds[STEP] - sum(seconds[phase] for phase in (*PHASES, RECORD, CHECK))
        return found


OF_KEPT = {"entropy", "kl", "vespo/phi_seq_mean", "aux_loss"}
"""Means over completions with a gradient, estimated by those kept and divided by the weights of the step. Others are
shares of all tokens, or completions, of the full batch: a completion without an advantage is never clipped."""
OF_STEP = {"prune/effective_rows", "prune/tokens_trained", "prune/tokens_skipped"}
OF_STEP |= {"rows/tokens", "rows/forwards", "rows/padded_tokens", "rows/sequence_tokens"}
"""Metrics that add up over the shares of an optimizer step."""
OTHERS = "squares of other terms", "squares of advantages"


def of_step(metrics: Mapping[str, float], together: int) -> dict[str, float]:
    """Metrics of one share, scaled so that the mean over ``together`` shares is the value of their optimizer step."""
    return {name: value * together if name in OF_STEP else value for name, value in metrics.items()}


class LossMetrics:
    """TRL's metrics of one optimizer step, or of the share of a generation in it, as if TRL had one micro-batch.

    Each is one weighted sum, so it does not depend on how completions fall into micro-batches and forward passes.
    """

    def __init__(self, method: Method) -> None:
        self._loss, self._constants = losses.bound(method.token_loss)
        if self._loss is losses.off_policy_masked:
            self._loss, self._constants = losses.bound(self._constants["loss"])
        of_sequences = self._loss is losses.vespo or self._constants.get("ratio") is losses.sequence_ratio
        # A value's shape does not show its unit: completions may all be one token long.
        self._unit = "sequences" if of_sequences else "tokens"
        self._method = method
        self._sums: dict[str, Tensor] = {}
        self._units: dict[str, str] = {}
        self._ends_2: Tensor | None = None
        """Smallest share of a completion clipped from below, and negative largest share clipped from above."""

    @torch.no_grad()
    def add(self, tokens: Tokens, batch: MicroBatch, entropy_BT: Tensor | None, router_loss: Tensor | None) -> None:
        """Add a forward pass. Nothing waits for the device."""
        weight = batch.loss_weight
        weight_B, weight_BT = weight, weight if weight.dim() == 2 else weight[:, None]
        if weight.dim() == 2:  # estimates 1 for each completion, as a whole completion's weight does
            counted_B = tokens.mask_BT.sum(1) if tokens.counted_B is None else tokens.counted_B
            weight_B = (weight * tokens.mask_BT).sum(1) / counted_B.clamp(min=1)
        values = self._cut_off(tokens)
        if "clip_ratio/low_mean" in values:
            ends = torch.stack([values["clip_ratio/low_mean"], values["clip_ratio/high_mean"]])
            self._add_ends(ends, tokens.mask_BT, weight_B > 0)
        self._units |= dict.fromkeys(values, self._unit)
        if entropy_BT is not None:
            values["entropy"] = entropy_BT
        if self._method.beta:
            values["kl"] = self._method.kl(tokens)
        for name, value in values.items():
            of_tokens = self._units.setdefault(name, "tokens") == "tokens"
            self._add(name, value * tokens.mask_BT * weight_BT if of_tokens else value[:, 0] * weight_B)
        self._add("kept tokens", tokens.mask_BT * weight_BT)
        self._add("kept sequences", weight_B)
        if self._method.entropy_coef:  # the loss that is logged has the bonus in it
            per_sequence = self._method.normaliser.per_sequence
            loss = weighted_sum(
                self._method.loss(tokens), tokens.mask_BT, weight, per_sequence=per_sequence, counted_B=tokens.counted_B
            )
            self._add("policy_loss", loss)
        if router_loss is not None:
            self._units["aux_loss"] = "attended"
            self._add("aux_loss", router_loss)
            self._add("kept attended", batch.rank_batch.lengths[batch.rows] * weight_B)

    def _cut_off(self, tokens: Tokens) -> dict[str, Tensor]:
        """TRL's metrics of what the loss cuts off, (B, T) or (B, 1) each; empty for a loss of one's own."""
        constants = self._constants
        if self._loss is losses.clipped_surrogate:
            ratio, delta = constants["ratio"], constants["delta"]
            capped = ratio if delta is None else lambda tokens: ratio(tokens).clamp(max=delta)
            bounds = {name: constants[name] for name in ("clip_low", "clip_high")}
            low, high = losses.clipped_tokens(tokens, ratio=capped, **bounds)
            return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
        if self._loss is losses.cispo:
            clipped = constants["ratio"](tokens) > constants["ratio_max"]
            return {"cispo_clip_ratio": clipped & (tokens.advantage_B[:, None] > 0)}
        return {"vespo/phi_seq_mean": losses.vespo_weight(tokens, **constants)} if self._loss is losses.vespo else {}

    def add_others(self, square_2: Tensor) -> None:
        """Add the sums of ``other_terms`` of a micro-batch."""
        for name, square in zip(OTHERS, square_2, strict=True):
            self._add(name, square)

    def _add(self, name: str, value: Tensor) -> None:
        value = value.detach().float().sum()
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _add_ends(self, clipped_2BX: Tensor, mask_BT: Tensor, kept_B: Tensor) -> None:
        share_2B = (clipped_2BX * mask_BT).sum(2) / mask_BT.sum(1).clamp(min=1)
        ends_2 = torch.stack([share_2B[0], -share_2B[1]]).masked_fill(~kept_B, torch.inf).amin(1)
        self._ends_2 = ends_2 if self._ends_2 is None else self._ends_2.minimum(ends_2)

    def reduced(
        self, accelerator: Any, full_3: Tensor, *, denominator: float
    ) -> tuple[dict[str, float], tuple[float, float]]:
        """The metrics over all ranks, and the sums of ``add_others``. All ranks call together.

        ``full_3`` is ``RankBatch.full_U3`` of the optimizer step, and ``denominator`` that of the share's loss.
        """
        names = sorted(self._sums)
        if not names:
            return {}, (0.0, 0.0)
        totals = accelerator.reduce(torch.stack([self._sums[name] for name in names]), reduction="sum").tolist()
        sums = dict(zip(names, totals, strict=True))
        found: dict[str, float] = {}
        if "policy_loss" in sums:
            found["entropy_coef"] = self._method.entropy_coef
            found["policy_loss"] = sums["policy_loss"] / denominator
        full: dict[str, float] = dict(zip(("tokens", "sequences", "unclipped"), full_3.tolist(), strict=True))
        for name, unit in self._units.items():
            weight = sums[f"kept {unit}"] if name in OF_KEPT else full[unit]
            found[name] = sums[name] / weight if weight > 0 else math.nan
        if self._ends_2 is not None:
            ends_2 = accelerator.gather(self._ends_2[None]).amin(0)
            ends_2 = ends_2.clamp(max=0) if full["unclipped"] else ends_2  # one that is not forwarded is not clipped
            low, high = ends_2.masked_fill(ends_2.isinf(), torch.nan).abs().tolist()
            found |= {"clip_ratio/low_min": low, "clip_ratio/high_max": high}
        return found, (sums.get(OTHERS[0], 0.0), sums.get(OTHERS[1], 0.0))
