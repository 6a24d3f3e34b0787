"""What ``DPPOTrainer`` says of its run, what it counts, and its part of a checkpoint."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.methods import Method
from dppo.methods.own import assigned
from dppo.pruning import SCORES, needs_log_probs
from dppo.session import Session
from dppo.settings import AUTO
from dppo.step import StepPlan
from dppo.step.prompts import HISTORY_FILE
from dppo.trl.batch import RankBatch
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import RunState, batch_file, batch_goes_on, read_state, settings_of
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.lines import closing_lines
from dppo.trl.grpo.plan import AccumulationSchedule, card_section, describe_steps, prompt_parts
from dppo.trl.grpo.prompts import content_of
from dppo.trl.grpo.savings import CostMeter, Savings, trained_tokens
from dppo.trl.hooks import Joints
from dppo.trl.loop import TrainingLoop
from dppo.trl.safeguards import EmptySignalWarning, NonFiniteGuard, precision_line
from dppo.types import Work


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The generation that is being trained on."""

    batch: RankBatch
    """This rank's part."""
    plan: StepPlan | None
    """Of all ranks; None after a resume in the middle of it: what it says is in the batch."""
    draw_metrics: Sequence[Mapping[str, float]]
    """Of each draw, for the logs."""
    unpruned: Sequence[Work]
    """Passes of each optimizer step if nothing were dropped, on this rank."""


