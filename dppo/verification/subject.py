"""What is verified: the rollouts of a policy that stands still, and the gradient of every one of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.methods import METHODS, Method
from dppo.methods.a_star_po import optimal_value
from dppo.objective import DR_GRPO, group_advantages
from dppo.pruning import PromptHistory, absolute_advantage, advantage_with_length, uncertainty
from dppo.rng import Purpose, generator
from dppo.step import RolledOut, completions_of, signals
from dppo.types import Candidates, Completions, Rewards
from dppo.verification.gradients import Folding, gram, log_probs, score_gradients, trained_parameters
from dppo.verification.sampling import SubjectSampling, generate

FEWEST_LIVE = 12
"""With fewer completions of non-zero advantage, rewards are drawn at random: there would be nothing to prune."""

Scorer = Callable[[list[int], list[list[int]]], Tensor]
"""``scorer(prompt, tokens)``: for each of N completions the index of its prompt and its token ids, to the rewards of
each function, (N, F) with NaN where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A policy's rollouts of P prompts with G completions each, N in all, and the inner products of their gradients.

    At the policy that generated, where every first pass over a batch is, the gradient of each loss we serve is a
    number times that of the completion's log-probability: the ratio is 1 and the KL term is flat. So one matrix
    serves every method, normaliser and scaling of advantages.
    """

    title: str
    """Model and data in a few words."""
    notes: tuple[str, ...]
    """What is special about these rollouts, one sentence each."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_tokens: tuple[list[int], ...]
    """Token ids of the P prompts."""
    completion_tokens: tuple[list[int], ...]
    """Token ids of the N completions, G of each prompt after each other."""
    rewards: Rewards
    """Of the N completions, in float64."""
    context: StepContext
    """What a history of the earlier set expects of the P prompts: only methods with a baseline from history look at
    it."""
    generations: int
    """G, completions per prompt."""
    uncertainty_N: Tensor
    """(N,) ``sqrt(sum (1 - p)^2)``."""
    gram_NN: Tensor
    """(N, N) float64 inner products of ``grad sum_t log p_t`` of each completion."""
    candidates: Candidates
    """What an earlier set of rollouts of the same prompts says about them."""
    earlier_tokens: tuple[list[int], ...]
    """Token ids of that set's P * G completions."""
    earlier_rewards: Rewards
    """Of that set."""
    max_tokens: int
    """Longest completion allowed."""
    temperature: float
    folded: bool
    """Whether gradients were folded, so that norms are right to about 0.3% only."""
    wanted: int | None = None
    """Groups that fill a step of a method with rounds; None for as many as there are prompts."""

    @property
    def reward_PG(self) -> Tensor:
        """(P, G) float64 total reward of each completion, NaN where there is none."""
        return self.rewards.total_N.view(-1, self.generations)

    @property
    def tokens_N(self) -> Tensor:
        """(N,) tokens of each completion."""
        return lengths(self.completion_tokens)

    def rolled_out(self, keep_P: Tensor | None = None) -> RolledOut:
        """The rollouts of some prompts, as an engine would hand them to ``plan_step``."""
        tokens_N = self.tokens_N
        keep_N = torch.ones_like(tokens_N, dtype=torch.bool) if keep_P is None else keep_P[self.rewards.group_N]
        return RolledOut(
            rewards=self.rewards.take(keep_N), tokens_N=tokens_N[keep_N], uncertainty_N=self.uncertainty_N[keep_N]
        )

    def completions(self, method: Method) -> Completions:
        """What a method's completion pruning sees where every prompt was rolled out."""
        return completions_of(method, self.rolled_out(), self.context)

    def describe(self) -> str:
        """Model, data and rollouts, in one paragraph."""
        live, mean_tokens = int((group_advantages(self.rewards) != 0).sum()), self.tokens_N.double().mean()
        folded = "folded" if self.folded else "whole"
        return " ".join(
            [
                f"{self.title}: {sum(p.numel() for p in trained_parameters(self.model)):,} trained parameters,",
                f"{self.rewards.groups} prompts x {self.generations} completions of {mean_tokens:.0f} tokens",
                f"(at most {self.max_tokens}), {live} of them with a gradient, which is kept {folded}.",
                *self.notes,
            ]
        )


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
    """Roll every prompt out twice, once for its history and once to be verified, and take all gradients of the second.

    If hardly any group has rewards that differ, they are replaced by random ones, and the notes say so: whether an
    estimate is unbiased does not depend on what was rewarded.

    Args:
        model: the policy, left in evaluation mode.
        tokenizer: for the ids of padding and of the end.
        prompts: token ids of each prompt, at least two of them.
        scorer: what the completions earn.
        sampling: how they are generated.
        title: model and data in a few words.
        reward_weights: what multiplies each function's reward, as many as the scorer gives.

    Raises:
        ConfigError: fewer than two prompts, or nothing to train.
    """
    _check(model, prompts, sampling)
    model.eval()
    count = sampling.generations
    earlier_tokens, now_tokens, reward_P2GF = _two_sets(
        model, tokenizer, prompts, scorer, sampling, len(reward_weights)
    )
    pairs = [(prompts[i // count], completion) for i, completion in enumerate(now_tokens)]
    limits = {"group": count, "limit_seconds": sampling.limit_seconds}
    with one_thread(model):
        gradient_NK, logp_N = score_gradients(model, pairs, temperature=sampling.temperature, **limits)
    done = len(logp_N) // count
    notes = [] if done == len(prompts) else [f"Time was up after {done} of {len(prompts)} prompts."]
    earlier, now, drawn = _rewards(reward_P2GF[:done], reward_weights, sampling.seed)
    notes += ["Rewards hardly differed within groups, so they were drawn at random instead."] * drawn
    earlier_tokens, now_tokens = earlier_tokens[: done * count], now_tokens[: done * count]
    logp_NT = torch.nn.utils.rnn.pad_sequence(logp_N, batch_first=True)
    return Subject(
        title=title,
        notes=tuple(notes),
        model=model,
        tokenizer=tokenizer,
        prompt_tokens=tuple(prompts[:done]),
        completion_tokens=tuple(now_tokens),
        rewards=now,
        context=known_after(earlier),
        generations=count,
        uncertainty_N=uncertainty(logp_NT, torch.arange(logp_NT.shape[1]) < lengths(now_tokens)[:, None]),
        gram_NN=gram(gradient_NK),
        candidates=_after(earlier, lengths(earlier_tokens), TOKEN_SUM),
        earlier_tokens=tuple(earlier_tokens),
        earlier_rewards=earlier,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        folded=not Folding(trained_parameters(model)).exact,
    )


def _two_sets(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    scorer: Scorer,
    sampling: SubjectSampling,
    functions: int,
) -> tuple[list[list[int]], list[list[int]], Tensor]:
    """Completions of the earlier set and of the one now, and (P, 2, G, F) rewards of both."""
    count = sampling.generations
    with one_thread(model):
        tokens = generate(model, tokenizer, prompts, 2 * count, sampling)
    row = [prompt for prompt in range(len(prompts)) for _ in range(2 * count)]
    reward_P2GF = scorer(row, tokens).double().view(len(prompts), 2, count, functions)
    earlier, now = ([each for i, each in enumerate(tokens) if i // count % 2 == part] for part in (0, 1))
    return earlier, now, reward_P2GF


def lengths(completions: Sequence[list[int]]) -> Tensor:
    """(N,) tokens of each completion."""
    return torch.tensor([len(tokens) for tokens in completions])


def _rewards(reward_P2GF: Tensor, weights: Sequence[float], seed: int) -> tuple[Rewards, Rewards, bool]:
    """Of the earlier rollout and of the one now, and whether they are random, since given ones hardly differed."""
    prompts, _, count, functions = reward_P2GF.shape
    weight_F = torch.tensor(weights, dtype=torch.float64)
    earlier, now = (Rewards.in_groups(reward_P2GF[:, part].reshape(-1, functions), count, weight_F) for part in (0, 1))
    if int((group_advantages(now) != 0).sum()) >= min(FEWEST_LIVE, prompts * count // 2):
        return earlier, now, False
    reward_P2G = random_rewards(reward_P2GF.shape[:3], seed)
    earlier, now = (Rewards.of_groups(reward_P2G[:, part]) for part in (0, 1))
    return earlier, now, True


def _check(model: PreTrainedModel, prompts: list[list[int]], sampling: SubjectSampling) -> None:
    """Raise an error where there is nothing to verify."""
    if len(prompts) < 2 or sampling.generations < 2:
        raise ConfigError(
            f"{len(prompts)} prompts with {sampling.generations} completions each: verification needs at least 2 of "
            "both. Use more problems, or num_generations: 8"
        )
    if not trained_parameters(model):
        raise ConfigError("no parameter of the model is trained: set requires_grad on some")


def random_rewards(shape: torch.Size, seed: int) -> Tensor:
    """(P, 2, G) rewards of 0 and 1, each prompt with its own chance: one of 1/8 to 7/8, different for neighbours."""
    rng = generator(seed, Purpose.CHECK, 2)
    chance_P = (1 + rng.permutation(shape[0]) % 7) / 8
    return torch.from_numpy((rng.random(tuple(shape)) < chance_P[:, None, None]).astype(np.float64))


WITHOUT_CONFIDENCE = (absolute_advantage, advantage_with_length)
"""Scores that need no log-probabilities; one of yours may look at them."""
VALUE_BETA = 0.5
"""A*-PO's beta1: the earlier group stands for what ``dppo values`` would have sampled."""
TOKEN_SUM = replace(METHODS["grpo"], normaliser=DR_GRPO)
"""What a history learns with where no method is named: abs(A) times the root of the length."""


def _after(
    rewards: Rewards,
    tokens_N: Tensor,
    method: Method,
    uncertainty_N: Tensor | None = None,
    context: StepContext = NOTHING_KNOWN,
) -> Candidates:
    """The candidates that a history of one earlier set of rollouts gives, by a method's advantages and score."""
    signal_P = signals(method, RolledOut(rewards=rewards, tokens_N=tokens_N, uncertainty_N=uncertainty_N), context)
    return _history(rewards, signal_P, tokens_N).candidates(torch.arange(rewards.groups), 1)


def known_after(earlier: Rewards) -> StepContext:
    """What one earlier group of each prompt says of the next one: what history expects, and the prompt's value.

    The earlier groups were rolled out at step 0, where nothing was known.
    """
    history = _history(earlier, torch.zeros(earlier.groups), torch.zeros(len(earlier)))
    total_PG = earlier.total_N.view(earlier.groups, -1).nan_to_num(0.0)
    expected = history.expected(torch.arange(earlier.groups), 1)
    return StepContext(expected=expected, value_Q=optimal_value(total_PG, beta=VALUE_BETA))


def _history(rewards: Rewards, signal_P: Tensor, tokens_N: Tensor) -> PromptHistory:
    """A history that has seen one group of each prompt, at step 0."""
    rows = torch.arange(rewards.groups)
    history = PromptHistory(rows.numpy().astype(np.uint64))
    history.update(rows, rewards, signal_P, tokens_N, 0)
    return history


def remembered(subject: Subject, method: Method) -> Candidates:
    """The candidates as a method's own training would know them after the earlier set of rollouts."""
    uncertainty_N = None if method.score in WITHOUT_CONFIDENCE else _earlier_uncertainty(subject)
    values = StepContext(value_Q=subject.context.value_Q)  # of a reference, which are there before training
    return _after(subject.earlier_rewards, lengths(subject.earlier_tokens), method, uncertainty_N, values)


@torch.no_grad()
def _earlier_uncertainty(subject: Subject) -> Tensor:
    """(N,) uncertainty of the earlier completions."""
    with one_thread(subject.model):
        logp_N = [
            log_probs(subject.model, subject.prompt_tokens[row // subject.generations], tokens, subject.temperature)
            for row, tokens in enumerate(subject.earlier_tokens)
        ]
    found = [uncertainty(logp_T.cpu()[None], torch.ones(1, len(logp_T))) for logp_T in logp_N]
    return torch.cat(found)
