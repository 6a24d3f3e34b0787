"""Hooks that are the same for verl's synchronous and asynchronous trainers.

A step of verl is: sample, reward, balance, old log-probabilities, reference, advantages, update. It is planned at the
balance, the first hook after the rewards, so later passes go over the kept rows. With ``support.KL_REWARD`` it is
planned before the update, since rewards are made of log-probabilities.
"""

import statistics
import warnings
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transfer_queue  # pyright: ignore[reportMissingImports]
from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # pyright: ignore[reportMissingImports]
from verl.utils import tensordict_utils  # pyright: ignore[reportMissingImports]
from verl.utils.config import omega_conf_to_dataclass  # pyright: ignore[reportMissingImports]
from verl.utils.dataset.rl_dataset import collate_fn  # pyright: ignore[reportMissingImports]
from verl.utils.metric import reduce_metrics  # pyright: ignore[reportMissingImports]
from verl.utils.seqlen_balancing import log_seqlen_unbalance  # pyright: ignore[reportMissingImports]

from dppo.errors import ConfigError, raise_problems
from dppo.methods import Method
from dppo.objective import AdvantageRule
from dppo.session import Session
from dppo.step import PromptSource, StepPlan, UpdateSchedule
from dppo.step.in_flight import Requested
from dppo.verl import batch as queue
from dppo.verl.checkpoint import load, resumed_folder, save, settings_to_save
from dppo.verl.layout import Placement, rows_needed
from dppo.verl.loss import WEIGHT, weighted_ppo_loss
from dppo.verl.prompts import examples, prompt_source
from dppo.verl.settings import WHERE, biases, keeps_all, lines, method_of, read_settings
from dppo.verl.support import FILTER, KL_REWARD, ROW_ENGINES, check_verl_version, order_lines, unsupported_options

SCHEDULE = ("total_training_steps", "lr_warmup_steps", "lr_decay_steps", "lr_wsd_decay_steps")
"""Options of verl's optimizers that count its calls; null or below 1 if another option gives the number."""


