"""Rolls out a policy that stands still, and takes all its gradients: the subject of verification and frozen draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.lab.gradients import gram, score_gradients
from dppo.methods import METHODS, Method
from dppo.objective import DR_GRPO, group_advantages
from dppo.pruning import absolute_advantage, advantage_with_length, uncertainty
from dppo.rng import Purpose, generator
from dppo.step import RolledOut, completions_of
from dppo.step.records import scores, signals_of
from dppo.types import Candidates, Rewards
from dppo.verification.subject import Subject, history_of, known_after, lengths, log_probs, trained_parameters

FEWEST_LIVE = 12
"""With fewer completions of non-zero advantage, rewards are drawn at random: there would be nothing to prune."""

TOKEN_SUM = replace(METHODS["grpo"], normaliser=DR_GRPO)
"""Default method of a history. Its score is abs(A) times the square root of the length."""

Scorer = Callable[[list[int], list[list[int]]], Tensor]
"""``scorer(prompt, tokens)``: for each of N completions the index of its prompt and its token ids, to the rewards of
each function, (N, F) with NaN for no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSampling:
    """Sampling of completions: of a subject, or in an evaluation, where ``generations`` has no effect."""

    generations: int = 8
    """G, completions per prompt, >= 2."""
    max_new_tokens: int = 64
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    seed: int = 0
    limit_seconds: float = 40.0
    """For generation, and again for the gradients: completions are cut short, and prompts left out, after that."""


