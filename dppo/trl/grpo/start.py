"""The session of a ``DPPOTrainer``, and the model and options that it refuses."""

import warnings
from dataclasses import replace
from typing import Any, cast

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.pruning import SCORES
from dppo.session import Session
from dppo.settings import AUTO
from dppo.step import UpdateSchedule
from dppo.trl.grpo.prompts import check_lengths, prompt_source
from dppo.trl.served import unserved_models, unserved_tokens


def start_session(trainer: Any, own: Method | None, passes: UpdateSchedule) -> Session:
    """The session of a run. ``own`` is a method that the trainer was given; None for the one of its arguments.

    Raises:
        ConfigError: the model, the score or the tokens that it leaves out are not served.
        DataError: a prompt has as many tokens as the model has positions.
    """
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
        passes=passes,
        rollout_cost=args.rollout_cost,
    )


def score_without_log_probs(trainer: Any) -> None:
    """Choose another score if ``auto`` chose one by log-probabilities, and a ``rollout_func`` returned none.

    Raises:
        ConfigError: vLLM's samples are corrected by them.
    """
    if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
        raise ConfigError(
            "rollout_func returned logprobs: None, and with use_vllm: true the loss is corrected by them. Return "
            "those of the sampler, or set vllm_importance_sampling_correction: false."
        )
    session, args = trainer.session, trainer.args
    if session.method.score != SCORES["uncertainty"] or args.completion_score != AUTO:
        return
    score = args.build_method().score
    completions = replace(cast(Any, session.method.completions), score=score)
    session.method = replace(session.method, completions=completions)
    name = next(name for name, each in SCORES.items() if each is score)
    warnings.warn(
        "rollout_func returned logprobs: None, and completion_score: auto would rank completions by them: they are "
        f"ranked by {name} instead. To choose it yourself, write completion_score: {name}.",
        stacklevel=2,
    )
