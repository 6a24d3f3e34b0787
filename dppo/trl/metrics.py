"""What a trainer measures of itself: seconds by phase, and TRL's metrics of a step (``entropy``, ``kl``, ...).

The metrics are estimated from the completions kept.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import IntervalStrategy, TrainerCallback, TrainerState, TrainingArguments
from trl.trainer.utils import nanmax, nanmin

from dppo.methods import Method
from dppo.objective import (
    DAPO_TOKENS,
    Tokens,
    cispo,
    clipped_surrogate,
    clipped_tokens,
    off_policy_masked,
    sequence_ratio,
    vespo,
    weighted_sum,
)
from dppo.objective.losses import bound, vespo_weight

PHASES = ("rollout", "reward", "prune", "log_probs", "forward_backward", "optimizer")
RECORD, CHECK = "record", "check"
"""Phases that are not training, so that no other phase counts them; they are not logged."""
STEP, LOADING = "step", "loading"
"""An optimizer step from its begin to its end, with all phases in it, and reading its batches; they are not logged."""


def logs_next_step(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the optimizer step in progress will be logged, so that costly metrics are worth computing."""
    return logs_at(args, state, state.global_step + 1)


def logs_at(args: TrainingArguments, state: TrainerState, step: int) -> bool:
    """Whether an optimizer step will be logged."""
    if args.logging_strategy != IntervalStrategy.STEPS:
        return args.logging_strategy != IntervalStrategy.NO
    return (step == 1 and args.logging_first_step) or step % max(1, state.logging_steps) == 0


def share_done(state: TrainerState) -> float:
    """Share of the run's optimizer steps that are done, in [0, 1]; 0 before training has begun."""
    return min(state.global_step / max(state.max_steps, 1), 1.0)


def wall() -> float:
    """Seconds of the wall's clock, once the accelerator has done what this process asked it for, if anything."""
    device = torch.accelerator.current_accelerator()
    if device is not None:
        used = getattr(torch.get_device_module(device), "is_initialized", torch.accelerator.is_available)
        if used():
            torch.accelerator.synchronize()
    return time.perf_counter()


class PhaseClock:
    """Seconds spent in each phase since the last ``flush``; nested phases are not counted twice.

    Args:
        now: the clock, in seconds: of the wall, or ``time.process_time`` where other work runs on the machine.
    """

    def __init__(self, now: Callable[[], float] = wall) -> None:
        self.now = now
        self._seconds: dict[str, float] = defaultdict(float)
        self.total: dict[str, float] = defaultdict(float)
        """Seconds of each phase since the beginning."""
        self._started: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def __call__(self, phase: str, *, wait: bool | None = None) -> Iterator[None]:
        """Add the time of a ``with`` block to ``phase``, less what inner phases took.

        Start and end wait for the accelerator. With ``wait`` the start does not, and the end only if it is True: a
        phase of several blocks then waits once.
        """
        start = self._read(wait is None)
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = self._read(wait is not False) - start
            own = seconds - self._inner.pop()
            self._seconds[phase] += own
            self.total[phase] += own
            self._inner[-1] += seconds

    def _read(self, wait: bool) -> float:
        return self.now() if wait or self.now is not wall else time.perf_counter()

    def start(self, phase: str) -> None:
        """Begin a phase that ends in another call: ``stop`` adds its time."""
        self._started[phase] = self.now()

    def stop(self, phase: str) -> None:
        """Add the time since ``start``."""
        seconds = self.now() - self._started.pop(phase)
        self._seconds[phase] += seconds
        self.total[phase] += seconds

    def flush(self) -> dict[str, float]:
        """``time/<phase>`` to seconds, and start again from zero."""
        seconds = {f"time/{phase}": self._seconds[phase] for phase in PHASES}
        self._seconds.clear()
        return seconds


class StepSeconds(TrainerCallback):
    """Times whole optimizer steps on a trainer's clock: phases leave out what TRL's loop does between them."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` once the batches of a step are there."""
        self.trainer.clock.start(STEP)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after an optimizer step, before it logs, saves or evaluates."""
        self.trainer.clock.stop(STEP)


class WeightedSums:
    """Sums of metrics over the completions of each part of an optimizer step, weighted, for all ranks at once."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor, mask_BT: Tensor, weight: Tensor, part_B: Tensor) -> None:
        """Add values of tokens, (B, T), over those that carry loss; or of completions, (B, 1).

        ``weight`` is (B,) of completions, or of tokens, (B, T), for values of tokens; ``part_B`` (B,) the part of each.
        """
        value = value.detach().float()
        if weight.dim() == 2:
            weighted_B = (value * mask_BT * weight).sum(1)
        else:
            weighted_B = (value[:, 0] if value.shape[1] == 1 else (value * mask_BT).sum(1)) * weight
        self._of(name, value).index_add_(0, part_B, weighted_B)

    def add_whole(self, name: str, value: Tensor) -> None:
        """Add one value, of no part."""
        self._of(name, value)[0] += value.detach().float()

    def _of(self, name: str, like: Tensor) -> Tensor:
        return self._sums.setdefault(name, like.new_zeros(self._parts, dtype=torch.float32))

    def reduced(self, accelerator: Any) -> dict[str, list[float]]:
        """The sums of each part over all ranks, by name. All ranks call together, with the same names."""
        names = sorted(self._sums)
        if not names:
            return {}
        sums = accelerator.reduce(torch.stack([self._sums[name] for name in names]), reduction="sum")
        return dict(zip(names, sums.tolist(), strict=True))