def frozen_subject(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    scorer: Scorer,
    *,
    sampling: SubjectSampling,
    title: str,
    reward_weights: Sequence[float] = (1.0,),
) -> Subject:
    """Roll out every prompt twice: once for its history, once to be verified. Take all gradients of the second.

    If hardly any group has rewards that differ, random ones replace them, and the notes say so: a bias of an estimate
    does not depend on the rewards. ``prompts`` are token ids, and ``reward_weights`` has one factor for each function
    of the scorer. The model is left in evaluation mode.

    Raises:
        ConfigError: fewer than two prompts, or nothing to train.
    """
    _check(model, prompts, sampling)
    model.eval()
    count = sampling.generations
    with one_thread(model):
        made = generate(model, tokenizer, prompts, 2 * count, sampling)
    earlier_tokens, now_tokens = ([each for row, each in enumerate(made) if row // count % 2 == at] for at in (0, 1))
    pairs = [(prompts[row // count], completion) for row, completion in enumerate(now_tokens)]
    limits = {"temperature": sampling.temperature, "limit_seconds": sampling.limit_seconds}
    with one_thread(model):
        gradient_NK, logp_N = score_gradients(model, pairs, group=count, **limits)
    done = len(logp_N) // count
    logp_NT = torch.nn.utils.rnn.pad_sequence(list(logp_N), batch_first=True)
    length_N = torch.tensor([len(logp_T) for logp_T in logp_N])
    reward_P2GF = scorer([row // (2 * count) for row in range(len(made))], made).double()
    reward_P2GF = reward_P2GF.view(len(prompts), 2, count, len(reward_weights))[:done]
    earlier, now, drawn = _rewards(reward_P2GF, reward_weights, sampling.seed)
    notes = [f"Time was up after {done} of {len(prompts)} prompts."] * (done < len(prompts))
    notes += ["Rewards hardly differed within groups, so they were drawn at random instead."] * drawn
    return Subject(
        title=title,
        notes=tuple(notes),
        model=model,
        tokenizer=tokenizer,
        prompt_tokens=tuple(prompts[:done]),
        completion_tokens=tuple(now_tokens[: done * count]),
        rewards=now,
        context=known_after(earlier),
        uncertainty_N=uncertainty(logp_NT, torch.arange(logp_NT.shape[1]) < length_N[:, None]),
        gram_NN=gram(gradient_NK),
        candidates=candidates_after(RolledOut(rewards=earlier, tokens_N=lengths(earlier_tokens[: done * count]))),
        earlier_tokens=tuple(earlier_tokens[: done * count]),
        earlier_rewards=earlier,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
    )


def signals(method: Method, rolled_out: RolledOut, context: StepContext) -> Tensor:
    """(Q,) float64 estimate of the gradient norm of each group: the root of the sum of its squared scores."""
    completions = completions_of(method, rolled_out, context)
    return signals_of(scores(method, completions), completions.group_N)


def candidates_after(made: RolledOut, method: Method = TOKEN_SUM, context: StepContext = NOTHING_KNOWN) -> Candidates:
    """Candidates by a history of one earlier set of rollouts, by a method's advantages and score."""
    history = history_of(made.rewards, signals(method, made, context), made.tokens_N)
    return history.candidates(torch.arange(made.rewards.groups), 1)


def remembered(subject: Subject, method: Method) -> Candidates:
    """Candidates by the history of a method's own training after the earlier set of rollouts."""
    made = RolledOut(rewards=subject.earlier_rewards, tokens_N=lengths(subject.earlier_tokens))
    if method.score not in (absolute_advantage, advantage_with_length):  # others may need log-probabilities
        prompts = [prompt for prompt in subject.prompt_tokens for _ in range(subject.generations)]
        pairs = zip(prompts, subject.earlier_tokens, strict=True)
        with one_thread(subject.model), torch.no_grad():
            logp_N = [log_probs(subject.model, *pair, subject.temperature).cpu()[None] for pair in pairs]
        found = [uncertainty(logp_1T, torch.ones_like(logp_1T)) for logp_1T in logp_N]
        made = replace(made, uncertainty_N=torch.cat(found))
    values = StepContext(value_Q=subject.context.value_Q)  # of a reference, so they are known before training
    return candidates_after(made, method, values)


def _check(model: PreTrainedModel, prompts: list[list[int]], sampling: SubjectSampling) -> None:
    if len(prompts) < 2 or sampling.generations < 2:
        raise ConfigError(
            f"{len(prompts)} prompts with {sampling.generations} completions each: verification needs at least 2 of "
            "both. Use more problems, or num_generations: 8"
        )
    if not trained_parameters(model):
        raise ConfigError("no parameter of the model is trained: set requires_grad on some")


def _rewards(reward_P2GF: Tensor, weights: Sequence[float], seed: int) -> tuple[Rewards, Rewards, bool]:
    """Rewards of the earlier rollout and of this one, and True if random ones replaced rewards that hardly differ."""
    prompts, _, count, functions = reward_P2GF.shape
    weight_F = torch.tensor(weights, dtype=torch.float64)
    earlier, now = (Rewards.in_groups(reward_P2GF[:, part].reshape(-1, functions), count, weight_F) for part in (0, 1))
    if int((group_advantages(now) != 0).sum()) >= min(FEWEST_LIVE, prompts * count // 2):
        return earlier, now, False
    reward_P2G = random_rewards(reward_P2GF.shape[:3], seed)
    earlier, now = (Rewards.of_groups(reward_P2G[:, part]) for part in (0, 1))
    return earlier, now, True


def random_rewards(shape: torch.Size, seed: int) -> Tensor:
    """(P, 2, G) rewards of 0 and 1, each prompt with its own chance: one of 1/8 to 7/8, different for neighbours."""
    rng = generator(seed, Purpose.CHECK, 2)
    chance_P = (1 + rng.permutation(shape[0]) % 7) / 8
    return torch.from_numpy((rng.random(tuple(shape)) < chance_P[:, None, None]).astype(np.float64))


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    count: int,
    sampling: SubjectSampling,
) -> list[list[int]]:
    """``count`` sampled completions of each prompt, as token ids including the end token.

    transformers samples from torch's global generator: it is seeded here and restored afterwards.
    """
    ends = end_tokens(model, tokenizer)
    pad = (ends or [0])[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    cuts = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    chosen = {"do_sample": True, **cuts} if sampling.temperature else {"do_sample": False}
    width = max(map(len, prompts))
    padded = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    settings = GenerationConfig(
        **chosen,
        num_return_sequences=count,
        max_new_tokens=sampling.max_new_tokens,
        max_time=sampling.limit_seconds,
        pad_token_id=pad,
        eos_token_id=ends or None,
    )
    # The sampling defaults of its folder, such as ``min_p``, would change its policy.
    defaults, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(int(generator(sampling.seed, Purpose.CHECK, 3).integers(2**62)))
            output = cast(Any, model).generate(
                torch.tensor(padded, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                generation_config=settings,
            )
    finally:
        model.generation_config = defaults
    rows = output[:, width:].tolist()
    return [next((row[: place + 1] for place, token in enumerate(row) if token in ends), row) for row in rows]


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end a completion, by the model's folder or else the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ends = cast(Any, tokenizer.eos_token_id if configured is None else configured)
    return [ends] if isinstance(ends, int) else list(ends or ())
