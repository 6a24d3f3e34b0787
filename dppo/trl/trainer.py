"""``DPPOTrainer``: TRL's ``GRPOTrainer`` with both levels of pruning. Hooks only; whatever TRL does, TRL still does."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from dppo.errors import ConfigError
from dppo.objective import clip_fractions, importance_ratio, k3, weighted_sum
from dppo.problems import guarded
from dppo.trl.checkpoint import load_state, save_state
from dppo.trl.completions import CompletionSelector, Drawn
from dppo.trl.config import DPPOConfig
from dppo.trl.draws import Schedule
from dppo.trl.forwards import ForwardPasses
from dppo.trl.log_probs import sampling_ratio
from dppo.trl.metrics import PhaseClock, WeightedMeans, logs_next_step, share_done
from dppo.trl.plan import announce
from dppo.trl.prompts import Selection, build_selector
from dppo.trl.records import Recorder, generation_of
from dppo.trl.rounds import generate_in_rounds
from dppo.trl.safeguards import EmptySignalWarning, NonFiniteGuard
from dppo.trl.support import check_model
from dppo.trl.window import MicroBatch, Window
from dppo.types import Completions


class DPPOTrainer(GRPOTrainer):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    A TRL script runs with this class and ``DPPOConfig`` in place of ``GRPOTrainer`` and ``GRPOConfig``; all arguments
    are TRL's. Prompts are pruned for map-style datasets; a streamed dataset has no rows to come back to, so there
    ``prompt_prune_rate`` must be 0.

    Args:
        model: as for ``GRPOTrainer``.
        reward_funcs: as for ``GRPOTrainer``; functions are guarded against wrong counts and, with
            ``reward_time_limit``, against hanging.
        args: a ``DPPOConfig``.
        **kwargs: whatever else ``GRPOTrainer`` takes.

    Raises:
        ConfigError: for an unsupported TRL, model or option, with what to use instead.
        DataError: if the dataset holds fewer prompts than one generation needs.
    """

    args: DPPOConfig

    def __init__(self, model: Any, reward_funcs: Any = None, args: DPPOConfig | None = None, **kwargs: Any) -> None:
        args = DPPOConfig("dppo-output") if args is None else args
        if not isinstance(args, DPPOConfig):
            raise ConfigError(
                f"args is a {type(args).__name__}, DPPOTrainer needs a DPPOConfig. It takes the same arguments: "
                "replace the class name."
            )
        functions = reward_funcs if isinstance(reward_funcs, list) or reward_funcs is None else [reward_funcs]
        guard = partial(guarded, limit_seconds=args.reward_time_limit)
        super().__init__(
            model=model,
            reward_funcs=functions
            and [guard(f) if callable(f) and not isinstance(f, torch.nn.Module) else f for f in functions],
            args=args,
            **kwargs,
        )
        check_model(self)
        log_probs = self.use_vllm or self.rollout_func is not None
        if args.completion_score == "confidence" and not log_probs:
            raise ConfigError(
                "completion_score='confidence' needs the sampler's log-probabilities, which transformers' generate "
                "does not give. Set use_vllm: true, or completion_score: length."
            )
        self.method = args.build_method(sampler_log_probs=log_probs)
        self.schedule = Schedule.of_arguments(args)
        self.completions = CompletionSelector(
            method=self.method,
            schedule=self.schedule,
            seed=args.seed,
            group=int(self.num_generations or 1),
            processes=self.accelerator.num_processes,
            equal_is_zero=args.multi_objective_aggregation == "sum_then_normalize",
            gather=self._gather,
        )
        self.selector = build_selector(
            self.train_dataset, args, self.method, group=self.completions.group, shuffle=bool(self.shuffle_dataset)
        )
        self.clock = PhaseClock()
        self.recorder: Recorder | None = None
        self._signal_warning = EmptySignalWarning()
        self.forwards = ForwardPasses(self, super()._get_per_token_logps_and_entropies)
        self._generation = 0
        self._window: Window | None = None
        self._calls: list[list[MicroBatch]] = []
        self._selection: Selection | None = None
        self._reward_N = torch.empty(0)
        self._deferring = False
        self._draw_figures: list[dict[str, float]] = []
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        announce(self)

    # -- prompts, before generation -----------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not cast(torch.nn.Module, self.model).training:
            return super()._generate_and_score_completions(inputs)
        for log in (self._logs["prompt"], self._logs["completion"], self._logs["advantages"]):
            log.clear()  # sized for full generations: with fewer rows the table would mix two of them
        for log in (*self._logs["rewards"].values(), *self._logs["extra"].values()):
            log.clear()
        generate = super()._generate_and_score_completions
        with self._deferred_log_probs():
            if self.selector is None:
                return generate(inputs)
            if self.method.rounds is not None:
                return generate_in_rounds(self, self.method.rounds, self.selector, generate)
            group, processes = self.completions.group, self.accelerator.num_processes
            self._selection = self.selector.select(
                self._generation, generations=group, processes=processes, done=share_done(self.state)
            )
            rank = self.accelerator.process_index
            return generate(self.selector.examples(self._selection, generations=group, rank=rank, processes=processes))

    @contextmanager
    def _deferred_log_probs(self) -> Iterator[None]:
        """While active, TRL computes no old, reference or correction terms: kept rows get theirs after the draw."""
        correction = self.vllm_importance_sampling_correction
        self._deferring, self.vllm_importance_sampling_correction = True, False
        try:
            yield
        finally:
            self._deferring, self.vllm_importance_sampling_correction = False, correction

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        if self._deferring:
            return None, None, None
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        timed = self.clock("rollout") if cast(torch.nn.Module, self.model).training else nullcontext()
        with timed, self.forwards.layout.generating():
            return super()._generate(*args, **kwargs)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        if not cast(torch.nn.Module, self.model).training:
            return super()._calculate_rewards(*args, **kwargs)
        with self.clock("reward"):
            rewards = super()._calculate_rewards(*args, **kwargs)
        weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._reward_N = weighted.masked_fill(rewards.isnan().all(1), torch.nan).double().cpu()
        return rewards

    # -- completions, after reward ------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not cast(torch.nn.Module, self.model).training:
            return super()._prepare_inputs(generation_batch)
        phase = self._step % self.schedule.length
        self.forwards.check_once()
        if phase == 0 or self._window is None:
            self._step -= phase  # a checkpoint without its window: start the window again, and stay in phase
            phase = 0
            with self.clock("rollout"):
                output = self._generate_and_score_completions(generation_batch)
            self._window = self._build_window(output)
        draw, call = self.schedule.locate(phase)
        if call == 0 and self._draw_figures:  # empty after a resume within a generation: those went with the process
            self._log(self._draw_figures[draw])
        if call == 0 or not self._calls:
            self._calls, figures = self.forwards.calls(self._window, self._window.weight_SB[draw], self.schedule.calls)
            self._log(figures)
        return {"draw": draw, "micro_batches": self._calls[call]}

    def _build_window(self, output: dict[str, Any]) -> Window:
        with self.clock("prune"):
            mask = output["completion_mask"]
            loss_mask = mask * output["tool_mask"] if "tool_mask" in output else mask
            completions = self.completions.collect(output, loss_mask, self._reward_N)
            drawn = self._draw(completions)
            here = slice(self.accelerator.process_index * len(mask), (self.accelerator.process_index + 1) * len(mask))
            window = Window(
                prompt_ids=output["prompt_ids"],
                prompt_mask=output["prompt_mask"],
                completion_ids=output["completion_ids"],
                completion_mask=mask,
                loss_mask=loss_mask,
                advantage_B=drawn.advantage_N[here].to(output["advantages"]),
                weight_SB=drawn.weight_SN[:, here].to(mask.device, torch.float32),
                denominator=torch.tensor(
                    self.method.normaliser.denominator(
                        drawn.sequences, drawn.tokens, self.args.max_completion_length or 1
                    ),
                    dtype=torch.float64,
                ),
            )
        if self.recorder is not None:
            self.recorder.record(generation_of(self, window, completions, drawn))
        self._generation += 1
        with self.clock("log_probs"):
            return self._with_log_probs(window, output.get("sampling_per_token_logps"))

    def _draw(self, completions: Completions) -> Drawn:
        """The draws of this generation; history and metrics learn from it."""
        done = share_done(self.state)
        drawn = self.completions.draw(completions, self._reward_N, self._selection, self._generation, done)
        if self.selector is not None and self._selection is not None:
            shape = (-1, self.completions.group)
            self.selector.observe(
                self._selection,
                self._reward_N.view(shape),
                self.completions.signal(completions),
                completions.tokens_N.view(shape),
                self._generation,
            )
            self._log(self.selector.figures)
        self._signal_warning.observe(drawn.signal)
        self._log(drawn.figures)
        self._draw_figures = drawn.draw_figures
        return drawn

    def _log(self, figures: dict[str, float]) -> None:
        """Add figures of this step to the next log."""
        for name, value in figures.items():
            self._metrics["train"][name].append(value)

    # -- log-probabilities and loss of kept rows ----------------------------------------------------------------

    def _with_log_probs(self, window: Window, sampling_logp: Tensor | None) -> Window:
        """The window with old, reference and correction terms for the rows that some draw keeps."""
        later = window.weight_SB[1:].sum(0)
        any_draw = window.weight_SB.sum(0)
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        old = ref = ratio = None
        if len(window.weight_SB) > 1 or corrected:
            old = self.forwards.log_probs(window, any_draw if corrected else later, self.model)
        if corrected and old is not None and sampling_logp is not None:
            ratio = sampling_ratio(
                old,
                sampling_logp,
                window.loss_mask,
                mode=self.vllm_importance_sampling_mode,
                low=self.vllm_importance_sampling_clip_min,
                high=self.vllm_importance_sampling_clip_max,
            )
            counted = (window.loss_mask if ratio.shape[1] > 1 else torch.ones_like(ratio)) * (any_draw > 0)[:, None]
            sums = self.accelerator.reduce(torch.stack([(ratio * counted).sum(), counted.sum()]), reduction="sum")
            self._log({"kept/sampling_ratio": float(sums[0] / sums[1].clamp(min=1))})
        if self.beta != 0.0:
            with self._reference_model() as model:
                ref = self.forwards.log_probs(window, any_draw, model)
        return replace(window, old_logp=old, ref_logp=ref, ratio=ratio)

    @contextmanager
    def _reference_model(self) -> Iterator[Any]:
        if self.ref_model is not None:
            yield self.ref_model
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if "micro_batches" not in inputs:
            return super()._compute_loss(model, inputs)
        means = WeightedMeans()
        logged = 0.0
        *others, last = inputs["micro_batches"]
        for batch in others:
            with self.accelerator.no_sync(model):
                loss = self._micro_batch_loss(model, batch, inputs["draw"], means)
                self.accelerator.backward(loss)
            logged = logged + loss.detach()
        loss = self._micro_batch_loss(model, last, inputs["draw"], means) + logged
        names, sums = means.stacked()
        sums = self.accelerator.reduce(sums, reduction="sum")
        for name, value in zip(names, sums[:-1].tolist(), strict=True):
            self._metrics["train"][name].append(value / float(sums[-1]) if sums[-1] > 0 else float("nan"))
        return loss

    def _micro_batch_loss(self, model: Any, batch: MicroBatch, draw: int, means: WeightedMeans) -> Tensor:
        """This micro-batch's part of the step's loss, scaled so that the parts of all calls and ranks add up to it."""
        window, method = batch.window, self.method
        logp, entropy = self.forwards(model, batch, entropy=logs_next_step(self.args, self.state))
        mask = batch.completion(window.loss_mask)
        advantage = window.advantage_B[batch.rows]
        old = logp.detach() if window.old_logp is None or draw == 0 else batch.completion(window.old_logp)
        loss_BT = method.token_loss(logp, old, advantage, mask)
        if window.ratio is not None:
            loss_BT = loss_BT * batch.completion(window.ratio)
        sequence = self.importance_sampling_level == "sequence"
        figures: dict[str, Tensor] = {} if entropy is None else {"kept/entropy": entropy}
        if self.loss_type != "cispo":  # which caps its ratio and clips no gradient
            clips = {"clip_low": self.epsilon_low, "clip_high": self.epsilon_high}
            low, high = clip_fractions(logp, old, advantage, mask, **clips, sequence=sequence)
            figures |= {"kept/clipped_low": low, "kept/clipped_high": high}
        if window.ref_logp is not None:
            kl = k3(logp, batch.completion(window.ref_logp))
            if self.args.use_bias_correction_kl:
                kl = kl * importance_ratio(logp, old, mask, sequence=sequence)
            loss_BT = loss_BT + method.beta * kl
            figures["kept/kl"] = kl
        means.add(figures, mask, batch.weight)
        total = weighted_sum(loss_BT, mask, batch.weight, per_sequence=method.normaliser.per_sequence)
        # Gradients are averaged over ranks and added over calls; the denominator spans the whole generation.
        part = self.current_gradient_accumulation_steps / (self.args.steps_per_generation or 1)
        return total * (self.accelerator.num_processes / (float(window.denominator) * part))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's training loop; afterwards the models have the attention implementation they were loaded with."""
        self.forwards.layout.enter()
        try:
            return super().train(*args, **kwargs)
        finally:
            self.forwards.layout.leave()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step, timed: what is not rollout, reward or pruning is forward and backward."""
        with self.clock("forward_backward"), self.forwards.memory.explained():
            return super().training_step(*args, **kwargs)

    def _gather(self, tensor: Tensor) -> Tensor:
        """``tensor`` of all ranks, concatenated in rank order."""
        return cast(Tensor, self.accelerator.gather(tensor))

    def flush_clock(self) -> None:
        """Log the seconds of each phase since the last optimizer step."""
        self._log(self.clock.flush())

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        save_state(self, self._get_output_dir(trial=trial))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            load_state(self, checkpoint)
