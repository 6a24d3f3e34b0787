"""The subject of a verification: rollouts of a fixed policy, and the gradient of each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dppo.context import StepContext
from dppo.methods import Method
from dppo.methods.a_star_po import optimal_value
from dppo.objective import group_advantages
from dppo.pruning import PromptHistory, SampledTokens
from dppo.step import RolledOut, completions_of
from dppo.types import Candidates, Completions, Rewards

EXACT_COORDINATES = 2**20
"""Gradients of up to this many parameters are kept whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Rollouts of P prompts with G completions each, N in all, by a policy that stands still."""

    completion_tokens: tuple[list[int], ...]
    """Token ids of the N completions, G of each prompt after each other."""
    rewards: Rewards
    """Rewards of the N completions, in float64."""
    context: StepContext
    """Expectations of the P prompts by a history of an earlier set of rollouts."""
    candidates: Candidates
    """Candidates by the same history."""
    earlier_rewards: Rewards
    """Rewards of the P * G completions of the earlier set."""
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
        parameters = sum(parameter.numel() for parameter in trained_parameters(self.model))
        lines = (
            f"{self.title}: {parameters:,} trained parameters,",
            f"{self.rewards.groups} prompts x {self.generations} completions of {mean_tokens:.0f} tokens",
            f"(at most {self.max_tokens}), {live} of them with a gradient, which is kept",
            "whole." if parameters <= EXACT_COORDINATES else "folded.",
        )
        return " ".join([*lines, *self.notes])


def log_probs(model: PreTrainedModel, prompt: list[int], completion: list[int], temperature: float = 1.0) -> Tensor:
    """(T,) log-probabilities, in nats, of a completion's tokens after its prompt, with their gradient."""
    token_1T = torch.tensor([prompt + completion], device=model.device)
    logits_TV = model(input_ids=token_1T[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    return (logits_TV / temperature).log_softmax(-1).gather(1, token_1T[0, len(prompt) :, None]).squeeze(1)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def lengths(completions: Sequence[list[int]]) -> Tensor:
    """(N,) tokens of each completion."""
    return torch.tensor([len(tokens) for tokens in completions])


def known_after(earlier: Rewards) -> StepContext:
    """Expectations of a history that saw one earlier group of each prompt at step 0, and the values of the prompts."""
    history = history_of(earlier, torch.zeros(earlier.groups), torch.zeros(len(earlier)))
    total_PG = earlier.total_N.view(earlier.groups, -1).nan_to_num(0.0)
    expected = history.expected(torch.arange(earlier.groups), 1)
    # A*-PO's beta1: the earlier group stands for the samples of examples/prompt_values.py.
    return StepContext(expected=expected, value_Q=optimal_value(total_PG, beta=0.5))


def history_of(rewards: Rewards, signal_P: Tensor, tokens_N: Tensor) -> PromptHistory:
    """A history that saw one group of each prompt, at step 0."""
    rows = torch.arange(rewards.groups)
    history = PromptHistory(rows.numpy().astype(np.uint64))
    history.update(rows, rewards, signal_P, tokens_N, 0)
    return history
