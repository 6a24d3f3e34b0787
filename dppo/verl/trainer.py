"""verl's synchronous trainer with both levels of pruning, and what its asynchronous ones share with it.

Hooks only: verl's own methods do all that they did.
"""

import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf, open_dict  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # pyright: ignore[reportMissingImports]
from verl.utils.dataset.rl_dataset import collate_fn  # pyright: ignore[reportMissingImports]

from dppo.errors import raise_problems
from dppo.session import Session
from dppo.step import UpdateSchedule
from dppo.step.in_flight import Requested
from dppo.verl.checkpoint import NAME, load, resumed_folder, save, settings_to_save
from dppo.verl.passes import PlannedPasses
from dppo.verl.prompts import examples, prompt_source
from dppo.verl.settings import biases, keeps_all, lines, method_of, order_lines, read_settings, unreadable_options
from dppo.verl.support import (
    FILTER,
    check_verl_version,
    filter_problems,
    knows_probabilities,
    unsupported_options,
    waits_for,
)

SCHEDULE = ("total_training_steps", "lr_warmup_steps", "lr_decay_steps", "lr_wsd_decay_steps")
"""Options of verl's optimizers that are a number of its calls; null or below 1 where another option says it."""


class PrunedTrainer(PlannedPasses):
    """GRPO that skips prompts before rollout and completions before the update, and reweights what it keeps.

    Args:
        config: verl's; options of pruning are under ``trainer.v1.sampler.sampler_kwargs.pruning``.

    Raises:
        ConfigError: an unsupported verl, an option of verl that would be silently wrong, or one of ours out of range.
    """

    mode = "sync"
    """verl's own trainer that this one is made of."""

    def __init__(self, config: Any) -> None:
        check_verl_version(version("verl"), self.mode)
        get, actor = partial(OmegaConf.select, config), "actor_rollout_ref.actor"
        self.settings = read_settings(get("trainer.v1.sampler.sampler_kwargs.pruning") or {}, seed=get("data.seed"))
        refuse = partial(raise_problems, f"trainer.v1.trainer_mode={get('trainer.v1.trainer_mode')}")
        refuse(unreadable_options(get))
        self.filters_groups = bool(get(FILTER))
        """Whether verl takes prompts until enough groups differ in reward."""
        if self.filters_groups:
            refuse(filter_problems(self.settings, self.settings.base))
        penalty = float(get(f"{actor}.kl_loss_coef")) if get(f"{actor}.use_kl_loss") else 0.0
        if get(f"{actor}.policy_loss.loss_mode") == "dro":  # its square pulls at completions without an advantage too
            penalty += float(get(f"{actor}.policy_loss.dro_beta") or 0.0)
        method = method_of(
            self.settings,
            loss_agg_mode=get(f"{actor}.loss_agg_mode"),
            penalty=penalty,
            entropy_coef=float(get(f"{actor}.entropy_coeff") or 0.0),
            sampler_log_probs=knows_probabilities(get),
            filters_groups=self.filters_groups,
        )
        refuse(unsupported_options(get, method, self.mode))
        epochs = 1 if keeps_all(method) else get(f"{actor}.ppo_epochs")
        prompts = get("data.train_batch_size") // (get(f"trainer.v1.{self.mode}.parameter_sync_step") or 1)
        self.session = Session(
            method,
            seed=self.settings.seed,
            generations=get("actor_rollout_ref.rollout.n"),
            max_tokens=get("data.max_response_length"),
            passes=UpdateSchedule(passes=epochs, shares=prompts // get(f"{actor}.ppo_mini_batch_size")),
            rollout_cost=self.settings.rollout_cost,
        )
        self.waits_for = waits_for(get)
        self.requested = None
        with open_dict(config):  # found by its name already: whatever asks from here on must hear verl's own
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self._announce()

    @property
    def _ahead_of_training(self) -> float | None:
        """Blocks of prompts that are asked for ahead; None where the prompts of a step are asked for when it begins."""
        return None

    @property
    def _parts(self) -> int:
        """Draws that the prompts of a step are made of; groups that were asked for ahead come back in any order."""
        ahead = self._ahead_of_training is not None
        return 1 if ahead else self.session.passes.parts(self.config.data.train_batch_size)

    def _announce(self) -> None:
        """Print the plan once; what is biased without having been accepted is warned of."""
        steps, ahead = self.session.passes.steps * self.parameter_sync_step, self._ahead_of_training
        said = lines(
            self.method,
            prompts=self.config.data.train_batch_size,
            generations=self.session.generations,
            optimizer_steps=steps,
            parts=self._parts,
            ahead=ahead,
        )
        for line in said + order_lines(self.method, self.waits_for, self.config.actor_rollout_ref.rollout):
            print(f"dppo | {line}")
        for reason in biases(self.method, steps // self._parts, ahead):
            if reason not in self.method.selection_bias:
                warnings.warn(f"{reason}. Unbiased settings: docs/choose.md.", stacklevel=3)

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _init_dataloader(self) -> None:
        """verl's, which counts epochs and validates; prompts to train on come from the session.

        Without a seed verl takes other rows for ``data.train_max_samples`` at each start, and no run could resume.
        """
        data = self.config.data
        if data.get("seed") is None:
            with open_dict(self.config):
                data.seed = self.settings.seed
        super()._init_dataloader()
        self.session.source = prompt_source(
            self.train_dataset,
            self.settings,
            prompts=data.train_batch_size,
            shuffle=bool(data.shuffle),
            prompt_key=data.get("prompt_key", "prompt"),
        )
        optim = self.config.actor_rollout_ref.actor.optim
        with open_dict(self.config):  # the schedule moves once per pass, as many times as often where each is a call
            for name in SCHEDULE:
                if (optim.get(name) or 0) > 0:
                    optim[name] *= self.session.passes.passes

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir).absolute() / f"global_step_{self.global_steps}"
        save(folder, self.session, self.global_steps, self._to_save())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            load(self._resumed_folder, self.session, self.global_steps, self._to_save())

    @property
    def _resumed_folder(self) -> Path:
        trainer = self.config.trainer
        given = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
        return resumed_folder(self.global_steps, given, trainer.default_local_dir)

    def _to_save(self) -> dict[str, Any]:
        get = partial(OmegaConf.select, self.config)
        return settings_to_save(self.settings, get, self.actor_rollout_wg.world_size)


@register_trainer(NAME)
class DynamicPruningTrainer(PrunedTrainer, PPOTrainerSync):
    """``trainer.v1.trainer_mode=dynamic_pruning``: the prompts of a step are asked for when it begins."""

    _dispatched: dict[str, int]
    """Rows of the prompts that were asked since the last step, by verl's names, where verl filters groups."""

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self._dispatched = {}

    def _fetch_one_gen_batch(self) -> Any:
        """The prompts of this step, or one where groups are filtered: verl hands on what its loader gives next."""
        if self.filters_groups:
            row_Q = self.source.stream.take(1)
            self.train_dataloader_it = iter([collate_fn(examples(self.train_dataset, row_Q, None))])
            batch = super()._fetch_one_gen_batch()
            self._dispatched[str(batch["uid"][0])] = int(row_Q[0])
            return batch
        prompts = self.session.prompts(number=self.global_steps, done=self.done, parts=self._parts)
        chosen = examples(self.train_dataset, prompts.row_Q, prompts.size_Q)
        self.train_dataloader_it = iter([collate_fn(chosen)])
        batch = super()._fetch_one_gen_batch()
        size_Q = [self.session.generations] * len(chosen) if prompts.size_Q is None else prompts.size_Q.tolist()
        self.requested = Requested(prompts=prompts, uid_Q=[str(uid) for uid in batch["uid"]], size_Q=size_Q)
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        """A step waits for the prompts that were asked, not for those of a whole block."""
        wanted = sample_batch_size if self.filters_groups else len(self._in_use.uid_Q)
        return super()._step_once(metrics, timing_raw, wanted)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        """Where verl filters groups, the prompts of a step are those that it has left, in the order of the asking."""
        if self.filters_groups:
            left = {key.rsplit("_", 2)[0] for key in batch.keys}
            row_of = {uid: row for uid, row in self._dispatched.items() if uid in left}
            self._dispatched = {}
            row_Q = torch.tensor(list(row_of.values()))
            prompts = self.session.given_prompts(row_Q, self.global_steps)
            self.requested = Requested(
                prompts=prompts, uid_Q=list(row_of), size_Q=[self.session.generations] * len(row_of)
            )
        return super()._balance_batch(batch, metrics, **options)
