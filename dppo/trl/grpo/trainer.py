"""``DPPOTrainer``: TRL's ``GRPOTrainer`` with both levels of pruning. Hooks only; whatever TRL does, TRL still does."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from dppo.environment import check_vllm
from dppo.methods import Method
from dppo.methods.own import assigned, is_own, parts_in_words
from dppo.step import PromptSource, StepPlan, StepPrompts, other_terms, whole_block
from dppo.trl.batch import MicroBatch
from dppo.trl.correction import CorrectionMetrics
from dppo.trl.grpo import rollouts
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.hooks import GRPOHooks
from dppo.trl.grpo.lines import CeilingLines, announce, card_section, closing_lines
from dppo.trl.grpo.prompts import check_prompts, content_of
from dppo.trl.grpo.rollouts import GeneratedBatch
from dppo.trl.grpo.savings import CostMeter, Savings, unpruned_passes
from dppo.trl.grpo.schedule import AccumulationSchedule
from dppo.trl.grpo.state import GenerationInUse, load_run, save_run, score_without_log_probs, start_session
from dppo.trl.metrics import CHECK, LossMetrics, logs_next_step, of_step, share_done
from dppo.trl.safeguards import EmptySignalWarning, guarded_rewards, models_named, saved_at_the_limit, start_named
from dppo.trl.served import check_overrides, check_processes
from dppo.typed import check
from dppo.types import Block, Rewards


class DPPOTrainer(GRPOHooks):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    A TRL script runs with this class and ``DPPOConfig`` in place of ``GRPOTrainer`` and ``GRPOConfig``. Prompts are
    pruned for map-style datasets. A streamed dataset has no rows to come back to: ``prompt_prune_rate`` must be 0.

    Args:
        model: as for ``GRPOTrainer``, like all arguments that are not listed.
        reward_funcs: functions are guarded against wrong counts and, with ``reward_time_limit``, against hanging.
        args: a ``DPPOConfig``.
        method: a ``Method``, or a name as for ``DPPOConfig(method=...)``; None for the method of ``args``. Fields of
            ``args`` that were left out get its values, and others must agree with it.
        *others: further arguments of ``GRPOTrainer`` by position, the training set first.
        **kwargs: further arguments of ``GRPOTrainer``.

    Raises:
        ConfigError: for an unsupported TRL, model or option.
        DataError: if the dataset holds fewer prompts than one generation needs.
        EngineError: vLLM cannot start, or its server cannot be used.
    """

    args: DPPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]

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
            check_vllm()
        rewards = guarded_rewards(reward_funcs, args, data)
        with models_named(model, *(rewards or [])), start_named(args, model):
            super().__init__(model, rewards, args, *others, **kwargs)
        check_processes(self)
        self.schedule = AccumulationSchedule.of_arguments(args, self.accelerator.num_processes)
        self.session = start_session(self, own)
        self.method_in_words = {} if own is None and not is_own(args.method) else parts_in_words(self.method)
        """Parts of a method of one's own as text; empty for a preset, which the settings describe."""
        self.start_loop()
        self.meter = CostMeter(self.clock, self.accelerator, self.forwards)
        self.drop_step()
        self._signal_warning = EmptySignalWarning()
        self._ceilings = CeilingLines()
        announce(self)

    @property
    def method(self) -> Method:
        """The method of the run: objective and pruning."""
        return self.session.method

    @method.setter
    def method(self, method: Method) -> None:
        raise assigned(method)

    @property
    def biases(self) -> tuple[str, ...]:
        """Reasons why the expected gradient is not the full batch's; empty if it is."""
        return self.method.biases(self.schedule.steps_of_prompts)

    @property
    def savings(self) -> Savings:
        """Work that was left out so far, and the seconds that it saved."""
        return self.meter.savings

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As ``TrainingLoop``; then print lines about the savings."""
        result = super().train(*args, **kwargs)
        self._account()
        lines = self.savings.lines(self.session.costs)
        for line in lines + closing_lines(self.method, self.savings, self.session.samples, self.session.visits):
            self.accelerator.print(f"dppo | {line}")
        return result

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, with the savings so far in each record of training."""
        training = self.training and "train_runtime" not in logs
        super().log(logs | self.savings.metrics(self.session.costs) if training else logs, *args, **kwargs)

    def _account(self) -> None:
        """Add seconds and passes so far to the savings; all ranks call together."""
        plan = None if self.in_use is None else self.in_use.plan
        self.meter.account(self.session, plan, ended=not self.calls % self.schedule.length)

    def card(self) -> str:
        return card_section(self.method, self.schedule.steps_of_prompts)

    @cached_property
    def content(self) -> str | None:
        """A fingerprint of all prompts and of the other columns; None for a streamed dataset."""
        source = self.session.source
        return None if source is None else content_of(self.train_dataset, source.history.identities)

    def save_extra(self, folder: Path) -> None:
        """Write our part of a checkpoint. The first one fixes the costs, so that a resumed run makes equal choices."""
        self._account()
        costs = self.session.costs
        unknown = not costs.fixed and costs.generations < 2 and self.args.rollout_cost is None
        self.session.settle_costs()
        if unknown and self.method != self.method.fixed():
            self.accelerator.print(
                f"dppo | this checkpoint, after {costs.generations} of the 2 generations that it takes to measure what "
                "tokens cost, fixes rollout_cost: 1 for the run. Set rollout_cost, or save later (save_steps)."
            )
        save_run(self, folder)

    def load_extra(self, folder: Path) -> None:
        self.drop_step()
        load_run(self, folder)

    def drop_step(self) -> None:
        """Drop the generation in use, of which steps may have been taken, and the metrics of the step in progress."""
        self.in_use: GenerationInUse | None = None
        """The generation that is trained on; None before the first."""
        self._dealt: list[list[MicroBatch]] = []
        """Forward passes of the optimizer step in progress, by call of the loss."""
        self.calls, self._loss_metrics = 0, LossMetrics(self.method)
        self.forwards.correction_metrics = CorrectionMetrics()

    def next_inputs(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """The micro-batches of the next call of the loss, of a new generation if one is due."""
        if not self.forwards.checked:
            with self.clock(CHECK):
                self.forwards.check_once()
        phase = self.calls % self.schedule.length
        if phase == 0 or self.in_use is None:
            self.calls -= phase  # After a checkpoint without its generation, that one starts again.
            self.in_use = self._generate_next(examples)
        draw, call = self.schedule.locate(self.calls)
        batch = self.in_use.batch
        if call == 0:
            self.add_metrics(of_step(self.in_use.draw_metrics[draw], self.schedule.together))
            self.meter.plan(trained=self.in_use.unpruned[draw : draw + 1])
        if call == 0 or not self._dealt:
            part = batch.cut(slice(draw, draw + 1))
            self._dealt, metrics = self.forwards.calls(part, batch.weight_UB[draw], self.schedule.calls)
            self.add_metrics(of_step(metrics, self.schedule.together))
        return {"micro_batches": self._dealt[call]}

    def _generate_next(self, examples: list[dict[str, Any]]) -> GenerationInUse:
        """The next generation: rolled out, drawn, dealt to ranks, with log-probabilities."""
        self.fixed.check(self)
        self.clear_samples()
        self._account()
        with self.clock("rollout"):
            prompts, generated = self._roll_out_step(examples)
        with self.clock("prune"):
            plan = self._plan(prompts, generated)
            if self.method.rounds is None:  # TRL's table has the rounds in another order
                self.show_advantages(plan.advantage_N)
            ours = rollouts.rank_batch(generated, plan, self.accelerator.process_index)
            with self.clock("log_probs"):
                ours = self.forwards.with_policy_mask(ours, generated.place_B, self.schedule.calls)
            shares_prompts = self.forwards.layout.shares_prompts
            batch = rollouts.over_ranks(ours, plan, self.accelerator, shares_prompts=shares_prompts)
            scored, trained = unpruned_passes(self.forwards, ours, plan, self.accelerator.process_index)
            self.meter.plan(scored=scored)
        with self.clock("log_probs"):
            ready = self.forwards.with_log_probs(batch)
        return GenerationInUse(batch=ready, plan=plan, draw_metrics=plan.draw_metrics, unpruned=trained)

    def _roll_out_step(self, examples: list[dict[str, Any]]) -> tuple[StepPrompts, GeneratedBatch]:
        source = self.session.source
        if source is None:
            check_prompts(each.get("prompt", "") for each in examples)
            generated = self.roll_out(examples)
            completions = len(generated.reward_NF)
            return whole_block(completions // self.session.generations, completions), generated
        if self.method.rounds is not None:
            return self._roll_out_rounds(source)
        done, parts, multiple = share_done(self.state), self.schedule.parts, self.schedule.multiple
        prompts = self.session.prompts(done=done, multiple=multiple, parts=parts)
        sizes = self.session.generations if prompts.size_Q is None else prompts.size_Q
        return prompts, self.roll_out(self._examples(prompts.row_Q, sizes), equal_groups=prompts.size_Q is None)

    def _roll_out_rounds(self, source: PromptSource) -> tuple[StepPrompts, GeneratedBatch]:
        rounds: list[GeneratedBatch] = []
        generations, processes = self.session.generations, self.accelerator.num_processes

        def one_round(number: int, block: Block) -> Rewards:
            rounds.append(self.roll_out(self._examples(block.row_Q, generations)))
            return self._rewards_of(rounds[-1])

        with saved_at_the_limit(self, source):
            prompts = self.session.prompts_in_rounds(one_round, multiple=processes)
        order_Q = rollouts.gathered_order([len(one.reward_NF) // generations for one in rounds], processes)
        return prompts.groups_reordered(order_Q), rollouts.joined(rounds, order_Q)

    def _rewards_of(self, generated: GeneratedBatch, size_Q: Tensor | None = None) -> Rewards:
        sizes = self.session.generations if size_Q is None else size_Q
        return Rewards.in_groups(generated.reward_NF, sizes, self.reward_weights.double().cpu())

    def _plan(self, prompts: StepPrompts, generated: GeneratedBatch) -> StepPlan:
        """The draws of a generation, equal on all ranks. The history learns from it."""
        rewards = self._rewards_of(generated, prompts.size_Q)
        level, unknown = self.method.tokens, generated.sampler_logp is None
        tokens = level.active and not (unknown and level.needs_log_probs)  # without them the plan raises an error
        everything = rollouts.rolled_out(generated, rewards, self.accelerator, tokens=tokens)
        if everything.uncertainty_N is None:
            score_without_log_probs(self)
        plan = self.session.plan(prompts, everything, done=share_done(self.state))
        self.add_metrics(self.session.metrics | plan.metrics)
        if prompts.size_Q is not None:
            self.correct_metric("frac_reward_zero_std", rewards.zero_variance_Q.double().mean().item())
        learnable, rewarded = plan.completions.advantage_N.any(), not generated.reward_NF.isnan().all()
        self._signal_warning.observe(bool(learnable), scored=bool(rewarded))
        ceilings = self._ceilings.of(self.method.at(share_done(self.state)), plan, self.session.visits)
        for line in [*self.session.messages(), *ceilings]:
            self.accelerator.print(f"dppo | {line}")
        return plan

    def loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        (draw, _), metrics, parts = self.schedule.locate(self.calls), self._loss_metrics, inputs["micro_batches"]
        return self.backward_but_last(model, parts, lambda each: self._micro_batch_loss(model, each, draw, metrics))

    def end_call(self) -> None:
        """Log the metrics of an optimizer step after its last call."""
        draw, call = self.schedule.locate(self.calls - 1)  # TRL has counted it
        if self.in_use is None or call < self.schedule.calls - 1:
            return
        batch = self.in_use.batch
        denominator = batch.sizes.denominator / self.schedule.passes.shares
        found, others = self._loss_metrics.reduced(self.accelerator, batch.full_U3[draw], denominator=denominator)
        self.add_metrics(found)
        if draw == 0 and self.forwards.correction is not None:
            self.add_metrics(self.forwards.correction_metrics.reduced(self.accelerator))
        self.add_metrics(self.session.observe_terms(*others))
        self._loss_metrics = LossMetrics(self.method)

    def _micro_batch_loss(self, model: Any, batch: MicroBatch, draw: int, metrics: LossMetrics) -> Tensor:
        """() a micro-batch's part of the loss; those of all calls and ranks add up to the step's."""
        whole = batch.rank_batch
        needed = bool(self.method.entropy_coef) or logs_next_step(self.args, self.state)
        logp, entropy, router, _ = self.forwards(model, batch, entropy=needed, router=bool(self.method.router_coef))

        tokens = batch.tokens_of(logp, first=draw == 0, correct=self.forwards.correction)
        sampler, ratio = tokens.sampler_logp_BT, tokens.correction_B1
        if draw == 0 and sampler is not None and ratio is not None and not batch.idle:
            self.forwards.correction_metrics.add(logp.detach(), sampler, ratio, tokens.mask_BT)
        metrics.add(tokens, batch, entropy, router)
        if self.method.beta or self.method.entropy_coef:
            scale = whole.sizes.denominator / max(whole.sizes.tokens, 1.0)
            metrics.add_others(other_terms(self.method, tokens, batch.loss_weight, entropy, entropy_scale=scale))
        loss = self.session.loss(tokens, batch.loss_weight, whole.sizes, entropy_BT=entropy, router_loss=router)
        # Gradients are averaged over ranks and added over calls. The denominator is that of a whole generation, and an
        # optimizer step trains on a share of it.
        share = self.current_gradient_accumulation_steps / (self.args.steps_per_generation or 1)
        return loss * (self.accelerator.num_processes / share)
