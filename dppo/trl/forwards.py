"""The forward passes of a run: of kept completions, and at weight 0 of a rank that other ranks wait for."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from trl.trainer.utils import use_adapter

from dppo.errors import ConfigError, OutOfMemoryError
from dppo.packing import Kernel, first_passing
from dppo.packing.check import check_head, check_rows, problem_of
from dppo.packing.forward import Scored
from dppo.packing.head import add_scored_head, remove_scored_head
from dppo.trl.batch import MicroBatch, RankBatch, fill_tokens
from dppo.trl.correction import Correction, CorrectionMetrics, sampling_ratio
from dppo.trl.layouts import PaddedLayout, RowLayout, choose_layout, learns_prompts
from dppo.types import Work


class ForwardPasses:
    """All forward passes of a trainer, with gradient or without, and advice if one runs out of memory."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.checked = trainer, False
        self._sharded: bool = trainer.is_fsdp_enabled  # then every forward pass is a collective operation
        self.layout, self.heads = choose_layout(trainer)
        """``heads`` are the models with our head. TRL's own computes metrics of tokens in any case."""
        self.enter()
        self._budget = 0
        """Most tokens of a forward pass."""
        self._running: MicroBatch | None = None
        """The latest pass of a call; None before its first."""
        self._warned = False
        self.correction_metrics = CorrectionMetrics()
        self._latest: RankBatch | None = None
        self._planned: dict[Any, list[MicroBatch]] = {}
        """Passes of the latest generation: reference, old and training passes of equal rows share their tensors."""
        self.run = (Work(), Work())
        """Passes that this rank has run, without and with a gradient."""

    def __call__(
        self, model: Any, batch: MicroBatch, *, entropy: bool = False, router: bool = False, metrics: bool = False
    ) -> Scored:
        """(b, width) log-probabilities of the tokens of ``batch``; entropies, router loss and metrics if requested."""
        self._running = batch
        (scored, trained), one = self.run, Work(passes=1, tokens=batch.tokens)
        self.run = (scored, trained + one) if torch.is_grad_enabled() else (scored + one, trained)
        return self.layout.forward(model, batch, entropy=entropy, router=router, metrics=metrics)

    @property
    def correction(self) -> Correction | None:
        """The correction of a ``GRPOTrainer``; None without vLLM, or if it is switched off."""
        trainer = self._trainer
        corrected = getattr(trainer, "use_vllm", False) and trainer.vllm_importance_sampling_correction
        return partial(sampling_ratio, trainer) if corrected else None

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """The reference policy: a model of its own, or the policy without its adapter."""
        trainer = self._trainer
        if trainer.ref_model is not None:
            yield trainer.ref_model
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield trainer.model

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an out-of-memory error of a training pass into one that names the setting to lower."""
        self._running = None
        try:
            yield
        except RuntimeError as error:
            exhausted = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
            if not exhausted or self._running is None:
                raise
            tokens, whole = self._running.tokens, self._running.rank_batch
            lower = f"max_tokens_per_row: {min(self._budget, tokens) // 2}"
            if len(self._running.places) <= whole.together:  # a row cannot hold less
                lower = f"a lower {whole.length_setting}: that is {whole.least}"
            failed = f"out of memory in a pass over {tokens} tokens (max_tokens_per_row={self._budget})"
            raise OutOfMemoryError(f"{failed}. Set {lower}, or gradient_checkpointing: true.") from error

    def enter(self) -> None:
        """Get the models ready for training; another trainer may have used the same ones since."""
        dtype = torch.float32 if getattr(self._trainer.args, "cast_lm_head_to_fp32", False) else None
        for model in self.heads:
            add_scored_head(model, temperature=self._trainer.temperature, dtype=dtype)
        self.layout.enter()
        self.begun = False
        """True from the first pass of an optimizer step on any rank to the step's end."""

    def leave(self) -> None:
        """Give the models back as TRL had them."""
        self.layout.leave()
        for model in self.heads:
            remove_scored_head(model)

    def log_probs(self, rank_batch: RankBatch, weight_B: Tensor, model: Any) -> Tensor:
        """(B, T) log-probabilities without gradient of the rows of positive weight; 0 elsewhere."""
        return self._filled(rank_batch, weight_B, lambda batch: self(model, batch).logp_BT)

    def with_policy_mask(self, batch: RankBatch, place_B: Tensor, calls: int) -> RankBatch:
        """The batch with TRL's ``top_entropy_quantile``: tokens of high entropy among those of their micro-batch.

        Below 1 every completion is forwarded for it, without gradient. TRL deals completions to ``calls`` micro-batches
        in the order of ``place_B``, (B,). All ranks call together.
        """
        trainer = self._trainer
        if trainer.top_entropy_quantile >= 1.0:
            return batch

        def entropy(part: MicroBatch) -> Tensor:
            return cast(Tensor, self(trainer.model, part, entropy=True).entropy_BT)

        mask_BT, threshold = batch.loss_mask, 1 - trainer.top_entropy_quantile
        entropy_BT = self._filled(batch, torch.ones_like(batch.weight_UB[0]), entropy)
        high_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
        for call in range(calls):
            here = place_B * calls // len(place_B) == call
            high_BT[here] = trainer.get_high_entropy_mask(entropy_BT[here], mask_BT[here], threshold)
        return replace(batch, policy_mask=high_BT)

    def _filled(self, rank_batch: RankBatch, weight_B: Tensor, value: Callable[[MicroBatch], Tensor]) -> Tensor:
        batches = self._micro_batches(rank_batch, weight_B)
        if self._sharded:
            batches += [self.idle_pass()] * (self._largest(len(batches)) - len(batches))
        with self.explained():
            return fill_tokens(rank_batch, batches, value)

    def with_log_probs(self, batch: RankBatch) -> RankBatch:
        """The batch with reference log-probabilities of kept rows, and old ones of rows that later draws keep.

        In the first draw the policy has not moved: its training passes give old log-probabilities and the correction.
        """
        part, scored, correction = batch.cut(slice(None)), self.scored(batch.weight_UB), self.correction
        old = ref = ratio = None
        if (later_B := scored.get("old")) is not None:
            old = self.log_probs(part, later_B, self._trainer.model)
            if correction is not None and batch.sampler_logp is not None:
                mask_BT = part.loss_mask * (later_B > 0)[:, None]
                ratio = correction(old, batch.sampler_logp, mask_BT)
                only_later = mask_BT * (batch.weight_UB[0] == 0)[:, None]
                self.correction_metrics.add(old, batch.sampler_logp, ratio, only_later)
        if "reference" in scored:
            with self.reference() as model:
                ref = self.log_probs(part, scored["reference"], model)
        return replace(batch, old_logp=old, ref_logp=ref, ratio=ratio)

    def scored(self, weight_UB: Tensor) -> dict[str, Tensor]:
        """By the policy that scores rows without gradient, (B,) weights, positive for these rows."""
        found = {"old": weight_UB[1:].sum(0)} if len(weight_UB) > 1 else {}
        return found | ({"reference": weight_UB.sum(0)} if self._trainer.method.beta else {})

    def budget(self, rank_batch: RankBatch) -> int:
        """Most tokens of a forward pass; by default those of TRL's micro-batch of the longest sequence."""
        args = self._trainer.args
        return args.max_tokens_per_row or args.per_device_train_batch_size * rank_batch.longest * rank_batch.together

    def calls(
        self, rank_batch: RankBatch, weight_B: Tensor, calls: int, *, call_B: Tensor | None = None
    ) -> tuple[list[list[MicroBatch]], dict[str, float]]:
        """The forward passes of one optimizer step, dealt to ``calls`` >= 1 calls of the loss, and metrics of them.

        Passes lie in the last calls, because the last call synchronizes gradients. Under DDP a rank without a row runs
        one pass at weight 0 there, if any rank has a row: for the synchronization, and because metrics are summed over
        ranks by their names. Under FSDP2 every pass gathers parameters, so all ranks run equal numbers of passes.

        ``call_B`` is (B,) the call of each sequence, for a loss over all tokens of a call: they share one forward pass,
        unless ``max_tokens_per_row`` is set.
        """
        if call_B is None:
            batches = self._micro_batches(rank_batch, weight_B)
            parts = [batches[call::calls] for call in range(calls)]
        else:
            limit = self._trainer.args.max_tokens_per_row
            weights = [weight_B * (call_B == call) for call in range(calls)]
            parts = [self._micro_batches(rank_batch, each, limit or sys.maxsize) for each in weights]
            self._budget = limit or max((batch.tokens for part in parts for batch in part), default=1)
        parts.sort(key=bool)  # stable: empty ones first
        passes = sum(map(len, parts))
        most = self._largest(passes)
        self.begun |= most > 0
        missing = most - passes if self._sharded else int(most > 0 and not passes)
        if missing:
            parts[-1] = [self.idle_pass()] * missing + parts[-1]
        return parts, self._row_metrics(rank_batch, parts, most)

    def _row_metrics(self, rank_batch: RankBatch, parts: list[list[MicroBatch]], most: int) -> dict[str, float]:
        """``rows/*`` of docs/metrics.md, over all ranks; ``most`` is the largest number of passes of a rank."""
        batches = [batch for part in parts for batch in part]
        kept = [place for batch in batches if not batch.idle for place in batch.places]
        tokens, room = sum(batch.tokens for batch in batches), len(batches) * self._budget
        unpadded = sum(rank_batch.prompt_tokens[i] + rank_batch.completion_tokens[i] for i in kept)
        counts = [tokens, len(kept) * rank_batch.padded_width, unpadded, room]
        counted = torch.tensor([counts], device=rank_batch.weight_UB.device)
        tokens, padded, unpadded, room = map(float, self._trainer.accelerator.gather(counted).sum(0).tolist())
        metrics = {"rows/tokens": tokens, "rows/padded_tokens": padded, "rows/sequence_tokens": unpadded}
        return metrics | {"rows/forwards": float(most)} | ({"rows/fill": tokens / room} if room else {})

    def _largest(self, number: int) -> int:
        """The largest number of a rank; all ranks call together."""
        accelerator = self._trainer.accelerator
        return int(accelerator.gather(torch.tensor([number], device=accelerator.device)).max())

    def _micro_batches(self, rank_batch: RankBatch, weight_B: Tensor, room: int | None = None) -> list[MicroBatch]:
        """Forward passes of the rows of positive weight in ``room`` tokens each, laid out once in a generation."""
        self._budget = budget = room or self.budget(rank_batch)
        if self._latest is None or self._latest.prompt_ids is not rank_batch.prompt_ids:
            self._planned.clear()
        self._latest = rank_batch
        kept: list[int] = weight_B.nonzero().flatten().tolist()
        key = rank_batch.draws, tuple(kept), budget
        if key not in self._planned:
            places = self.layout.places(rank_batch, kept, budget)
            self._planned[key] = self.layout.micro_batches(rank_batch, weight_B, places)
        batches = [replace(each, rank_batch=rank_batch, weight=weight_B[each.rows]) for each in self._planned[key]]
        most = max((batch.tokens for batch in batches), default=0)
        if self._trainer.args.max_tokens_per_row and most > budget and not self._warned:  # such a pass cannot be split
            self._warned = True
            over = f"{rank_batch.least} is {most} tokens, over max_tokens_per_row={budget}"
            warnings.warn(f"{over}: it gets a row of its own. Set max_tokens_per_row: {most}.", stacklevel=2)
        return batches

    def idle_pass(self) -> MicroBatch:
        """The shortest row of the latest batch at weight 0, for a rank that other ranks wait for."""
        rank_batch = self._latest
        assert rank_batch is not None
        shortest = int(rank_batch.lengths.argmin())
        (batch,) = self.layout.micro_batches(rank_batch, torch.zeros_like(rank_batch.weight_UB[0]), [[shortest]])
        return replace(batch, idle=True)

    def of_last_call(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """The passes of the call that ends an optimizer step: an idle one if gradients would not be synchronized.

        Earlier calls, of other generations, may have accumulated gradients without synchronization.
        """
        begun, self.begun = self.begun, False
        alone = self._trainer.accelerator.num_processes == 1 and not self._sharded
        return [self.idle_pass()] if begun and not batches and not alone else batches

    def check_once(self) -> None:
        """Compare the head with the model, and rows with padding, before the first training step; all ranks together.

        Kernels were probed on other shapes than this model has. If one fails here, the next is tried.
        """
        if self.checked:
            return
        self.checked, layout, trainer = True, self.layout, self._trainer
        self._check_head()
        if not isinstance(layout, RowLayout):
            return

        def problem_of_rows(kernel: Kernel) -> str:  # shards are differentiated in training steps alone
            with torch.set_grad_enabled(not self._sharded), trainer.accelerator.autocast():
                return problem_of(check_rows, trainer.model, temperature=trainer.temperature, kernel=kernel)

        kernels = (layout.kernel, *layout.others)
        kernel, problem = first_passing(kernels, problem_of_rows, lambda here: bool(self._largest(int(here))))
        if kernel is not None:
            if kernel is not layout.kernel:
                self.layout = replace(layout, kernel=kernel, others=())
                trainer.accelerator.print(f"dppo | {self.layout}")
            return
        if trainer.args.layout != "auto":
            raise ConfigError(f"rows disagree with padding on this model: {problem}. Set layout: padded.")
        warnings.warn(f"rows disagree with padding on this model, so padding is used: {problem}", stacklevel=2)
        layout.leave()
        padded: dict[str, Any] = {"reason": "rows failed the self-check", "padded_forward": trainer.padded_forward}
        self.layout = PaddedLayout(autocast=layout.autocast, router=layout.router, **padded)

    def _check_head(self) -> None:
        """Refuse a model whose log-probabilities are not those of its head: every layout would train on others."""
        trainer = self._trainer
        if learns_prompts(trainer.model):
            return  # its sequences are longer than its inputs
        with trainer.accelerator.autocast():
            problem = problem_of(check_head, trainer.model, temperature=trainer.temperature)
        if self._largest(int(problem != "")):
            name = type(trainer.accelerator.unwrap_model(trainer.model)).__name__
            raise ConfigError(
                f"the head of {name} alone does not give its log-probabilities, here or on another rank: "
                f"{problem or 'it does here'}. TRL's forward and every layout need a linear head. Use another model."
            )