class SavedGeneration(TrainingLoop, Joints):
    """A trainer that says what it will do and has saved, and whose generation in use outlives a checkpoint."""

    args: DPPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    method_in_words: dict[str, str]
    cycle: AccumulationSchedule
    session: Session
    """Method, prompts and what was learned of them."""
    meter: CostMeter
    savings: Savings
    """What was left out so far, and what it saved."""
    guard: NonFiniteGuard
    in_use: InUse | None
    """The generation that is trained on; None before the first."""
    _signal_warning: EmptySignalWarning
    _accounted: int
    """Generations that are in the savings."""

    @property
    def method(self) -> Method:
        """The method of the run. Prompts, plans, losses, metrics and checkpoints read it here."""
        return self.session.method

    @method.setter
    def method(self, method: Method) -> None:
        raise assigned(method)

    @property
    def biases(self) -> tuple[str, ...]:
        """Every reason why the expected gradient is not the full batch's; empty where it is."""
        return self.method.biases(self.steps_of_prompts)

    @property
    def steps_of_prompts(self) -> int:
        """Optimizer steps that one draw of prompts is trained in."""
        return self.cycle.passes.steps // self.prompt_parts[0]

    @cached_property
    def prompt_parts(self) -> tuple[int, int]:
        """As the function of that name says; a streamed dataset has no draw of prompts."""
        source, processes = self.session.source, self.accelerator.num_processes
        block = 1 if source is None else source.prompts
        return prompt_parts(self.cycle.passes, block, self.args.num_generations or 1, processes)

    def _announce(self) -> None:
        """Print the plan once, on the main process; what is biased without having been accepted is warned of."""
        rows = None if self.session.source is None else self.session.source.stream.size
        for line in [*describe_steps(self.args, self.method, prompts_in_dataset=rows), str(self.forwards.layout)]:
            self.accelerator.print(f"dppo | {line}")
        if self.use_vllm and self.accelerator.is_main_process and (line := precision_line(self)):
            warnings.warn(line, stacklevel=3)
        accepted = self.method.selection_bias
        for reason in (reason for reason in self.biases if reason not in accepted):
            warnings.warn(f"{reason}. Unbiased settings: docs/choose.md.", stacklevel=3)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As ``TrainingLoop``, told to the recorder."""
        with self.recorder.phase("train"):
            result = super().train(*args, **kwargs)
        self._account()
        lines = self.savings.lines(self.session.costs)
        for line in lines + closing_lines(self.method, self.savings, self.session.samples, self.session.visits):
            self.accelerator.print(f"dppo | {line}")
        return result

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, with what was saved so far in every record of training."""
        training = self.training and "train_runtime" not in logs
        with self.without_empty_table():
            super().log(logs | self.savings.metrics(self.session.costs) if training else logs, *args, **kwargs)

    @property
    def _unaccounted(self) -> StepPlan | None:
        """The plan of the generation in use until it is accounted for; a run that resumed within it has no plan."""
        return None if self.in_use is None or self._accounted >= self.session.number else self.in_use.plan

    def _account(self) -> None:
        """Add seconds and passes so far to what was saved, a generation once to its costs; all ranks call together."""
        spent, plan = self.meter.spent(), self._unaccounted
        self.savings = self.savings.after(spent)
        if plan is None:
            return
        self._accounted = self.session.number
        self.savings = self.savings.planned(plan)
        if not self.calls % self.cycle.length:
            self.session.observe_costs(spent, float(plan.completions.tokens_N.sum()), trained_tokens(plan))

    def card(self) -> str:
        """Method, rates, biases and paper, for the card of the model."""
        return card_section(self.method, self.steps_of_prompts)

    @cached_property
    def content(self) -> str | None:
        """A fingerprint of all prompts and of the other columns; None for a streamed dataset."""
        source = self.session.source
        return None if source is None else content_of(self.train_dataset, source.history.identities)

    def save_extra(self, folder: Path) -> None:
        """Write our part of a checkpoint: shared state once, each rank's generation in use by itself."""
        folder.mkdir(parents=True, exist_ok=True)
        calls, rank = self.calls % self.cycle.length, self.accelerator.process_index
        self._account()
        first = not self.session.costs.fixed
        self.session.settle_costs()
        costs = self.session.costs
        unknown = costs.rollout_cost is None and self.args.rollout_cost is None
        if first and unknown and costs.generations < 2 and self.method != self.method.fixed():
            self.accelerator.print(
                f"dppo | this checkpoint, after {costs.generations} of the 2 generations that it takes to measure what "
                "tokens cost, fixes rollout_cost: 1 for the run. Set rollout_cost, or save later (save_steps)."
            )
        if calls and self.in_use is not None:
            self.in_use.batch.save(batch_file(folder, rank))
        if not self.args.should_save:
            return
        state = RunState(
            session=self.session.save(folder),
            calls=calls,
            savings=asdict(self.savings),
            skipped=self.guard.skipped,
            settings=settings_of(self),
            draw_metrics=[dict(each) for each in self.in_use.draw_metrics] if calls and self.in_use else [],
            unpruned=[asdict(each) for each in self.in_use.unpruned] if calls and self.in_use else [],
        )
        write_json(folder / OUR_STATE, asdict(state))

    def _go_on_without_log_probs(self) -> None:
        """Choose another score where ``auto`` chose one by log-probabilities, which a ``rollout_func`` did not give.

        Raises:
            ConfigError: vLLM's are corrected by them.
        """
        if self.use_vllm and self.vllm_importance_sampling_correction:
            raise ConfigError(
                "rollout_func returned logprobs: None, and with use_vllm: true the loss is corrected by them. Return "
                "those of the sampler, or set vllm_importance_sampling_correction: false."
            )
        if not needs_log_probs(self.method.score) or self.args.completion_score != AUTO:
            return
        score = self.args.build_method().score
        method = self.method
        self.session.method = replace(method, completions=replace(cast(Any, method.completions), score=score))
        name = next(name for name, each in SCORES.items() if each is score)
        warnings.warn(
            "rollout_func returned logprobs: None, and completion_score: auto would rank completions by them: they are "
            f"ranked by {name} instead. To say so yourself, write completion_score: {name}.",
            stacklevel=2,
        )

    def load_extra(self, folder: Path) -> None:
        """Put the trainer where the checkpoint was taken, in the middle of a generation if need be.

        A checkpoint of TRL's own trainer has no state of ours: the run goes on with an empty history and says so.
        Under other settings the run goes on with those it can, and says which; where batches are others, a generation
        in use is rolled out again.

        Raises:
            CheckpointError: if a file is damaged or missing, or the history is of another dataset, or a generation in
                use of another number of processes.
        """
        self.in_use, self.calls = None, 0  # a trainer that has trained already has a generation of its own
        start = "training goes on from its weights with an empty prompt history and the prompt order of a new run."
        state = read_state(folder, lambda found: RunState(**found), without=start)
        if state is None:
            return
        lost = any("optimizer" in part for part in self.lacking)
        goes_on = batch_goes_on(folder, state, settings_of(self), new_optimizer=lost)
        self.session.load(folder, state.session, history=not self.lacks(HISTORY_FILE))
        self.savings = Savings.of_saved(state.savings)
        self.guard.skipped, self._accounted = state.skipped, self.session.number
        ranks = range(self.accelerator.num_processes)
        if goes_on and not any(self.lacks(batch_file(folder, rank).name) for rank in ranks):
            file = batch_file(folder, self.accelerator.process_index)
            metrics = [{k: math.nan if v is None else v for k, v in each.items()} for each in state.draw_metrics]
            batch = RankBatch.load(file, self.accelerator.device)
            unpruned = [Work(**each) for each in state.unpruned]
            self.in_use = InUse(batch=batch, plan=None, draw_metrics=metrics, unpruned=unpruned)
            self.calls = state.calls
