"""Completions of a step of verl: planned as soon as rewards are known, so that passes go over the rows kept.

A step of verl is: sample, reward, balance, old log-probabilities, reference, advantages, update. It is planned where it
is balanced, the first hook that knows the rewards. Where rewards are made of log-probabilities (``support.waits_for``)
it is planned before the update, and passes go over all rows.
"""

import copy
import statistics
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import transfer_queue  # pyright: ignore[reportMissingImports]
from omegaconf import open_dict  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # pyright: ignore[reportMissingImports]
from verl.utils.config import omega_conf_to_dataclass  # pyright: ignore[reportMissingImports]
from verl.utils.metric import reduce_metrics  # pyright: ignore[reportMissingImports]
from verl.utils.seqlen_balancing import log_seqlen_unbalance  # pyright: ignore[reportMissingImports]

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.objective import AdvantageRule
from dppo.session import Session
from dppo.step import PromptSource, StepPlan
from dppo.step.in_flight import Requested
from dppo.verl.batch import Returned, corrected, cut_batch, jagged, mean_entropy, returned, weighed, write_advantages
from dppo.verl.layout import Placement, rows_needed
from dppo.verl.loss import TOKEN_WEIGHT, WEIGHT, weighted_ppo_loss
from dppo.verl.sent import Sent, drawn_rows, live_rows
from dppo.verl.settings import WHERE, PruningSettings, keeps_all


