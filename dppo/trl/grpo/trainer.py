"""``DPPOTrainer``: TRL's ``GRPOTrainer`` with both levels of pruning. Hooks only; whatever TRL does, TRL still does."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor

from dppo.context import StepContext
from dppo.environment import load_vllm
from dppo.errors import ConfigError
from dppo.pruning import Evidence, OtherTerms, TokenCosts
from dppo.rng import step_streams
from dppo.step import PromptSource, StepPlan, StepPrompts, micro_batch_loss, other_terms, plan_step, whole_block
from dppo.trl.batch import MicroBatch, RankBatch
from dppo.trl.checkpoints.state import RunState, batch_file, batch_goes_on, read_state, settings_of, write_state
from dppo.trl.forwards import ForwardPasses, TrainingLoop
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.costs import CostMeter, at_cost, forwarded
from dppo.trl.grpo.plan import CeilingLines, Cycle, card_section, step_plan
from dppo.trl.grpo.prompts import check_lengths, check_prompts, content_of, prompt_source
from dppo.trl.grpo.records import generation_of
from dppo.trl.grpo.rollouts import (
    GeneratedBatch,
    gathered_order,
    joined,
    over_ranks,
    rank_batch,
    read_examples,
    rolled_out,
)
from dppo.trl.grpo.sampler import precision_line, start_named
from dppo.trl.grpo.savings import Savings, more_to_be_had
from dppo.trl.hooks import Joints
from dppo.trl.metrics import RECORD, FullBatch, LossFigures, logs_next_step, share_done
from dppo.trl.safeguards import (
    EmptySignalWarning,
    NonFiniteGuard,
    end_at_exit,
    guarded_rewards,
    models_named,
    saved_at_the_limit,
)
from dppo.trl.served import check_overrides, unserved_models, unserved_tokens
from dppo.typed import check
from dppo.types import Block, Rewards


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The generation that is being trained on."""

    batch: RankBatch
    """This rank's part."""
    plan: StepPlan | None
    """Of all ranks; None after a resume in the middle of it: what it says is in the batch."""
    draw_figures: Sequence[Mapping[str, float]]
    """Of each draw, for the logs."""


