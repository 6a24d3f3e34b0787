"""The state of a ``DPPOTrainer``: its session, and in a checkpoint also the savings and the generation in use."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.methods import Method
from dppo.pruning import SCORES
from dppo.session import Session
from dppo.settings import AUTO
from dppo.step import StepPlan
from dppo.step.prompts import HISTORY_FILE
from dppo.trl.batch import RankBatch
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import RunState, batch_file, batch_goes_on, read_state, settings_of
from dppo.trl.grpo.prompts import check_lengths, prompt_source
from dppo.trl.grpo.savings import Savings
from dppo.trl.served import unserved_models, unserved_tokens
from dppo.types import Work


def start_session(trainer: Any, own: Method | None) -> Session:
    """The session of a run. ``own`` is a method that the trainer was given; None for the one of its arguments."""
    for refusal in unserved_models(trainer):
        raise ConfigError(refusal)
    args, log_probs = trainer.args, trainer.use_vllm or trainer.rollout_func is not None
    if args.completion_score == "uncertainty" and not log_probs:
        raise ConfigError(
            "completion_score='uncertainty' needs the sampler's log-probabilities, which transformers' generate "
            "does not give. Set use_vllm: true, or completion_score: length."
        )
    config, longest = trainer.model.config, args.max_completion_length or 1
    method = args.build_method(own, sampler_log_probs=log_probs, model_config=config)
    for refusal in unserved_tokens(trainer, method, log_probs):
        raise ConfigError(refusal)
    weight_F, environment = trainer.reward_weights.double().cpu(), trainer.environment_factories is not None
    source = prompt_source(trainer.train_dataset, args, method, weight_F=weight_F, environment=environment)
    if source is not None and not environment:
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        check_lengths(trainer.train_dataset, tokenizer, config, longest)
    return Session(
        method,
        source,
        seed=args.seed,
        generations=int(trainer.num_generations or 1),
        max_tokens=longest,
        passes=trainer.schedule.passes,
        rollout_cost=args.rollout_cost,
    )


def score_without_log_probs(trainer: Any) -> None:
    """Choose another score if ``auto`` needs log-probabilities and ``rollout_func`` returned none."""
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        raise ConfigError(
            "rollout_func returned logprobs: None, and with use_vllm: true the loss is corrected by them. Return "
            "those of the sampler, or set vllm_importance_sampling_correction: false."
        )
    method, args = trainer.method, trainer.args
    if method.score != SCORES["uncertainty"] or args.completion_score != AUTO:
        return
    score = args.build_method().score
    trainer.session.method = replace(method, completions=replace(method.completions, score=score))
    name = next(name for name, each in SCORES.items() if each is score)
    warnings.warn(
        f"rollout_func returned logprobs: None, so completions are ranked by {name}. To choose it yourself, write "
        f"completion_score: {name}.",
        stacklevel=2,
    )


@dataclass(frozen=True, kw_only=True)
class GenerationInUse:
    """The generation that is being trained on."""

    batch: RankBatch
    """This rank's part."""
    plan: StepPlan | None
    """Of all ranks; None after a resume within the generation: the batch has its weights."""
    draw_metrics: Sequence[Mapping[str, float]]
    """Of each draw, for the logs."""
    unpruned: Sequence[Work]
    """Passes of each optimizer step if nothing were dropped, on this rank."""


def save_run(trainer: Any, folder: Path) -> None:
    """Write the state of a ``DPPOTrainer``, and each rank's generation in use."""
    folder.mkdir(parents=True, exist_ok=True)
    calls, rank = trainer.calls % trainer.schedule.length, trainer.accelerator.process_index
    in_use: GenerationInUse | None = trainer.in_use if calls else None
    if in_use is not None:
        in_use.batch.save(batch_file(folder, rank))
    if not trainer.args.should_save:
        return
    state = RunState(
        session=trainer.session.save(folder),
        calls=calls,
        savings=asdict(trainer.savings),
        skipped=trainer.guard.skipped,
        settings=settings_of(trainer),
        draw_metrics=[] if in_use is None else list(in_use.draw_metrics),
        unpruned=[] if in_use is None else list(in_use.unpruned),
    )
    write_json(folder / OUR_STATE, asdict(state))


def load_run(trainer: Any, folder: Path) -> None:
    """Put a ``DPPOTrainer`` at the place of a checkpoint, also within a generation.

    Warnings name changed settings; if they change batches, the generation in use is rolled out again.
    """
    start = "training goes on from its weights with an empty prompt history and the prompt order of a new run."
    state = read_state(folder, lambda found: RunState(**found), without=start)
    if state is None:
        return
    lost = any("optimizer" in part for part in trainer.lacking)
    goes_on = batch_goes_on(folder, state, settings_of(trainer), new_optimizer=lost)
    trainer.session.load(folder, state.session, history=HISTORY_FILE not in trainer.lacking)
    trainer.meter.savings, trainer.meter.accounted = Savings.of_saved(state.savings), trainer.session.number
    trainer.guard.skipped = state.skipped
    ranks = range(trainer.accelerator.num_processes)
    if goes_on and not any(batch_file(folder, rank).name in trainer.lacking for rank in ranks):
        file = batch_file(folder, trainer.accelerator.process_index)
        trainer.in_use = GenerationInUse(
            batch=RankBatch.load(file, trainer.accelerator.device),
            plan=None,
            draw_metrics=[{k: math.nan if v is None else v for k, v in each.items()} for each in state.draw_metrics],
            unpruned=[Work(**each) for each in state.unpruned],
        )
        trainer.calls = state.calls
