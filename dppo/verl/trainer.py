"""verl's synchronous trainer with both levels of pruning. Hooks only; whatever verl does, verl still does."""

import statistics
import warnings
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transfer_queue  # pyright: ignore[reportMissingImports]
from omegaconf import OmegaConf, open_dict  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # pyright: ignore[reportMissingImports]
from verl.utils.config import omega_conf_to_dataclass  # pyright: ignore[reportMissingImports]
from verl.utils.dataset.rl_dataset import collate_fn  # pyright: ignore[reportMissingImports]

from dppo.errors import raise_problems
from dppo.objective import AdvantageRule
from dppo.rng import step_streams
from dppo.step import Passes, PromptSource, StepPlan, plan_step
from dppo.verl.batch import Returned, returned, write_advantages
from dppo.verl.checkpoint import load, resumed_folder, save, settings_to_save
from dppo.verl.layout import place, rows_needed
from dppo.verl.loss import WEIGHT, weighted_ppo_loss
from dppo.verl.prompts import Asked, examples, prompt_source
from dppo.verl.settings import keeps_all, lines, method_of, read_settings, unreadable_options
from dppo.verl.support import check_verl_version, unsupported_options

NAME = "dynamic_pruning"


@register_trainer(NAME)
class DynamicPruningTrainer(PPOTrainerSync):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    Args:
        config: verl's; options of pruning are under ``trainer.v1.sampler.sampler_kwargs.pruning``.

    Raises:
        ConfigError: an unsupported verl, an option of verl that would be silently wrong, or one of ours out of range.
    """

    source: PromptSource
    """Which prompts are rolled out; made with the dataset."""

    def __init__(self, config: Any) -> None:
        check_verl_version(version("verl"))
        get = partial(OmegaConf.select, config)
        self.settings = read_settings(get("trainer.v1.sampler.sampler_kwargs.pruning") or {})
        actor = "actor_rollout_ref.actor"
        raise_problems(f"trainer.v1.trainer_mode={NAME}", unreadable_options(get))
        penalty = float(get(f"{actor}.kl_loss_coef")) if get(f"{actor}.use_kl_loss") else 0.0
        if get(f"{actor}.policy_loss.loss_mode") == "dro":  # its square pulls at completions without an advantage too
            penalty += float(get(f"{actor}.policy_loss.dro_beta") or 0.0)
        self.method = method_of(
            self.settings,
            loss_agg_mode=get(f"{actor}.loss_agg_mode"),
            penalty=penalty,
            entropy_coef=float(get(f"{actor}.entropy_coeff") or 0.0),
        )
        raise_problems(f"trainer.v1.trainer_mode={NAME}", unsupported_options(get, self.method))
        self.passes = Passes(shares=get("data.train_batch_size") // get(f"{actor}.ppo_mini_batch_size"))
        self.generations: int = get("actor_rollout_ref.rollout.n")
        """G, completions per prompt, or their mean where sizes follow history."""
        self.asked: Asked | None = None
        """The prompts that are being rolled out or trained on; None before the first."""
        self._rows_per_step = 0
        with open_dict(config):  # found by its name already: whatever asks from here on must hear "sync"
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self._announce()

    def _announce(self) -> None:
        """Print the plan once; what is biased without having been accepted is warned of."""
        prompts, steps = self.config.data.train_batch_size, self.passes.steps
        for line in lines(self.method, prompts=prompts, generations=self.generations, optimizer_steps=steps):
            print(f"dppo | {line}")
        for reason in self.method.biases(steps):
            if reason not in self.method.selection_bias:
                warnings.warn(f"{reason}. Unbiased settings: docs/choose.md.", stacklevel=3)

    @property
    def done(self) -> float:
        """Share of the run's steps before this one, in [0, 1]."""
        return min((self.global_steps - 1) / max(self.total_training_steps, 1), 1.0)

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _init_dataloader(self) -> None:
        """verl's, which counts epochs and validates; prompts to train on come from ``source``."""
        super()._init_dataloader()
        data = self.config.data
        self.source = prompt_source(
            self.train_dataset,
            self.settings,
            self.method,
            prompts=data.train_batch_size,
            shuffle=bool(data.shuffle),
            prompt_key=data.get("prompt_key", "prompt"),
        )

    def _fetch_one_gen_batch(self) -> Any:
        """The prompts of this step: verl names and hands on whatever its loader gives next."""
        prompts = self.source.block(self.global_steps, generations=self.generations, done=self.done)
        chosen = examples(self.train_dataset, prompts.row_Q, prompts.size_Q)
        self.train_dataloader_it = iter([collate_fn(chosen)])
        batch = super()._fetch_one_gen_batch()
        size_Q = [self.generations] * len(chosen) if prompts.size_Q is None else prompts.size_Q.tolist()
        self.asked = Asked(prompts=prompts, uid_Q=[str(uid) for uid in batch["uid"]], size_Q=size_Q)
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        """A step waits for the prompts that were asked, not for those of a whole block."""
        asked = self._in_use()
        return super()._step_once(metrics, timing_raw, len(asked.uid_Q))

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows are filled up so that any choice among them can be dealt to ranks; verl asks for whole mini-batches."""
        if keeps_all(self.method):
            return super()._get_required_batch_multiple(dp_size)
        return rows_needed(self._in_use().completions, self.passes.shares, dp_size)

    def _in_use(self) -> Asked:
        assert self.asked is not None, "verl trains before it has asked for prompts"
        return self.asked

    # -- completions --------------------------------------------------------------------------------------------------

    def on_init_end(self) -> None:
        """Workers get the weighted loss, and mini-batches as small as what is kept."""
        if not keeps_all(self.method):
            actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
            self.actor_rollout_wg.set_loss_fn(partial(weighted_ppo_loss, config=actor))
            send = self.actor_rollout_wg.update_actor

            def update_actor(batch: Any) -> Any:
                batch.extra_info["mini_batch_size"] = self._rows_per_step  # what the loss is divided by stays verl's
                return send(batch)

            self.actor_rollout_wg.update_actor = update_actor
        super().on_init_end()

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Plan the step with everything that came back, remember it, and train on what is kept."""
        found = returned(batch, self._in_use())
        plan = self._plan(found)
        self.source.learn(plan, self.global_steps)
        metrics.update(plan.figures | self.source.figures)
        if keeps_all(self.method):
            return super()._update_actor(batch, metrics)
        metrics.update(_means(plan.draw_figures))
        super()._update_actor(self._kept(batch, found, plan, metrics), metrics)
        return batch  # what verl logs and clears is about everything that was rolled out

    def _plan(self, found: Returned) -> StepPlan:
        """What the step trains on: verl's advantages, or those from history, and one draw per optimizer step."""
        method = self.method
        if not method.advantages.from_history:
            name = f"verl's {self.config.algorithm.adv_estimator}"
            method = replace(
                method, advantages=AdvantageRule(name=name, compute=lambda rewards, context: found.advantage_N)
            )
        return plan_step(
            method,
            found.rolled_out,
            self._in_use().prompts,
            streams=step_streams(self.settings.seed, self.global_steps),
            max_tokens=self.config.data.max_response_length,
            passes=self.passes,
            done=self.done,
        )

    def _kept(self, batch: Any, found: Returned, plan: StepPlan, metrics: dict[str, Any]) -> Any:
        """The rows that are trained on, laid out over ranks, with their weights in the queue."""
        there_N = found.row_N >= 0
        row_N = found.row_N[there_N]
        weight_UN = plan.weight_UN.new_zeros(len(plan.weight_UN), len(batch.keys))
        weight_UN[:, row_N] = plan.weight_UN[:, there_N]
        by_tokens = self.config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
        # Blocks of ``fill`` have more prompts than verl divides by; a mean over the tokens that are sent does not care.
        counted = self.config.data.train_batch_size * self.generations
        scale = 1.0 if by_tokens else counted / plan.prompts.sequences
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        tokens_U = plan.tokens_U if by_tokens else None
        placement = place(weight_UN, found.rows, ranks, tokens_U=tokens_U, scale=scale)
        if self.method.advantages.from_history:
            advantage_B = plan.advantage_N.new_zeros(len(batch.keys))
            advantage_B[row_N] = plan.advantage_N[there_N]
            write_advantages(batch, advantage_B)
        self._rows_per_step = placement.rows_per_step
        metrics.update({"rows/sent": float(len(placement.row_B)), "rows/fillers": float(placement.fillers)})
        weights = TensorDict({WEIGHT: placement.weight_B}, batch_size=len(placement.row_B))
        keys = [batch.keys[row] for row in placement.row_B]
        kept = transfer_queue.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=weights)
        kept.extra_info.update(batch.extra_info)
        return kept

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir).absolute() / f"global_step_{self.global_steps}"
        save(folder, self.source, self.global_steps, self._to_save())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            trainer = self.config.trainer
            given = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
            folder = resumed_folder(self.global_steps, given, trainer.default_local_dir)
            load(folder, self.source, self.global_steps, self._to_save())

    def _to_save(self) -> dict[str, Any]:
        get = partial(OmegaConf.select, self.config)
        return settings_to_save(self.settings, get, self.actor_rollout_wg.world_size)


def _means(figures: list[dict[str, float]]) -> dict[str, float]:
    """Figures of several draws as their means; of those that every draw has."""
    names = set.intersection(*map(set, figures))
    return {name: statistics.fmean(each[name] for each in figures) for name in sorted(names)}