class DPPOTrainer(TrainingLoop, Joints):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    A TRL script runs with this class and ``DPPOConfig`` in place of ``GRPOTrainer`` and ``GRPOConfig``; all arguments
    are TRL's. Prompts are pruned for map-style datasets; a streamed dataset has no rows to come back to, so there
    ``prompt_prune_rate`` must be 0.

    Args:
        model: as for ``GRPOTrainer``.
        reward_funcs: as for ``GRPOTrainer``; functions are guarded against wrong counts and, with
            ``reward_time_limit``, against hanging.
        args: a ``DPPOConfig``.
        *others: what else ``GRPOTrainer`` takes by position, the training set first.
        **kwargs: whatever else ``GRPOTrainer`` takes.

    Raises:
        ConfigError: for an unsupported TRL, model or option, with what to use instead.
        DataError: if the dataset holds fewer prompts than one generation needs.
        EngineError: vLLM cannot start, or its server cannot be used.
    """

    args: DPPOConfig

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: DPPOConfig | None = None, *others: Any, **kwargs: Any
    ) -> None:
        args = DPPOConfig("dppo-output") if args is None else args
        check("args", args, DPPOConfig, "DPPOConfig in place of GRPOConfig: it takes the same arguments.")
        data = kwargs.get("train_dataset", others[0] if others else None)
        check_overrides(type(self), streamed=not isinstance(data, Dataset))
        check("model", model, str | torch.nn.Module, "DPPOTrainer('Qwen/Qwen3-0.6B', my_reward)")
        if args.use_vllm:
            load_vllm("use_vllm: true", "use_vllm: false")
        rewards = guarded_rewards(reward_funcs, args.reward_time_limit, args.reward_weights)
        listed = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        with models_named(model, *listed), start_named(args, model):
            super().__init__(model, rewards, args, *others, **kwargs)
        for refusal in unserved_models(self):
            raise ConfigError(refusal)
        log_probs = self.use_vllm or self.rollout_func is not None
        if args.completion_score == "confidence" and not log_probs:
            raise ConfigError(
                "completion_score='confidence' needs the sampler's log-probabilities, which transformers' generate "
                "does not give. Set use_vllm: true, or completion_score: length."
            )
        self.method = args.build_method(sampler_log_probs=log_probs, model_config=cast(Any, self.model).config)
        for refusal in unserved_tokens(self, log_probs):
            raise ConfigError(refusal)
        self.cycle = Cycle.of_arguments(args)
        self.group = int(self.num_generations or 1)
        """G, completions per prompt, or their mean where sizes follow history."""
        self.source: PromptSource | None = prompt_source(
            self.train_dataset,
            args,
            self.method,
            weight_F=self.reward_weights.double().cpu(),
            environment=self.environment_factories is not None,
        )
        if self.source is not None and self.environment_factories is None:
            tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
            config, most = cast(Any, self.model).config, args.max_completion_length or 1
            check_lengths(cast(Dataset, self.train_dataset), tokenizer, config, most)
        self.forwards = ForwardPasses(self, self.padded_forward)
        self.generation = 0
        """Generations so far: the clock of the history, and with the seed the key of every draw."""
        self.in_use: InUse | None = None
        """The generation that is trained on; None before the first."""
        self.evidence: Evidence | None = None
        """Completions with a gradient of a streamed dataset; of any other the source remembers them."""
        self.others = OtherTerms()
        """What the KL term and the entropy bonus weighed in completions that were kept."""
        self.meter = CostMeter(self.clock, self.accelerator)
        self.savings = Savings()
        """What was left out so far, and what it saved."""
        self._accounted = 0
        self._dealt: list[list[MicroBatch]] = []
        self._figures = LossFigures(self.method, self.cycle.calls)
        self._signal_warning = EmptySignalWarning()
        self._ceilings = CeilingLines(self.accelerator.print)
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        end_at_exit()
        self._announce()

    def _announce(self) -> None:
        """Print the plan once, on the main process; what is biased without having been accepted is warned of."""
        rows = None if self.source is None else self.source.stream.size
        for line in [*step_plan(self.args, self.method, prompts_in_dataset=rows), str(self.forwards.layout)]:
            self.accelerator.print(f"dppo | {line}")
        if self.use_vllm and self.accelerator.is_main_process and (line := precision_line(self)):
            warnings.warn(line, stacklevel=3)
        accepted = self.method.selection_bias
        for reason in (reason for reason in self.biases if reason not in accepted):
            warnings.warn(f"{reason}. Unbiased settings: docs/choose.md.", stacklevel=3)

    @property
    def _chooses(self) -> bool:
        """Whether a rate for completions, or for their tokens, is chosen."""
        return any(getattr(level, "auto", None) is not None for level in (self.method.completions, self.method.tokens))

    @property
    def biases(self) -> tuple[str, ...]:
        """Every reason why the expected gradient is not the full batch's; empty where it is."""
        return self.method.biases(self.cycle.passes.steps)

    # -- a generation: prompts, completions, draws --------------------------------------------------------------

    def next_inputs(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """The micro-batches of this call of the loss, of a new generation where one is due."""
        phase = self.calls % self.cycle.length
        self.forwards.check_once()
        if phase == 0 or self.in_use is None:
            self.calls -= phase  # a checkpoint without its generation: start it again, and stay in phase
            phase = 0
            self.in_use = self._generate_next(examples)
        draw, call = self.cycle.locate(phase)
        batch, figures_of = self.in_use.batch, self.in_use.draw_figures
        if call == 0 and figures_of:  # checkpoints of earlier versions have none
            self.add_figures(figures_of[draw])
        if call == 0 or not self._dealt:
            part = batch.cut(slice(draw, draw + 1))
            self._dealt, figures = self.forwards.calls(part, batch.weight_UB[draw], self.cycle.calls)
            self.add_figures(figures)
        return {"draw": draw, "micro_batches": self._dealt[call]}

    def _generate_next(self, examples: list[dict[str, Any]]) -> InUse:
        """Roll out, plan, remember, record: everything between two generations of completions."""
        self.clear_samples()
        self._account()
        with self.clock("rollout"):
            prompts, generated = self._roll_out_step(examples)
        with self.clock("prune"):
            plan = self._plan(prompts, generated)
            own = rank_batch(generated, plan, self.accelerator, self.cycle.calls)
            batch = over_ranks(own, plan, self.accelerator, shares_prompts=self.forwards.layout.shares_prompts)
        with self.recorder.phase("record"), self.clock(RECORD):
            record = generation_of(
                plan,
                own,
                self.cycle.passes,
                step=self.state.global_step + 1,
                number=self.generation,
                epoch=None if self.source is None else self.source.stream.epochs,
                rank=self.accelerator.process_index,
            )
            self.recorder.generation(record)
        self.generation += 1
        with self.clock("log_probs"):
            ready = self.forwards.with_log_probs(batch)
        return InUse(batch=ready, plan=plan, draw_figures=plan.draw_figures)

    def _account(self) -> None:
        """Add the generation that was trained on to what tokens cost and to what was saved; all ranks together."""
        plan = None if self.in_use is None else self.in_use.plan
        if plan is not None and self._accounted < self.generation:
            self._accounted = self.generation
            self.meter.generation(plan)
            self._at_costs(self.meter.costs)
            self.savings = self.savings.after(plan, forwarded(plan), self.meter.spent())

    def _roll_out_step(self, examples: list[dict[str, Any]]) -> tuple[StepPrompts, GeneratedBatch]:
        """The prompts of a generation and their completions: the loader's, of one block, or of rounds."""
        group, processes = self.group, self.accelerator.num_processes
        if self.source is None:
            check_prompts(each.get("prompt", "") for each in examples)
            generated = self.roll_out(examples)
            completions = len(generated.reward_NF)
            prompts = whole_block(completions // group, completions)
            return replace(prompts, context=StepContext(evidence=self.evidence, others=self.others)), generated
        if self.method.rounds is not None:
            return self._roll_out_rounds(self.source)
        multiple = processes // math.gcd(group, processes)
        prompts = self.source.block(self.generation, generations=group, multiple=multiple, done=share_done(self.state))
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
            prompts = source.rounds(self.generation, one_round, multiple=processes)
        order_Q = gathered_order(sizes, processes)
        return prompts.groups_reordered(order_Q), joined(rounds, order_Q, self.group, self.pad_token)

    def _rewards_of(self, generated: GeneratedBatch, size_Q: Tensor | None = None) -> Rewards:
        sizes = self.group if size_Q is None else size_Q
        return Rewards.in_groups(generated.reward_NF, sizes, self.reward_weights.double().cpu())

    def _examples(self, row_Q: Tensor, size_Q: Tensor | None = None) -> list[dict[str, Any]]:
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        sizes = self.group if size_Q is None else size_Q
        return read_examples(self.loaded_dataset, row_Q, generations=sizes, rank=rank, processes=processes)

    def _plan(self, prompts: StepPrompts, generated: GeneratedBatch) -> StepPlan:
        """What the generation trains on: one draw per optimizer step, equal on all ranks. The history learns."""
        rewards = self._rewards_of(generated, prompts.size_Q)
        everything = rolled_out(generated, rewards, self.accelerator, tokens=self.method.tokens.active)
        plan = plan_step(
            self.method,
            everything,
            prompts,
            streams=step_streams(self.args.seed, self.generation),
            max_tokens=self.args.max_completion_length or 1,
            passes=self.cycle.passes,
            done=share_done(self.state),
        )
        self.evidence = plan.evidence
        if self.source is not None:
            self.source.learn(plan, self.generation)
            while self.source.lines:
                self.accelerator.print(f"dppo | {self.source.lines.pop(0)}")
            self.add_figures(self.source.figures)
        self.add_figures(plan.figures)
        if prompts.size_Q is not None:
            self.correct_figure("frac_reward_zero_std", rewards.flat_Q.double().mean().item())
        self._signal_warning.observe(plan.learnable, scored=not bool(generated.reward_NF.isnan().all()))
        self._ceilings.tell(
            self.method.at(share_done(self.state)), plan, None if self.source is None else self.source.visits
        )
        return plan

    # -- the loss of kept completions ----------------------------------------------------------------------------

    def loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of one call, and the figures of an optimizer step with its last one."""
        figures, micro_batches = self._figures, inputs["micro_batches"]
        self.recorder.trained(torch.stack([batch.loss_tokens for batch in micro_batches]).sum())
        loss = self.backward_but_last(
            model, micro_batches, lambda each: self._micro_batch_loss(model, each, inputs["draw"], figures)
        )
        whole, (draw, call) = micro_batches[-1].rank_batch, self.cycle.locate(self.calls % self.cycle.length)
        if call == self.cycle.calls - 1:  # of the optimizer step
            tokens_C, sequences_C, unclipped_C = whole.counts_U3C[draw].tolist()
            full = FullBatch(tokens_C=tokens_C, sequences_C=sequences_C, unclipped_C=unclipped_C)
            denominator = float(whole.denominator) / self.cycle.passes.shares
            for each in figures.reduced(self.accelerator, full, denominator=denominator):
                self.add_figures(each)
            self._learn_others(figures)
            self._figures = LossFigures(self.method, self.cycle.calls)
        return loss

    def _learn_others(self, figures: LossFigures) -> None:
        """Remember what the KL term and the entropy bonus weighed in an optimizer step, for the next draws."""
        self.others = self.others.after(*figures.others)
        if self.source is not None:
            self.source.others = self.others
        if (advantage := self.others.advantage) is not None:
            self.add_figures({"prune/other_terms": advantage})

    def _micro_batch_loss(self, model: Any, batch: MicroBatch, draw: int, figures: LossFigures) -> Tensor:
        """This micro-batch's part of the step's loss, scaled so that the parts of all calls and ranks add up to it."""
        whole = batch.rank_batch
        needed = bool(self.method.entropy_coef) or logs_next_step(self.args, self.state)
        logp, entropy, router, _ = self.forwards(model, batch, entropy=needed, router=bool(self.method.router_coef))

        tokens = batch.tokens_of(logp, first=draw == 0)
        of_rows = whole.lengths[batch.rows], whole.call_B[batch.rows]
        figures.add(tokens, batch.loss_weight, entropy, router, *of_rows)
        if self.method.beta or self.method.entropy_coef:
            scale = float(whole.denominator) / max(float(whole.tokens), 1.0)
            figures.add_others(other_terms(self.method, tokens, batch.loss_weight, entropy, entropy_scale=scale))
        loss = micro_batch_loss(
            self.method,
            tokens,
            batch.loss_weight,
            denominator=float(whole.denominator),
            all_tokens=float(whole.tokens),
            entropy_BT=entropy,
            router_loss=router,
            all_attended=float(whole.attended),
        )
        # Gradients are averaged over ranks and added over calls; the denominator spans the whole generation.
        part = self.current_gradient_accumulation_steps / (self.args.steps_per_generation or 1)
        return loss * (self.accelerator.num_processes / part)

    # -- around TRL's loop --------------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As ``TrainingLoop``, told to the recorder."""
        with self.recorder.phase("train"):
            result = super().train(*args, **kwargs)
        self._account()
        if lines := self.savings.lines(self.meter.costs):
            visits = None if self.source is None else self.source.visits
            more = more_to_be_had(self.method, self.evidence, visits)
            for line in (*lines, f"more to be had: {more}"):
                self.accelerator.print(f"dppo | {line}")
        return result

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, with what was saved so far in every record of training."""
        training = cast(torch.nn.Module, self.model).training and "train_runtime" not in logs
        super().log(logs | self.savings.figures(self.meter.costs) if training else logs, *args, **kwargs)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Completions are generated by the model with the attention it was loaded with."""
        with self.forwards.layout.generating():
            yield

    # -- checkpoints --------------------------------------------------------------------------------------------

    def card(self) -> str:
        """Method, rates, biases and paper, for the card of the model."""
        return card_section(self.method, self.cycle.passes.steps)

    @cached_property
    def content(self) -> str | None:
        """A fingerprint of all prompts and of the other columns; None for a streamed dataset."""
        return (
            None
            if self.source is None
            else content_of(cast(Dataset, self.train_dataset), self.source.history.identities)
        )

    def save_extra(self, folder: Path) -> None:
        """Write our part of a checkpoint: shared state once, each rank's generation in use by itself."""
        folder.mkdir(parents=True, exist_ok=True)
        calls, rank = self.calls % self.cycle.length, self.accelerator.process_index
        if not calls:
            self._account()
        costs = self._at_costs(self.meter.settle())
        if calls and self.in_use is not None:
            self.in_use.batch.save(batch_file(folder, rank))
        if not self.accelerator.is_main_process:
            return
        state = RunState(
            generation=self.generation,
            calls=calls,
            position=None if self.source is None else self.source.save(folder),
            evidence=self.evidence.saved() if self.source is None and self.evidence is not None else None,
            others=asdict(self.others),
            costs=asdict(costs),
            savings=asdict(self.savings),
            skipped=self.guard.skipped,
            settings=settings_of(self),
            draw_figures=[dict(each) for each in self.in_use.draw_figures] if calls and self.in_use else [],
            listed=True,
        )
        write_state(folder, state)

    def _at_costs(self, costs: TokenCosts) -> TokenCosts:
        """Choose by these costs from here on, unless the configuration says what a rollout costs."""
        self.meter.restore(costs)
        if self.args.rollout_cost is None:
            self.method = at_cost(self.method, costs)
        return costs

    def load_extra(self, folder: Path) -> None:
        """Put the trainer where the checkpoint was taken, in the middle of a generation if need be.

        A checkpoint of TRL's own trainer has no state of ours: the run goes on with an empty history and says so.
        Under other settings the run goes on with those it can, and says which; where batches are others, a generation
        in use is rolled out again.

        Raises:
            CheckpointError: if a file is damaged or missing, or the history is of another dataset, or a generation in
                use of another number of processes.
        """
        state = read_state(folder)
        if state is None:
            return
        lost = any("optimizer" in part for part in self.lacking)
        goes_on = batch_goes_on(folder, state, settings_of(self), new_optimizer=lost)
        if self.source is not None and state.position is not None:
            self.source.load(folder, state.position)
        self.evidence = None if state.evidence is None else Evidence.of_saved(state.evidence)
        self._at_costs(TokenCosts.of_saved(state.costs))
        self.savings = Savings.of_saved(state.savings)
        self.others = OtherTerms(**state.others)
        if self.source is not None:
            self.source.others = self.others
        self.generation, self.guard.skipped = state.generation, state.skipped
        if goes_on:
            file = batch_file(folder, self.accelerator.process_index)
            figures = [{k: math.nan if v is None else v for k, v in each.items()} for each in state.draw_figures]
            batch = RankBatch.load(file, self.accelerator.device)
            self.in_use = InUse(batch=batch, plan=None, draw_figures=figures)
            self.calls = state.calls
