"""The whole method on a real model without a trainer: choose, roll out, score, choose again, weight, update.

All of DPPO is in ``Loop.step``. Plain GRPO is the same loop with ``method=METHODS["grpo"]`` and ``live=everything``.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.lab.demo.decode import Rollout, sample
from dppo.lab.demo.rollouts import MAX_NEW_TOKENS, rewards_of
from dppo.lab.demo.task import ArithmeticProblem
from dppo.methods import Method
from dppo.objective import Tokens
from dppo.packing import build_row, plan_rows
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head
from dppo.pruning import PromptHistory, PromptStream, uncertainty
from dppo.rng import Purpose, torch_generator
from dppo.session import Session
from dppo.step import PromptSource, RolledOut, StepPlan, StepPrompts
from dppo.types import Block, Rewards
from dppo.verification.tiny_tokenizer import encode_questions

PROMPTS, GENERATIONS = 16, 8
MAX_TOKENS = 4096
"""Tokens of one forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The metrics of one step."""

    reward: float
    """Mean over the completions rolled out."""
    rollouts: int
    completions_trained: int
    tokens_trained: int
    zero_variance: float
    """Share of the groups rolled out in which no completion has a gradient."""
    largest_weight: float
    rounds: int
    """Rounds of rollouts."""
    seconds: dict[str, float]
    """By phase: rollout, choose, update."""


def together(rollouts: Sequence[Rollout]) -> Rollout:
    """The completions of several rollouts as one, padded to the widest."""
    width = max(rollout.token_NT.shape[1] for rollout in rollouts)
    tokens, logps = (
        torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])
        for parts in ([r.token_NT for r in rollouts], [r.logp_NT for r in rollouts])
    )
    return Rollout(token_NT=tokens, length_N=torch.cat([r.length_N for r in rollouts]), logp_NT=logps)


def everything(advantage_N: Tensor) -> Tensor:
    """All completions, those without a gradient too: plain GRPO forwards them."""
    return torch.ones_like(advantage_N, dtype=torch.bool)


class Loop:
    """A policy in training, in place, on the embedded task.

    ``seed`` is of every draw. A step has ``prompts`` candidates with ``generations`` completions each. ``live`` tells
    from the advantages which completions need a forward pass, by default ``method.live``.
    """

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        problems: Sequence[ArithmeticProblem],
        method: Method,
        *,
        seed: int,
        live: Callable[[Tensor], Tensor] | None = None,
        prompts: int = PROMPTS,
        generations: int = GENERATIONS,
    ) -> None:
        self.model, self.tokenizer, self.problems, self.live = model, tokenizer, problems, live
        self.prompts = encode_questions(tokenizer, [problem.question for problem in problems])
        history = PromptHistory(torch.arange(len(problems)).numpy().astype("uint64"))
        source = PromptSource(PromptStream(len(problems), seed), history, prompts=prompts)
        self.session = Session(method, source, seed=seed, generations=generations, max_tokens=MAX_NEW_TOKENS)
        use_rows(model)
        add_scored_head(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, learning_rate: float, done: float = 0.0) -> StepRecord:
        """One optimizer step on one block of prompts; schedules read ``done``, the share of training done."""
        clock = [time.perf_counter()]
        prompts, rollout, rewards = self._roll_out(done)
        clock.append(time.perf_counter())

        plan = self._plan(prompts, rollout, rewards, done)
        clock.append(time.perf_counter())

        kept = plan.kept(0).tolist()
        self._update(plan, kept, rollout, learning_rate)
        clock.append(time.perf_counter())
        phases = zip(("rollout", "choose", "update"), (b - a for a, b in pairwise(clock)), strict=True)
        return StepRecord(
            reward=rewards.total_N.mean().item(),
            rollouts=len(rewards),
            completions_trained=len(kept),
            tokens_trained=int(rollout.length_N[kept].sum()),
            zero_variance=plan.metrics["rollout/zero_variance_groups"],
            largest_weight=plan.weight_UN[0].max().item(),
            rounds=1 if prompts.collected is None else prompts.collected.rounds,
            seconds=dict(phases),
        )

    def _roll_out(self, done: float) -> tuple[StepPrompts, Rollout, Rewards]:
        """Prompts, completions and rewards of the step: of one block, or of rounds until enough groups count."""
        rollouts: list[Rollout] = []
        rewards: list[Tensor] = []

        def roll_out(row_Q: Tensor, size_Q: Tensor, *key: int) -> Rewards:
            rng = torch_generator(self.session.seed, Purpose.ROLLOUT, self.session.number, *key)
            prompts = [self.prompts[row] for row in row_Q]
            sizes = size_Q.tolist()
            rollouts.append(sample(self.model, prompts, rng, samples=sizes, max_new_tokens=MAX_NEW_TOKENS))
            rewards.append(self._rewards(row_Q.repeat_interleave(size_Q), rollouts[-1])[:, None])
            return Rewards.in_groups(rewards[-1], size_Q)

        def equal(row_Q: Tensor) -> Tensor:
            return torch.full_like(row_Q, self.session.generations)

        if self.session.method.rounds is None:
            prompts = self.session.prompts(done=done)
            size_Q = equal(prompts.row_Q) if prompts.size_Q is None else prompts.size_Q
            found = roll_out(prompts.row_Q, size_Q)
            return prompts, rollouts[0], found

        def one_round(number: int, block: Block) -> Rewards:
            return roll_out(block.row_Q, equal(block.row_Q), number)

        prompts = self.session.prompts_in_rounds(one_round)
        return prompts, together(rollouts), Rewards.in_groups(torch.cat(rewards), self.session.generations)

    def _plan(self, prompts: StepPrompts, rollout: Rollout, rewards: Rewards, done: float) -> StepPlan:
        """The estimator: which completions the step trains on, and with which weights."""
        uncertainty_N = uncertainty(rollout.logp_NT, rollout.mask_NT)
        rolled_out = RolledOut(rewards=rewards, tokens_N=rollout.length_N, uncertainty_N=uncertainty_N)
        return self.session.plan(prompts, rolled_out, done=done, live=self.live)

    def _update(self, plan: StepPlan, kept: list[int], rollout: Rollout, learning_rate: float) -> None:
        """One optimizer step on the kept completions, with a denominator from before pruning."""
        for logp_BT, batch in self._log_probs(
            kept, plan.prompts.row_Q[plan.rewards.group_N], plan.rewards.group_N, rollout
        ):
            tokens = Tokens(
                logp_BT=logp_BT,
                old_logp_BT=logp_BT.detach(),
                advantage_B=plan.advantage_N[batch].float(),
                mask_BT=rollout.mask_NT[batch],
            )
            self.session.loss(tokens, plan.weight_UN[0, batch], plan.sizes).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _log_probs(
        self, kept: list[int], row_N: Tensor, group_N: Tensor, rollout: Rollout
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each dense row, (B, T) log-probabilities with gradient and (B,) the completions in it."""
        groups = group_N[kept].tolist()
        prompts = [self.prompts[row] for row in row_N[kept]]
        lengths = rollout.length_N[kept].tolist()
        for places in plan_rows(groups, [len(prompt) for prompt in prompts], lengths, MAX_TOKENS):
            row = build_row(
                [torch.tensor(prompts[place]) for place in places],
                [rollout.token_NT[kept[place], : lengths[place]] for place in places],
                [groups[place] for place in places],
            )
            logp_BT = row_log_probs(self.model, row, rollout.token_NT.shape[1]).logp_BT
            yield logp_BT, torch.tensor([kept[place] for place in places])

    def _rewards(self, row_N: Tensor, rollout: Rollout) -> Tensor:
        """(N,) the task's reward of each completion, of problem ``row_N``."""
        return rewards_of(rollout, self.tokenizer, [self.problems[int(row)] for row in row_N])
