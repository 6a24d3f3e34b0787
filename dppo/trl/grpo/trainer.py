"""``DPPOTrainer``: TRL's ``GRPOTrainer`` with both levels of pruning. Hooks only; whatever TRL does, TRL still does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor

from dppo.environment import load_vllm
from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.methods.own import is_own, parts_in_words
from dppo.session import Session
from dppo.step import PromptSource, StepPlan, StepPrompts, other_terms
from dppo.trl.batch import MicroBatch, RankBatch
from dppo.trl.correction import CorrectionMetrics
from dppo.trl.forwards import ForwardPasses
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.lines import CeilingLines
from dppo.trl.grpo.plan import AccumulationSchedule, generation_of
from dppo.trl.grpo.prompts import check_lengths, check_prompts, prompt_source
from dppo.trl.grpo.rollouts import (
    GeneratedBatch,
    gathered_order,
    joined,
    over_ranks,
    rank_batch,
    read_examples,
    rolled_out,
)
from dppo.trl.grpo.saved import InUse, SavedGeneration
from dppo.trl.grpo.savings import CostMeter, Savings
from dppo.trl.grpo.unpruned import unpruned_passes
from dppo.trl.metrics import CHECK, RECORD, LossMetrics, StepSeconds, logs_next_step, of_step, share_done
from dppo.trl.safeguards import (
    EmptySignalWarning,
    NonFiniteGuard,
    end_at_exit,
    guarded_rewards,
    models_named,
    saved_at_the_limit,
    start_named,
)
from dppo.trl.served import check_overrides, check_processes, unserved_models, unserved_tokens
from dppo.typed import check
from dppo.types import Block, Rewards


class DPPOTrainer(SavedGeneration):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    A TRL script runs with this class and ``DPPOConfig`` in place of ``GRPOTrainer`` and ``GRPOConfig``; all arguments
    are TRL's. Prompts are pruned for map-style datasets; a streamed dataset has no rows to come back to, so there
    ``prompt_prune_rate`` must be 0.

    Args:
        model: as for ``GRPOTrainer``.
        reward_funcs: as for ``GRPOTrainer``; functions are guarded against wrong counts and, with
            ``reward_time_limit``, against hanging.
        args: a ``DPPOConfig``.
        method: a ``Method`` that is used as it is, or a name as for ``DPPOConfig(method=...)``; None for the method
            of ``args``. Fields of ``args`` that were left out get its values, and others must agree with it.
        *others: what else ``GRPOTrainer`` takes by position, the training set first.
        **kwargs: whatever else ``GRPOTrainer`` takes.

    Raises:
        ConfigError: for an unsupported TRL, model or option, with what to use instead.
        DataError: if the dataset holds fewer prompts than one generation needs.
        EngineError: vLLM cannot start, or its server cannot be used.
    """

    args: DPPOConfig

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: DPPOConfig | None = None,
        *others: Any,
        method: Method | str | None = None,
        **kwargs: Any,
    ) -> None:
        args = DPPOConfig("dppo-output") if args is None else args
        check("args", args, DPPOConfig, "DPPOConfig in place of GRPOConfig: it takes the same arguments.")
        check("method", method, Method | str | None, 'DPPOTrainer(..., method=METHODS["dppo_history"]).')
        args = args if method is None else args.with_method(method)
        own = method if isinstance(method, Method) else None
        data = kwargs.get("train_dataset", others[0] if others else None)
        check_overrides(type(self), streamed=not isinstance(data, Dataset))
        check("model", model, str | torch.nn.Module, "DPPOTrainer('Qwen/Qwen3-0.6B', my_reward)")
        if args.use_vllm:
            load_vllm("use_vllm: true", "use_vllm: false")
        rewards = guarded_rewards(reward_funcs, args, data)
        listed = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        with models_named(model, *listed), start_named(args, model):
            super().__init__(model, rewards, args, *others, **kwargs)
        check_processes(self)
        self.cycle = AccumulationSchedule.of_arguments(args)
        self.session = self._start_session(own)
        if self.session.source is not None and self.environment_factories is None:
            tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
            config, most = cast(Any, self.model).config, args.max_completion_length or 1
            check_lengths(cast(Dataset, self.train_dataset), tokenizer, config, most)
        self.forwards = ForwardPasses(self, self.padded_forward)
        self.in_use = None
        self.savings = Savings()
        self.meter = CostMeter(self.clock, self.accelerator, self.forwards)
        self._accounted = 0
        self._dealt: list[list[MicroBatch]] = []
        self._ended: tuple[RankBatch, int] | None = None
        """The batch and the draw of an optimizer step whose last call has been made."""
        self._loss_metrics = self._no_metrics()
        self._signal_warning = EmptySignalWarning()
        self._ceilings = CeilingLines(self.accelerator.print)
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        self.add_callback(StepSeconds(self))
        end_at_exit()
        self.remember_settings()
        self._announce()

    def _start_session(self, own: Method | None) -> Session:
        """The session of the run; ``own`` is a method that the trainer was given.

        Raises:
            ConfigError: the model, the score or the tokens that it leaves out are not served.
        """
        for refusal in unserved_models(self):
            raise ConfigError(refusal)
        log_probs = self.use_vllm or self.rollout_func is not None
        if self.args.completion_score == "uncertainty" and not log_probs:
            raise ConfigError(
                "completion_score='uncertainty' needs the sampler's log-probabilities, which transformers' generate "
                "does not give. Set use_vllm: true, or completion_score: length."
            )
        config = cast(Any, self.model).config
        method = self.args.build_method(own, sampler_log_probs=log_probs, model_config=config)
        self.method_in_words = {} if own is None and not is_own(self.args.method) else parts_in_words(method)
        """Parts of a method of one's own as text; empty for a preset, which the settings describe."""
        for refusal in unserved_tokens(self, method, log_probs):
            raise ConfigError(refusal)
        source = prompt_source(
            self.train_dataset,
            self.args,
            method,
            weight_F=self.reward_weights.double().cpu(),
            environment=self.environment_factories is not None,
        )
        return Session(
            method,
            source,
            seed=self.args.seed,
            generations=int(self.num_generations or 1),
            max_tokens=self.args.max_completion_length or 1,
            passes=self.cycle.passes,
            rollout_cost=self.args.rollout_cost,
        )

    def load_extra(self, folder: Path) -> None:
        """Put the trainer where the checkpoint was taken, without what it has of a generation of its own."""
        self._dealt, self._loss_metrics = [], self._no_metrics()
        super().load_extra(folder)

    def drop_step(self) -> None:
        """Forget the generation in use too: part of its steps are taken."""
        self.in_use, self.calls = None, 0
        self._dealt, self._loss_metrics = [], self._no_metrics()
        self.forwards.correction_metrics = CorrectionMetrics()

    # -- a generation: prompts, completions, draws --------------------------------------------------------------

    def next_inputs(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """The micro-batches of this call of the loss, of a new generation where one is due."""
        phase = self.calls % self.cycle.length
        if not self.forwards.checked:
            with self.clock(CHECK):
                self.forwards.check_once()
        if phase == 0 or self.in_use is None:
            self.calls -= phase  # a checkpoint without its generation: start it again, and stay in phase
            phase = 0
            self.in_use = self._generate_next(examples)
        draw, call = self.cycle.locate(phase)
        batch, metrics_of = self.in_use.batch, self.in_use.draw_metrics
        if call == 0:
            self.add_metrics(of_step(metrics_of[draw], self.cycle.together))
            self.meter.plan(trained=self.in_use.unpruned[draw : draw + 1])
        if call == 0 or not self._dealt:
            part = batch.cut(slice(draw, draw + 1))
            self._dealt, metrics = self.forwards.calls(part, batch.weight_UB[draw], self.cycle.calls)
            self.add_metrics(of_step(metrics, self.cycle.together))
        return {"batch": batch, "micro_batches": self._dealt[call]}

    def _generate_next(self, examples: list[dict[str, Any]]) -> InUse:
        """Roll out, plan, remember, record: everything between two generations of completions."""
        self.check_settings()
        self.clear_samples()
        self._account()
        with self.clock("rollout"):
            prompts, generated = self._roll_out_step(examples)
        with self.clock("prune"):
            plan = self._plan(prompts, generated)
            if self.method.rounds is None:  # of rounds TRL has another order
                self.show_advantages(plan.advantage_N)
            own = rank_batch(generated, plan, self.accelerator, self.cycle.calls)
            batch = over_ranks(own, plan, self.accelerator, shares_prompts=self.forwards.layout.shares_prompts)
            unpruned = unpruned_passes(self.forwards, own, plan, self.accelerator.process_index)
            self.meter.plan(scored=unpruned.scored)
        with self.recorder.phase("record"), self.clock(RECORD):
            record = generation_of(
                plan,
                own,
                self.cycle.passes,
                step=self.state.global_step + 1,
                number=self.session.number - 1,
                epoch=None if self.session.source is None else self.session.source.stream.epochs,
                rank=self.accelerator.process_index,
            )
            self.recorder.generation(record)
        with self.clock("log_probs"):
            ready = self.forwards.with_log_probs(batch)
        return InUse(batch=ready, plan=plan, draw_metrics=plan.draw_metrics, unpruned=unpruned.trained)

    def _roll_out_step(self, examples: list[dict[str, Any]]) -> tuple[StepPrompts, GeneratedBatch]:
        """The prompts of a generation and their completions: the loader's, of one block, or of rounds."""
        source = self.session.source
        if source is None:
            check_prompts(each.get("prompt", "") for each in examples)
            generated = self.roll_out(examples)
            return self.session.streamed_prompts(len(generated.reward_NF)), generated
        if self.method.rounds is not None:
            return self._roll_out_rounds(source)
        parts, multiple = self.prompt_parts
        prompts = self.session.prompts(done=share_done(self.state), multiple=multiple, parts=parts)
        examples = self._examples(prompts.row_Q, prompts.size_Q)
        return prompts, self.roll_out(examples, equal_groups=prompts.size_Q is None)

    def _roll_out_rounds(self, source: PromptSource) -> tuple[StepPrompts, GeneratedBatch]:
        """Rounds of rollouts as one generation, in the order in which the rows of all ranks are gathered."""
        rounds: list[GeneratedBatch] = []
        sizes: list[int] = []
        processes = self.accelerator.num_processes

        def one_round(number: int, block: Block) -> Rewards:
            rounds.append(self.roll_out(self._examples(block.row_Q)))
            sizes.append(len(block.row_Q))
            return self._rewards_of(rounds[-1])

        with saved_at_the_limit(self, source):
            prompts = self.session.prompts_in_rounds(one_round, multiple=processes)
        order_Q = gathered_order(sizes, processes)
        return prompts.groups_reordered(order_Q), joined(rounds, order_Q, self.session.generations, self.pad_token)

    def _rewards_of(self, generated: GeneratedBatch, size_Q: Tensor | None = None) -> Rewards:
        sizes = self.session.generations if size_Q is None else size_Q
        return Rewards.in_groups(generated.reward_NF, sizes, self.reward_weights.double().cpu())

    def _examples(self, row_Q: Tensor, size_Q: Tensor | None = None) -> list[dict[str, Any]]:
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        sizes = self.session.generations if size_Q is None else size_Q
        return read_examples(self.loaded_dataset, row_Q, generations=sizes, rank=rank, processes=processes)

    def _plan(self, prompts: StepPrompts, generated: GeneratedBatch) -> StepPlan:
        """What the generation trains on: one draw per optimizer step, equal on all ranks. The history learns."""
        rewards = self._rewards_of(generated, prompts.size_Q)
        level, unknown = self.method.tokens, generated.sampler_logp is None
        tokens = level.active and not (unknown and level.needs_log_probs)  # without them the plan says what to do
        everything = rolled_out(generated, rewards, self.accelerator, tokens=tokens)
        if everything.uncertainty_N is None:
            self._go_on_without_log_probs()
        plan = self.session.plan(prompts, everything, done=share_done(self.state))
        for line in self.session.messages():
            self.accelerator.print(f"dppo | {line}")
        self.add_metrics(self.session.metrics | plan.metrics)
        if prompts.size_Q is not None:
            self.correct_metric("frac_reward_zero_std", rewards.zero_variance_Q.double().mean().item())
        self._signal_warning.observe(plan.learnable, scored=not bool(generated.reward_NF.isnan().all()))
        self._ceilings.tell(self.method.at(share_done(self.state)), plan, self.session.visits)
        return plan

    # -- the loss of kept completions ----------------------------------------------------------------------------

    def loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """() the loss of one call."""
        metrics, micro_batches, whole = self._loss_metrics, inputs["micro_batches"], inputs["batch"]
        self.recorder.trained(sum((batch.loss_tokens for batch in micro_batches), torch.zeros((), dtype=torch.int64)))
        draw, call = self.cycle.locate(self.calls % self.cycle.length)
        self._ended = (whole, draw) if call == self.cycle.calls - 1 else None
        return self.backward_but_last(
            model, micro_batches, lambda each: self._micro_batch_loss(model, each, draw, metrics)
        )

    def end_call(self) -> None:
        """Log the metrics of an optimizer step after its last call."""
        if self._ended is None:
            return
        (whole, draw), metrics, self._ended = self._ended, self._loss_metrics, None
        denominator = whole.sizes.denominator / self.cycle.passes.shares
        for each in metrics.reduced(self.accelerator, whole.counts_U5C[draw], denominator=denominator):
            self.add_metrics(each)
        if draw == 0 and self.forwards.correction is not None:
            self.add_metrics(self.forwards.correction_metrics.reduced(self.accelerator))
        self.add_metrics(self.session.observe_terms(*metrics.others))
        self._loss_metrics = self._no_metrics()

    def _no_metrics(self) -> LossMetrics:
        """Those of an optimizer step that has not begun."""
        return LossMetrics(self.method, self.cycle.calls, self.cycle.together)

    def _micro_batch_loss(self, model: Any, batch: MicroBatch, draw: int, metrics: LossMetrics) -> Tensor:
        """This micro-batch's part of the step's loss, scaled so that the parts of all calls and ranks add up to it."""
        whole = batch.rank_batch
        needed = bool(self.method.entropy_coef) or logs_next_step(self.args, self.state)
        logp, entropy, router, _ = self.forwards(model, batch, entropy=needed, router=bool(self.method.router_coef))

        tokens = batch.tokens_of(logp, first=draw == 0, correct=self.forwards.correction)
        sampler, ratio = tokens.sampler_logp_BT, tokens.correction_B1
        if draw == 0 and sampler is not None and ratio is not None and not batch.idle:
            self.forwards.correction_metrics.add(logp.detach(), sampler, ratio, tokens.mask_BT)
        of_rows = whole.lengths[batch.rows], whole.call_B[batch.rows]
        metrics.add(tokens, batch.loss_weight, entropy, router, *of_rows)
        if self.method.beta or self.method.entropy_coef:
            scale = whole.sizes.denominator / max(whole.sizes.tokens, 1.0)
            metrics.add_others(other_terms(self.method, tokens, batch.loss_weight, entropy, entropy_scale=scale))
        loss = self.session.loss(tokens, batch.loss_weight, whole.sizes, entropy_BT=entropy, router_loss=router)
        # Gradients are averaged over ranks and added over calls; the denominator spans the whole generation.
        part = self.current_gradient_accumulation_steps / (self.args.steps_per_generation or 1)
        return loss * (self.accelerator.num_processes / part)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Completions are generated by the model with the attention it was loaded with."""
        entered = self.forwards.layout.leave()
        try:
            yield
        finally:
            if entered:
                self.forwards.layout.enter()
