"""The whole method without a trainer: choose prompts, roll out, score, choose completions, weight, update.

Everything that makes it DPPO is in ``Loop.step``. Plain GRPO is the same loop with ``method=GRPO`` and
``live=everything``: no prompt and no completion is left out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.demo.decode import Rollout, sample
from dppo.demo.evaluate import MAX_NEW_TOKENS
from dppo.demo.task import Problem, reward
from dppo.demo.tokenizer import encode_prompts
from dppo.methods import Method
from dppo.objective import weighted_sum
from dppo.packing import build_row, plan_rows
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head
from dppo.pruning import PromptHistory, PromptStream, confidence
from dppo.rng import Purpose, generator, torch_generator
from dppo.types import Completions

PROMPTS, GENERATIONS = 16, 8
MAX_TOKENS = 4096
"""Tokens of one forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did."""

    reward: float
    """Mean over the completions rolled out."""
    rollouts: int
    completions_trained: int
    tokens_trained: int
    zero_signal: float
    """Share of the groups rolled out in which no completion has a gradient."""
    largest_weight: float
    seconds: dict[str, float]
    """By phase: rollout, choose, update."""


def everything(advantage_N: Tensor) -> Tensor:
    """All completions, also those without a gradient: what plain GRPO forwards."""
    return torch.ones_like(advantage_N, dtype=torch.bool)


class Loop:
    """A policy in training on the embedded task.

    Args:
        model: the policy, trained in place.
        tokenizer: its tokenizer.
        problems: the training problems.
        method: what is pruned, and the objective.
        seed: of every draw in this run.
        live: which completions are worth a forward pass, from their advantages; ``method.live`` by default.
        prompts: candidates per step, >= 1.
    """

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        problems: Sequence[Problem],
        method: Method,
        *,
        seed: int,
        live: Callable[[Tensor], Tensor] | None = None,
        prompts: int = PROMPTS,
    ) -> None:
        self.model, self.tokenizer, self.problems, self.method, self.seed = model, tokenizer, problems, method, seed
        self.live = method.live if live is None else live
        self.block = prompts
        self.prompts = encode_prompts(tokenizer, [problem.question for problem in problems])
        self.stream = PromptStream(len(problems), seed)
        self.history = PromptHistory(torch.arange(len(problems)).numpy().astype("uint64"))
        use_rows(model)
        add_scored_head(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        self.steps = 0

    def step(self, learning_rate: float, done: float = 0.0) -> StepReport:
        """One optimizer step on one block of prompts, ``done`` being the share of training done, for schedules."""
        clock, method, step = [time.perf_counter()], self.method.at(done), self.steps
        candidates = self.history.candidates(self.stream.take(self.block), step)
        asked = method.prompts.draw_prompts(candidates, generator(self.seed, step, Purpose.PROMPT_DRAW))
        rows = candidates.row_P[asked.keep_N]
        rollout = sample(
            self.model,
            [self.prompts[row] for row in rows],
            torch_generator(self.seed, step, Purpose.ROLLOUT),
            samples=GENERATIONS,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        reward_QG = self._rewards(rows, rollout)
        clock.append(time.perf_counter())

        advantage_N = method.advantages(reward_QG).flatten()  # from whole groups, before anything is dropped
        completions = Completions(
            advantage_N=advantage_N,
            tokens_N=rollout.length_N,
            group_N=torch.arange(len(rows)).repeat_interleave(GENERATIONS),
            live_N=self.live(advantage_N),
            confidence_N=confidence(rollout.logp_NT, rollout.mask_NT),
        )
        draw = method.completions.draw_completions(completions, generator(self.seed, step, Purpose.COMPLETION_DRAW))
        prompt_weight_N = asked.weight_N[asked.keep_N].repeat_interleave(GENERATIONS)
        keep_QG = draw.keep_N.view(reward_QG.shape)
        advantage_N = method.trained_advantages(reward_QG, advantage_N.view(reward_QG.shape), keep_QG).flatten()
        weight_N = draw.weight_N * prompt_weight_N * self.live(advantage_N)
        signal_Q = method.completions.score(completions).view(reward_QG.shape).norm(dim=1)
        self.history.update(rows, reward_QG, signal_Q, rollout.length_N.view(reward_QG.shape), step)
        tokens = float((prompt_weight_N * rollout.length_N).sum())  # of the full batch: exact if no prompt was pruned
        denominator = method.normaliser.denominator(self.block * GENERATIONS, tokens, MAX_NEW_TOKENS)
        clock.append(time.perf_counter())

        kept = weight_N.nonzero()[:, 0].tolist()
        prompt_K = [self.prompts[rows[i // GENERATIONS]] for i in kept]
        for logp_BT, batch in self._log_probs(kept, prompt_K, rollout):
            loss_BT = method.loss(logp_BT, logp_BT.detach(), advantage_N[batch], rollout.mask_NT[batch])
            per_sequence = method.normaliser.per_sequence
            total = weighted_sum(loss_BT, rollout.mask_NT[batch], weight_N[batch], per_sequence=per_sequence)
            (total / denominator).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        clock.append(time.perf_counter())
        return StepReport(
            reward=reward_QG.mean().item(),
            rollouts=len(advantage_N),
            completions_trained=len(kept),
            tokens_trained=int(rollout.length_N[kept].sum()),
            zero_signal=1 - (completions.advantage_N != 0).view(reward_QG.shape).any(1).double().mean().item(),
            largest_weight=weight_N.max().item(),
            seconds=dict(
                zip(
                    ("rollout", "choose", "update"),
                    (b - a for a, b in pairwise(clock)),
                    strict=True,
                )
            ),
        )

    def _log_probs(
        self, kept: list[int], prompt_K: list[list[int]], rollout: Rollout
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For one dense row after another, (B, T) log-probabilities with gradient and (B,) which completions."""
        group_K = [i // GENERATIONS for i in kept]
        length_K = rollout.length_N[kept].tolist()
        for places in plan_rows(group_K, [len(prompt) for prompt in prompt_K], length_K, MAX_TOKENS):
            row = build_row(
                [torch.tensor(prompt_K[k]) for k in places],
                [rollout.token_NT[kept[k], : length_K[k]] for k in places],
                [group_K[k] for k in places],
            )
            logp_BT, _ = row_log_probs(self.model, row, rollout.token_NT.shape[1])
            yield logp_BT, torch.tensor([kept[k] for k in places])

    def _rewards(self, rows: Tensor, rollout: Rollout) -> Tensor:
        """(Q, G) reward of every completion."""
        texts = self.tokenizer.batch_decode(rollout.token_lists, skip_special_tokens=True)
        answers = [self.problems[int(row)].answer for row in rows for _ in range(GENERATIONS)]
        return torch.tensor([reward(text, a) for text, a in zip(texts, answers, strict=True)]).view(len(rows), -1)
