"""The subject of a verification: rollouts of a fixed policy, and the gradient of each of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.environment import one_thread
from dppo.methods import METHODS, Method
from dppo.methods.a_star_po import optimal_value
from dppo.objective import DR_GRPO, group_advantages
from dppo.pruning import PromptHistory, SampledTokens, absolute_advantage, advantage_with_length, uncertainty
from dppo.step import RolledOut, completions_of, signals
from dppo.types import Candidates, Completions, Rewards
from dppo.verification.gradients import Folding, log_probs, trained_parameters

TOKEN_SUM = replace(METHODS["grpo"], normaliser=DR_GRPO)
"""The method of a history if none is named: its score is abs(A) times the root of the length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Rollouts of P prompts with G completions each, N in all, by a policy that stands still."""

    completion_tokens: tuple[list[int], ...]
    """Token ids of the N completions, G of each prompt after each other."""
    rewards: Rewards
    """Of the N completions, in float64."""
    context: StepContext
    """Expectations of the P prompts by a history of an earlier set of rollouts."""
    candidates: Candidates
    """Candidates by the same history."""
    earlier_rewards: Rewards
    """Of the P * G completions of that set."""
    uncertainty_N: Tensor
    """(N,) ``sqrt(sum (1 - p)^2)``."""
    sampled: SampledTokens | None = None
    """Log-probabilities of each token, for token pruning."""
    max_tokens: int
    """Longest completion allowed."""
    wanted: int | None = None
    """Groups that fill a step of a method with rounds; None for P."""

    @property
    def generations(self) -> int:
        """G, completions per prompt."""
        return len(self.rewards) // self.rewards.groups

    @property
    def tokens_N(self) -> Tensor:
        """(N,) tokens of each completion."""
        return lengths(self.completion_tokens)

    def rolled_out(self, keep_P: Tensor | None = None) -> RolledOut:
        """Rollouts of some prompts, default all, as an engine gives them to a session."""
        tokens_N = self.tokens_N
        keep_N = torch.ones_like(tokens_N, dtype=torch.bool) if keep_P is None else keep_P[self.rewards.group_N]
        return RolledOut(
            rewards=self.rewards.take(keep_N),
            tokens_N=tokens_N[keep_N],
            uncertainty_N=self.uncertainty_N[keep_N],
            sampled=self.sampled and self.sampled.take(keep_N.nonzero()[:, 0]),
        )

    def completions(self, method: Method) -> Completions:
        """The completions of all prompts as a method's completion pruning gets them."""
        return completions_of(method, self.rolled_out(), self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Rollouts):
    """Rollouts of a model, and the inner products of their gradients.

    At the policy that generated the ratio is 1 and the KL term is flat. So the gradient of each loss is a number times
    that of the completion's log-probability, and one matrix serves every method.
    """

    title: str
    """Model and data in a few words."""
    notes: tuple[str, ...]
    """Special properties of these rollouts, one sentence each."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_tokens: tuple[list[int], ...]
    """Token ids of the P prompts."""
    earlier_tokens: tuple[list[int], ...]
    """Token ids of the completions of the earlier set."""
    gram_NN: Tensor
    """(N, N) float64 inner products of ``grad sum_t log p_t`` of each completion."""
    temperature: float

    @property
    def reward_PG(self) -> Tensor:
        """(P, G) float64 total reward of each completion, NaN if it has none."""
        return self.rewards.total_N.view(-1, self.generations)

    def describe(self) -> str:
        """Model, data and rollouts, in one paragraph."""
        live, mean_tokens = int((group_advantages(self.rewards) != 0).sum()), self.tokens_N.double().mean()
        parameters = trained_parameters(self.model)
        lines = (
            f"{self.title}: {sum(each.numel() for each in parameters):,} trained parameters,",
            f"{self.rewards.groups} prompts x {self.generations} completions of {mean_tokens:.0f} tokens",
            f"(at most {self.max_tokens}), {live} of them with a gradient, which is kept",
            "whole." if Folding(parameters).exact else "folded.",
        )
        return " ".join([*lines, *self.notes])


def lengths(completions: Sequence[list[int]]) -> Tensor:
    """(N,) tokens of each completion."""
    return torch.tensor([len(tokens) for tokens in completions])


def known_after(earlier: Rewards) -> StepContext:
    """Expectations of a history that saw one earlier group of each prompt at step 0, and the values of the prompts."""
    history = _history(earlier, torch.zeros(earlier.groups), torch.zeros(len(earlier)))
    total_PG = earlier.total_N.view(earlier.groups, -1).nan_to_num(0.0)
    expected = history.expected(torch.arange(earlier.groups), 1)
    # A*-PO's beta1: the earlier group stands for the samples of examples/prompt_values.py.
    return StepContext(expected=expected, value_Q=optimal_value(total_PG, beta=0.5))


def candidates_after(made: RolledOut, method: Method = TOKEN_SUM, context: StepContext = NOTHING_KNOWN) -> Candidates:
    """Candidates by a history of one earlier set of rollouts, by a method's advantages and score."""
    history = _history(made.rewards, signals(method, made, context), made.tokens_N)
    return history.candidates(torch.arange(made.rewards.groups), 1)


def _history(rewards: Rewards, signal_P: Tensor, tokens_N: Tensor) -> PromptHistory:
    """A history that saw one group of each prompt, at step 0."""
    rows = torch.arange(rewards.groups)
    history = PromptHistory(rows.numpy().astype(np.uint64))
    history.update(rows, rewards, signal_P, tokens_N, 0)
    return history


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