class PlannedPasses(PPOTrainer):
    """The part of a trainer of verl that is about completions; the part that requests prompts sets ``requested``."""

    settings: PruningSettings
    session: Session
    """Method, prompts and what was learned of them. Its passes are those of the update over a batch, each with draws,
    and its shares their mini-batches. Prompts are there once the dataset is."""
    waits_for: str
    """Why passes go over all rows before the step is planned; empty where they do not."""
    filters_groups: bool
    """Whether verl takes prompts until enough groups differ in reward."""
    requested: Requested | None
    """The prompts that are being rolled out or trained on; None before the first."""
    sent: Sent
    """The step that is trained on, once it is planned."""

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.session.method

    @property
    def source(self) -> PromptSource:
        """The prompts of the run, once the dataset is there."""
        assert self.session.source is not None, "verl asks for prompts before its dataset is there"
        return self.session.source

    @property
    def done(self) -> float:
        """Share of the run's steps before this one, in [0, 1]."""
        return min((self.global_steps - 1) / max(self.total_training_steps, 1), 1.0)

    @property
    def update_number(self) -> int:
        """Number of this update, from 1, by which its draws are made: that of the step where a step has one."""
        return (self.global_steps - 1) * self.parameter_sync_step + self.local_trigger_step + 1

    @property
    def _in_use(self) -> Requested:
        assert self.requested is not None, "verl trains before it has requested prompts"
        return self.requested

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows are filled up so that any choice among them can be dealt to ranks; verl asks for whole mini-batches."""
        if keeps_all(self.method):
            return super()._get_required_batch_multiple(dp_size)
        shares = self.session.passes.shares
        return rows_needed(self._in_use.largest_share(shares), shares, dp_size)

    def on_init_end(self) -> None:
        """Workers get the weighted loss, and mini-batches as small as what is kept.

        Raises:
            ConfigError: tokens are left out of completions, and the model reads images.
        """
        if self.method.tokens.active and self.processor is not None:
            raise ConfigError(
                f"token_prune_rate={self.settings.token_prune_rate} with {type(self.processor).__name__}: images may "
                f"stand behind a cut. Write {WHERE}.token_prune_rate=0."
            )
        self._uncorrected: Any = SimpleNamespace(config=copy.deepcopy(self.config))
        with open_dict(self._uncorrected.config):  # ratios to old log-probabilities come later, of the rows kept
            self._uncorrected.config.algorithm.rollout_correction = None
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(weighted_ppo_loss, config=actor))
        send = self.actor_rollout_wg.update_actor

        def update_actor(batch: Any) -> Any:
            batch.extra_info["mini_batch_size"] = self._placement.rows_per_step  # what the loss is divided by stays
            batch.extra_info["epochs"] = self.sent.epochs
            return send(batch)

        self.actor_rollout_wg.update_actor = update_actor
        super().on_init_end()

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        """The first hook that knows the rewards: what comes back is what later passes go over."""
        batch = super()._balance_batch(batch, metrics, **options)
        if self.waits_for:
            return batch
        PPOTrainer._compute_advantage(self._uncorrected, batch, {})
        self._plan_rows(batch, metrics)
        metrics.update(log_seqlen_unbalance(*self.sent.balance(self._ranks), prefix="global_seqlen"))
        keys, before = self.sent.keys(self.sent.forwarded), self.sent.before
        if before is None:
            return batch.select_keys(keys)
        return cut_batch(batch, keys, before.completion_N[self.sent.forwarded], f"{batch.partition_id}_before")

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, whose entropy stands for that of all rows with a gradient."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.waits_for and "actor/entropy" in metrics:
            sent, row_B = self.sent, self.sent.forwarded
            actor = self.config.actor_rollout_ref.actor
            entropy = mean_entropy(batch, sent.weight_NT[row_B], sent.tokens_N[row_B], actor)
            metrics["actor/entropy"] = metrics["actor/entropy"] if entropy is None else entropy
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, of whole groups; importance ratios of the rows kept where these alone have old log-probabilities."""
        if self.waits_for:
            return super()._compute_advantage(batch, metrics)
        correction, rollout = self.config.algorithm.get("rollout_correction"), self.config.actor_rollout_ref.rollout
        if correction is not None and rollout.calculate_log_probs and not correction.get("bypass_mode"):
            metrics.update(corrected(batch, correction))
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, once for each pass over the batch that has draws of its own."""
        if self.waits_for:
            self._plan_rows(batch, metrics)
        self._learn_others(batch, metrics)
        updates: dict[str, list[Any]] = {}
        for placement in self.sent.passes:
            found: dict[str, Any] = {}
            self._placement = placement
            rows = self._rows_of(placement, batch)
            super()._update_actor(self._weighted(placement, rows), found)
            for name, value in found.items():
                updates.setdefault(name, []).append(value)
            self._clear(rows, batch)
        self._clear(batch, self.sent.whole)
        metrics.update(reduce_metrics(updates))
        return self.sent.whole

    def _learn_others(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Remember what the KL term and the entropy bonus weigh, for the scores of later steps."""
        actor, sent, method = self.config.actor_rollout_ref.actor, self.sent, self.method
        dro = actor.policy_loss.loss_mode == "dro"  # whose beta is no KL
        if keeps_all(method) or dro or not (method.beta or method.entropy_coef):
            return
        row_B = sent.forwarded
        if (found := weighed(batch, sent.weight_NT[row_B], sent.tokens_N[row_B], method, actor)) is not None:
            metrics.update(self.session.observe_terms(*found))

    def _rows_of(self, placement: Placement, batch: Any) -> Any:
        """The rows of a pass of the update: those of the passes before it, and shorter ones where it ends earlier."""
        keys, cut = self.sent.keys(placement.row_B), placement.cut
        if cut is None or (len(self.sent.passes) == 1 and not self.waits_for):
            return batch.select_keys(keys)
        partition = f"{self.sent.whole.partition_id}_update"
        return cut_batch(batch, keys, cut.completion_N[placement.row_B], partition)

    def _clear(self, rows: Any, source: Any) -> None:
        """Take rows out of TransferQueue that were copied from a source; whole ones are verl's."""
        if rows.partition_id not in (source.partition_id, self.sent.whole.partition_id):
            transfer_queue.kv_clear(keys=rows.keys, partition_id=rows.partition_id)

    def _plan_rows(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Plan the step with everything that came back, remember it, and choose what is sent."""
        found = returned(batch, self._in_use, tokens=self.method.tokens.active)
        plan = self._plan(found)
        for line in self.session.messages():
            print(f"dppo | {line}")
        actor = self.config.actor_rollout_ref.actor
        passes = self.session.passes
        layout = {"ranks": self._ranks, "by_tokens": actor.loss_agg_mode == "token-mean"}
        if keeps_all(self.method):
            rows = actor.ppo_mini_batch_size * self.session.generations
            self.sent = live_rows(batch, found, plan, epochs=actor.ppo_epochs, rows_per_step=rows, **layout)
        else:
            counted = actor.ppo_mini_batch_size * passes.shares * self.session.generations
            if self.filters_groups:  # of a group whose sessions all failed nothing is left, and verl divides by it
                counted = plan.prompts.sequences
            self.sent = drawn_rows(batch, found, plan, passes=passes.passes, counted=counted, **layout)
            metrics.update(_means(plan.draw_metrics))
        if self.waits_for:
            self.sent = replace(self.sent, forwarded=list(range(len(batch.keys))), rows=found.rows)
        if self.method.advantages.from_history:
            write_advantages(batch, found.by_row(plan.advantage_N))
        metrics.update(plan.metrics | self.session.metrics | self.sent.metrics)

    def _plan(self, found: Returned) -> StepPlan:
        """What the step trains on: verl's advantages, or those from history, and one draw per optimizer step."""
        own = None
        if not self.method.advantages.from_history:
            name = f"verl's {self.config.algorithm.adv_estimator}"
            own = AdvantageRule(name=name, compute=lambda rewards, context: found.advantage_N)
        return self.session.plan(
            self._in_use.prompts,
            found.rolled_out,
            number=self.update_number,
            clock=self.global_steps,
            done=self.done,
            advantages=own,
        )

    @property
    def _ranks(self) -> int:
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1

    def _weighted(self, placement: Placement, rows: Any) -> Any:
        """The rows of a pass as a batch of verl, with their weights in the queue."""
        fields = {WEIGHT: placement.weight_B}
        if placement.cut is not None:
            parts = zip(placement.row_B, placement.cut.completion_N[placement.row_B].tolist(), strict=True)
            fields[TOKEN_WEIGHT] = jagged([placement.cut.weight_NT[row, :end].float() for row, end in parts])
        weights = TensorDict(fields, len(placement.row_B))
        kept = transfer_queue.kv_batch_put(keys=rows.keys, partition_id=rows.partition_id, fields=weights)
        kept.extra_info.update(self.sent.whole.extra_info)
        return kept


def _means(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of several draws as their means; of those that every draw has."""
    names = set.intersection(*map(set, metrics))
    return {name: statistics.fmean(each[name] for each in metrics) for name in sorted(names)}