class PrunedTrainer(PPOTrainer):
    """GRPO that skips prompts before rollout and completions before the update, and reweights the kept ones.

    Options of pruning are in verl's ``config`` under ``trainer.v1.sampler.sampler_kwargs.pruning``. It is a
    ``ConfigError`` if one is out of range, if verl's version is not supported, or an option of verl silently wrong.
    """

    mode = "sync"
    """verl's own trainer that this one extends."""
    source: PromptSource
    """The prompts of the run, once the dataset is there."""
    requested: Requested
    """The prompts that are being rolled out or trained on."""
    dispatched: queue.Dispatched
    """The step that is trained on, once it is planned."""

    def __init__(self, config: Any) -> None:
        get, actor = partial(OmegaConf.select, config), "actor_rollout_ref.actor"
        check_verl_version(version("verl"), self.mode, megatron=get(f"{actor}.strategy") == "megatron")
        self.settings = read_settings(get(WHERE) or {}, seed=get("data.seed"))
        method = method_of(self.settings, get)
        self.shares_prompts = self.settings.layout == "rows"
        problems = unsupported_options(get, method, self.mode, rows=self.shares_prompts)
        raise_problems(f"trainer.v1.trainer_mode={get('trainer.v1.trainer_mode')}", problems)
        prompts = get("data.train_batch_size") // (get(f"trainer.v1.{self.mode}.parameter_sync_step") or 1)
        epochs = 1 if keeps_all(method) else get(f"{actor}.ppo_epochs")
        self.session = Session(
            method,
            seed=self.settings.seed,
            generations=get("actor_rollout_ref.rollout.n"),
            max_tokens=get("data.max_response_length"),
            passes=UpdateSchedule(passes=epochs, shares=prompts // get(f"{actor}.ppo_mini_batch_size")),
            rollout_cost=self.settings.rollout_cost,
        )
        ahead = None if self.mode == "sync" else get(f"trainer.v1.{self.mode}.num_warmup_batches")
        self._parts = self.session.passes.parts(get("data.train_batch_size")) if ahead is None else 1
        """Draws of the prompts of a step: one if they are requested ahead, since groups come back in any order."""
        self.waits_for, self.filters_groups = bool(get(KL_REWARD)), bool(get(FILTER))
        config.trainer.v1.trainer_mode = self.mode  # this class is found by its name already; verl asks for its own
        for role in ("actor", "ref") if self.shares_prompts else ():  # by this name workers find their engine
            own = config.actor_rollout_ref[role].strategy
            config.actor_rollout_ref[role].strategy = ROW_ENGINES.get(own, own)
        super().__init__(config)
        steps = self.session.passes.steps * self.parameter_sync_step
        sizes = {"prompts": get("data.train_batch_size"), "generations": self.session.generations}
        said = lines(method, **sizes, optimizer_steps=steps, parts=self._parts, ahead=ahead)
        for line in said + order_lines(method, get):
            print(f"dppo | {line}")
        for reason in biases(method, steps // self._parts, ahead):
            if reason not in method.selection_bias:
                warnings.warn(f"{reason}. Unbiased settings: dppo docs methods.", stacklevel=2)

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.session.method

    @property
    def _ranks(self) -> int:
        return max(self.actor_rollout_wg._dispatch_info["actor"]) + 1

    def _done(self, number: int) -> float:
        """Share of the run's steps before a step, in [0, 1]."""
        return min((number - 1) / max(self.total_training_steps, 1), 1.0)

    def _init_dataloader(self) -> None:
        """verl's, which counts epochs and validates; prompts come from the session."""
        data, optim = self.config.data, self.config.actor_rollout_ref.actor.optim
        if data.get("seed") is None:  # verl would take other rows for ``train_max_samples`` at each start
            OmegaConf.update(data, "seed", self.settings.seed, force_add=True)
        super()._init_dataloader()
        self.source = self.session.source = prompt_source(self.train_dataset, self.settings, data)
        for name in SCHEDULE:  # each pass is a call of verl's update, which moves the schedule
            if (optim.get(name) or 0) > 0:
                optim[name] *= self.session.passes.passes

    def _fetch_rows(self, row_Q: Any, size_Q: Any) -> tuple[Any, list[str]]:
        """Rows of the dataset as verl sends them to samplers, and verl's names of them."""
        self.train_dataloader_it = iter([collate_fn(examples(self.train_dataset, row_Q, size_Q))])
        batch = super()._fetch_one_gen_batch()
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch, [str(uid) for uid in batch["uid"]]

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows are padded so that any choice among them can be dealt to ranks."""
        if keeps_all(self.method):
            return super()._get_required_batch_multiple(dp_size)
        shares = self.session.passes.shares
        return rows_needed(self.requested.largest_share(shares), shares, dp_size)

    def on_init_end(self) -> None:
        """Workers get the weighted loss, and mini-batches as small as the kept rows; ``ConfigError`` for cut images."""
        if self.method.tokens.active and self.processor is not None:
            cut = f"token_prune_rate={self.settings.token_prune_rate} with {type(self.processor).__name__}"
            raise ConfigError(f"{cut}: images may stand behind a cut. Write {WHERE}.token_prune_rate=0.")
        # Ratios to old log-probabilities come later, of the kept rows.
        uncorrected = OmegaConf.merge(self.config, {"algorithm": {"rollout_correction": None}})
        self._uncorrected: Any = SimpleNamespace(config=uncorrected)
        actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        self.actor_rollout_wg.set_loss_fn(partial(weighted_ppo_loss, config=actor))
        send = self.actor_rollout_wg.update_actor

        def update_actor(batch: Any) -> Any:
            # verl sets both from its options. The denominators of the loss are other entries, and stay.
            batch.extra_info["mini_batch_size"] = self._placement.rows_per_step
            batch.extra_info["epochs"] //= self.session.passes.passes  # each pass with its own draws is a call
            return send(batch)

        self.actor_rollout_wg.update_actor = update_actor
        super().on_init_end()

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        """The first hook after the rewards: the rows that later passes go over."""
        batch = super()._balance_batch(batch, metrics, **options)
        if self.waits_for:
            return batch
        PPOTrainer._compute_advantage(self._uncorrected, batch, {})
        self._plan_rows(batch, metrics)
        row_B, rows = self.dispatched.forwarded, self.dispatched.rows
        count = len(row_B) // self._ranks
        parts = [range(start, start + count) for start in range(0, len(row_B), count)]
        metrics.update(log_seqlen_unbalance(rows.length_N[row_B].tolist(), parts, prefix="global_seqlen"))
        return self._selected(batch, row_B, rows, "before")

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's; its entropy becomes an estimate over all rows with a gradient."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.waits_for and "actor/entropy" in metrics:
            metrics.update(queue.entropy_metric(batch, self.dispatched, self.config.actor_rollout_ref.actor))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's; if the step is planned, importance ratios of the kept rows alone."""
        if self.waits_for:
            return super()._compute_advantage(batch, metrics)
        correction, rollout = self.config.algorithm.get("rollout_correction"), self.config.actor_rollout_ref.rollout
        if correction is not None and rollout.calculate_log_probs and not correction.get("bypass_mode"):
            metrics.update(queue.corrected(batch, correction))
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, once for each pass over the batch that has draws of its own."""
        if self.waits_for:
            self._plan_rows(batch, metrics)
        actor, method = self.config.actor_rollout_ref.actor, self.method
        others = bool(method.beta or method.entropy_coef) and actor.policy_loss.loss_mode != "dro"  # its beta is no KL
        if others and not keeps_all(method):
            sizes = queue.term_sizes(batch, self.dispatched, method, actor)
            metrics.update({} if sizes is None else self.session.observe_terms(*sizes))
        updates: dict[str, list[Any]] = {}
        for placement in self.dispatched.passes:
            found: dict[str, Any] = {}
            self._placement = placement
            rows = self._rows_of(placement, batch)
            super()._update_actor(self._weighted(placement, rows), found)
            for name, value in found.items():
                updates.setdefault(name, []).append(value)
            self._clear(rows, batch)
        self._clear(batch, self.dispatched.whole)
        metrics.update(reduce_metrics(updates))
        return self.dispatched.whole

    def _rows_of(self, placement: Placement, batch: Any) -> Any:
        further = len(self.dispatched.passes) > 1 or self.waits_for  # passes before the update go over more tokens
        return self._selected(batch, placement.row_B, placement.rows, "update" if further else "")

    def _selected(self, batch: Any, row_B: list[int], rows: Any, copy: str) -> Any:
        """Some rows of a batch, as a ``copy`` of that name if tokens are left out of them."""
        whole = self.dispatched.whole
        keys = [whole.keys[row] for row in row_B]
        if not copy or self.dispatched.passes[0].rows.weight_NT is None:
            return batch.select_keys(keys)
        return queue.cut_batch(batch, keys, rows.completion_N[row_B], f"{whole.partition_id}_{copy}")

    def _clear(self, rows: Any, source: Any) -> None:
        """Clear rows that were copied from a source; whole rows are verl's to clear."""
        if rows.partition_id not in (source.partition_id, self.dispatched.whole.partition_id):
            transfer_queue.kv_clear(keys=rows.keys, partition_id=rows.partition_id)

    def _plan_rows(self, batch: Any, metrics: dict[str, Any]) -> None:
        found = queue.returned(batch, self.requested, tokens=self.method.tokens.active, grouped=self.shares_prompts)
        plan = self._plan(found)
        for line in self.session.messages():
            print(f"dppo | {line}")
        actor, passes, keeps = self.config.actor_rollout_ref.actor, self.session.passes, keeps_all(self.method)
        rows, by_tokens = actor.ppo_mini_batch_size * self.session.generations, actor.loss_agg_mode == "token-mean"
        if keeps:
            sent = queue.live_rows(found, plan, ranks=self._ranks, by_tokens=by_tokens, rows_per_step=rows)
        else:
            # verl divides by the filtered groups; one whose sessions all failed is not among them.
            counted = plan.prompts.sequences if self.filters_groups else rows * passes.shares
            divisor = None if by_tokens else counted
            sent = queue.drawn_rows(found, plan, passes=passes.passes, ranks=self._ranks, divisor=divisor)
            names = set.intersection(*map(set, plan.draw_metrics))
            metrics.update({name: statistics.fmean(each[name] for each in plan.draw_metrics) for name in sorted(names)})
        if self.waits_for:
            rows = replace(found.rows, weight_NT=sent.rows.weight_NT)
            sent = replace(sent, forwarded=list(range(len(batch.keys))), rows=rows)
        self.dispatched = sent
        if self.method.advantages.from_history:
            queue.write_advantages(batch, found.by_row(plan.advantage_N))
        metrics.update(plan.metrics | self.session.metrics | sent.metrics)

    def _plan(self, found: queue.Returned) -> StepPlan:
        name = f"verl's {self.config.algorithm.adv_estimator}"
        own = AdvantageRule(name=name, compute=lambda rewards, context: found.advantage_N)
        return self.session.plan(
            self.requested.prompts,
            found.rolled_out,
            number=(self.global_steps - 1) * self.parameter_sync_step + self.local_trigger_step + 1,  # of the update
            clock=self.global_steps,
            done=self._done(self.global_steps),
            advantages=None if self.method.advantages.from_history else own,
        )

    def _weighted(self, placement: Placement, rows: Any) -> Any:
        """The rows of a pass, with their weights in the queue."""
        kept = queue.write(rows, {WEIGHT: queue.jagged(placement.token_weights)})
        kept.extra_info.update(self.dispatched.whole.extra_info)
        return kept

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir).absolute() / f"global_step_{self.global_steps}"
        save(folder, self.session, self.global_steps, self._to_save())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self._load_session(resumed_folder(self.global_steps, self.config.trainer))

    def _load_session(self, folder: Path) -> None:
        load(folder, self.session, self.global_steps, self._to_save())

    def _to_save(self) -> dict[str, Any]:
        get = partial(OmegaConf.select, self.config)
        return settings_to_save(self.settings, get, self.actor_rollout_wg.world_size)