OF_KEPT = {"entropy", "kl", "vespo/phi_seq_mean"}
"""Estimates of the mean over all completions that have a gradient, from those kept, each by its weight. A micro-batch's
sum is divided by what it held before the draw: over what is kept of it, one or two completions, weights would cancel.
The others are shares of all tokens, or completions, of the full batch: one without an advantage is never clipped."""


OF_STEP = {"prune/effective_rows", "prune/tokens_trained", "prune/tokens_skipped"}
OF_STEP |= {"rows/tokens", "rows/forwards", "rows/padded_tokens", "rows/sequence_tokens"}
"""Metrics that add up over the shares of an optimizer step."""


def of_step(metrics: Mapping[str, float], together: int) -> dict[str, float]:
    """Metrics of one share, as means over shares give those of an optimizer step of so many ``together``."""
    return {name: value * together if name in OF_STEP else value for name, value in metrics.items()}


OTHERS = "squares of other terms", "squares of advantages"


class LossMetrics:
    """Collects the metrics of one optimizer step, those of each of TRL's micro-batches by themselves, as TRL does.

    They do not depend on how completions fall into forward passes. A step of ``together`` shares has one of each.
    """

    def __init__(self, method: Method, calls: int, together: int = 1) -> None:
        loss = method.token_loss
        if isinstance(loss, partial) and loss.func is off_policy_masked:
            loss = loss.keywords["loss"]
        self._loss, self._constants = bound(loss)
        self._method, self._calls, self._sums = method, calls, WeightedSums(calls)
        self._parts = calls * together if method.normaliser.name == DAPO_TOKENS.name else 1
        self._units: dict[str, str] = {}
        self._clipped_shares: list[Tensor] = []
        self.others = 0.0, 0.0
        """What ``other_terms`` found in the optimizer step, of all ranks, once metrics are ``reduced``."""

    @torch.no_grad()
    def add(
        self,
        tokens: Tokens,
        weight: Tensor,
        entropy_BT: Tensor | None,
        router_loss: Tensor | None,
        attended_B: Tensor,
        call_B: Tensor,
    ) -> None:
        """Add a forward pass; ``weight`` is (B,) of its completions, or (B, T) of their tokens.

        ``call_B`` is (B,) the micro-batch that TRL would have each completion in.
        """
        weight_B = weight
        if weight.dim() == 2:  # estimates 1 for each completion, as a whole completion's weight does
            counted_B = tokens.mask_BT.sum(1) if tokens.counted_B is None else tokens.counted_B
            weight_B = (weight * tokens.mask_BT).sum(1) / counted_B.clamp(min=1)
        values = self._clipping(tokens, weight_B, call_B) | ({} if entropy_BT is None else {"entropy": entropy_BT})
        if self._method.beta:
            values["kl"] = self._method.kl(tokens)
        self._units |= {name: self._unit(name) for name in values}
        counts = {"kept tokens": torch.ones_like(tokens.logp_BT), "kept sequences": torch.ones_like(weight_B)[:, None]}
        for name, value in (values | counts).items():
            self._sums.add(name, value, tokens.mask_BT, weight if value.shape[1] > 1 else weight_B, call_B)
        if self._method.entropy_coef:  # the loss that is logged has the bonus in it
            per_sequence = self._method.normaliser.per_sequence
            loss = weighted_sum(
                self._method.loss(tokens), tokens.mask_BT, weight, per_sequence=per_sequence, counted_B=tokens.counted_B
            )
            self._sums.add_whole("policy_loss", loss)
        if router_loss is not None:
            self._sums.add_whole("aux_loss", router_loss)
            self._sums.add_whole("kept attended", (attended_B * weight_B).sum())

    def add_others(self, square_2: Tensor) -> None:
        """Add what ``other_terms`` found in a micro-batch."""
        for name, square in zip(OTHERS, square_2, strict=True):
            self._sums.add_whole(name, square)

    def _clipping(self, tokens: Tokens, weight_B: Tensor, call_B: Tensor) -> dict[str, Tensor]:
        """What the loss cuts off, (B, T) or (B, 1) each."""
        constants = self._constants
        if self._loss is clipped_surrogate:
            bounds = {key: constants[key] for key in ("clip_low", "clip_high")}
            low, high = clipped_tokens(tokens, ratio=self._capped_ratio, **bounds)
            counted_B1 = tokens.mask_BT.sum(1, keepdim=True).clamp(min=1)
            each = [
                x if x.shape[1] == 1 else (x * tokens.mask_BT).sum(1, keepdim=True) / counted_B1 for x in (low, high)
            ]
            self._clipped_shares.append(torch.cat([*each, call_B[:, None], (weight_B > 0)[:, None]], 1).float())
            return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
        if self._loss is cispo:
            clipped = constants["ratio"](tokens) > constants["ratio_max"]
            return {"cispo_clip_ratio": clipped & (tokens.advantage_B[:, None] > 0)}
        return {"vespo/phi_seq_mean": vespo_weight(tokens, **constants)} if self._loss is vespo else {}

    def _capped_ratio(self, tokens: Tokens) -> Tensor:
        """The ratio as clipping finds it: after the cap of ``delta``, where there is one."""
        ratio, delta = self._constants["ratio"](tokens), self._constants.get("delta")
        return ratio if delta is None else ratio.clamp(max=delta)

    def _unit(self, name: str) -> str:
        """What a metric is a mean over. Its shape does not tell: completions may all be one token long."""
        of_sequences = self._loss is vespo or self._constants.get("ratio") is sequence_ratio
        return "sequences" if of_sequences and name not in ("entropy", "kl") else "tokens"

    def reduced(self, accelerator: Any, counts_5C: Tensor, *, denominator: float) -> list[dict[str, float]]:
        """The metrics of each micro-batch over all ranks, of the step with the first. All ranks call together.

        ``counts_5C`` are those of ``RankBatch``: where a micro-batch has no tokens, metrics are 0 as in TRL; where it
        has none with a gradient, they are not known. ``denominator`` is that of the step's share of the loss.
        """
        tokens_C, sequences_C, unclipped_C, live_tokens_C, live_sequences_C = counts_5C.tolist()
        sums = self._sums.reduced(accelerator)
        whole = {name: sum(value_C) for name, value_C in sums.items()}
        self.others = whole.get(OTHERS[0], 0.0), whole.get(OTHERS[1], 0.0)
        found: list[dict[str, float]] = [{} for _ in range(self._calls)]
        if "policy_loss" in whole:  # with a denominator over all calls TRL logs the mean of their parts
            policy_loss = whole["policy_loss"] / denominator / self._parts
            found[0] |= {"entropy_coef": self._method.entropy_coef, "policy_loss": policy_loss}
        if "aux_loss" in whole:
            attended = whole["kept attended"]
            found[0]["aux_loss"] = whole["aux_loss"] / attended if attended > 0 else float("nan")
        totals: dict[str, list[float]] = {"tokens": tokens_C, "sequences": sequences_C}
        live: dict[str, list[float]] = {"tokens": live_tokens_C, "sequences": live_sequences_C}
        for name, unit in self._units.items():
            total_C = totals[unit]
            if name in OF_KEPT:  # by what the step kept in all: its weights add up to what there was only on average
                share = whole[f"kept {unit}"] / (sum(live[unit]) or 1.0)
                total_C = [share * count for count in live[unit]]
            for metrics, value, total, tokens in zip(found, sums[name], total_C, tokens_C, strict=True):
                metrics[name] = value / total if total > 0 else float("nan") if tokens else 0.0
        if self._clipped_shares:
            for metrics, ends in zip(found, self._clip_ends(accelerator, unclipped_C), strict=True):
                metrics |= ends
        return found

    def _clip_ends(self, accelerator: Any, unclipped_C: list[float]) -> list[dict[str, float]]:
        """The completion clipped least from below, and most from above, of each micro-batch over all ranks."""
        share_B4, ends = torch.cat(self._clipped_shares), []
        for call, unclipped in enumerate(unclipped_C):
            here_B2 = share_B4[(share_B4[:, 2] == call) & (share_B4[:, 3] > 0), :2]
            if unclipped:  # some completion that is not forwarded
                here_B2 = torch.cat([here_B2, here_B2.new_zeros(1, 2)])
            none = here_B2.new_full((2,), torch.nan)  # a rank may have no completion to forward
            ends.append(torch.stack([here_B2[:, 0].min(), here_B2[:, 1].max()]) if len(here_B2) else none)
        of_ranks = accelerator.gather(torch.stack(ends)[None])
        return [
            {"clip_ratio/low_min": nanmin(low_R).item(), "clip_ratio/high_max": nanmax(high_R).item()}
            for low_R, high_R in of_ranks.permute(1, 2, 0)
        ]
