"""The whole method without a trainer: choose prompts, roll out, score, choose completions, weight, update.

Everything that makes it DPPO is in ``Loop.step``. Plain GRPO is the same loop with ``method=GRPO`` and
``live=everything``: no prompt and no completion is left out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F
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
from dppo.pruning import Exploration, PromptHistory, PromptStream, Rounds, confidence, fill, learn, take_round
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
    rounds: int
    """Rounds of rollouts; 1 where the method has none."""
    seconds: dict[str, float]
    """By phase: rollout, choose, update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The prompts of a step and what they gave."""

    row_Q: Tensor
    """(Q,) prompts rolled out."""
    rollout: Rollout
    reward_QG: Tensor
    weight_Q: Tensor
    """(Q,) one over the probability of having been rolled out; for rounds 1, or 0 where the step does without it."""
    candidates: int
    """Prompts that the denominator counts."""
    rounds: int = 1

    @property
    def used(self) -> "Asked":
        """Without the prompts of weight 0."""
        used_Q = self.weight_Q > 0
        if bool(used_Q.all()):
            return self
        used_N = used_Q.repeat_interleave(self.reward_QG.shape[1])
        tokens, lengths, logps = (getattr(self.rollout, name)[used_N] for name in ROLLOUT_PARTS)
        return replace(
            self,
            row_Q=self.row_Q[used_Q],
            rollout=Rollout(token_NT=tokens, length_N=lengths, logp_NT=logps),
            reward_QG=self.reward_QG[used_Q],
            weight_Q=self.weight_Q[used_Q],
        )


ROLLOUT_PARTS = ("token_NT", "length_N", "logp_NT")


def together(rollouts: Sequence[Rollout]) -> Rollout:
    """The completions of several rollouts as one, one below the other, padded to the widest.

    Args:
        rollouts: at least one.
    """
    width = max(rollout.token_NT.shape[1] for rollout in rollouts)
    tokens, logps = (
        torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])
        for parts in ([r.token_NT for r in rollouts], [r.logp_NT for r in rollouts])
    )
    return Rollout(token_NT=tokens, length_N=torch.cat([r.length_N for r in rollouts]), logp_NT=logps)


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
        skipping = None if method.rounds is None else method.rounds.skipping
        self.exploration = None if skipping is None else Exploration.at_start(skipping)
        use_rows(model)
        add_scored_head(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        self.steps = 0

    def step(self, learning_rate: float, done: float = 0.0) -> StepReport:
        """One optimizer step on one block of prompts, ``done`` being the share of training done, for schedules.

        Raises:
            RoundsError: the method's limit of rounds is reached; no weight was changed.
        """
        clock, method, step = [time.perf_counter()], self.method.at(done), self.steps
        asked = self._block(method) if method.rounds is None else self._rounds(method.rounds)
        clock.append(time.perf_counter())

        rolled_out = self._completions(asked)  # of whole groups, before anything is dropped
        shape = asked.reward_QG.shape
        signal_Q = method.completions.score(rolled_out).view(shape).norm(dim=1)
        self._learn(asked, signal_Q)
        used = asked.used
        completions = rolled_out if used is asked else self._completions(used)
        rollout, reward_QG = used.rollout, used.reward_QG
        draw = method.completions.draw_completions(completions, generator(self.seed, step, Purpose.COMPLETION_DRAW))
        prompt_weight_N = used.weight_Q.repeat_interleave(GENERATIONS)
        whole_QG, keep_QG = completions.advantage_N.view(reward_QG.shape), draw.keep_N.view(reward_QG.shape)
        advantage_N = method.trained_advantages(reward_QG, whole_QG, keep_QG).flatten()
        weight_N = draw.weight_N * prompt_weight_N * self.live(advantage_N)
        tokens = float((prompt_weight_N * rollout.length_N).sum())  # of the full batch: exact if no prompt was pruned
        denominator = method.normaliser.denominator(used.candidates * GENERATIONS, tokens, MAX_NEW_TOKENS)
        clock.append(time.perf_counter())

        kept = weight_N.nonzero()[:, 0].tolist()
        prompt_K = [self.prompts[used.row_Q[i // GENERATIONS]] for i in kept]
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
        phases = zip(("rollout", "choose", "update"), (b - a for a, b in pairwise(clock)), strict=True)
        return StepReport(
            reward=asked.reward_QG.mean().item(),
            rollouts=len(rolled_out.advantage_N),
            completions_trained=len(kept),
            tokens_trained=int(rollout.length_N[kept].sum()),
            zero_signal=1 - (rolled_out.advantage_N != 0).view(shape).any(1).double().mean().item(),
            largest_weight=weight_N.max().item(),
            rounds=asked.rounds,
            seconds=dict(phases),
        )

    def _block(self, method: Method) -> Asked:
        """One block of prompts, of which those drawn are rolled out."""
        candidates = self.history.candidates(self.stream.take(self.block), self.steps)
        drawn = method.prompts.draw_prompts(candidates, generator(self.seed, self.steps, Purpose.PROMPT_DRAW))
        row_Q = candidates.row_P[drawn.keep_N]
        rollout, reward_QG = self._sample(row_Q, torch_generator(self.seed, self.steps, Purpose.ROLLOUT))
        weight_Q = drawn.weight_N[drawn.keep_N]
        return Asked(row_Q=row_Q, rollout=rollout, reward_QG=reward_QG, weight_Q=weight_Q, candidates=self.block)

    def _rounds(self, rounds: Rounds) -> Asked:
        """Rounds of prompts until enough groups count; those that the step does without have weight 0."""
        rows: list[Tensor] = []
        rollouts: list[Rollout] = []
        rewards: list[Tensor] = []

        def roll_out(number: int, prompts: int) -> Tensor:
            skips = generator(self.seed, self.steps, Purpose.PROMPT_SKIP, number)
            block = take_round(self.stream, self.history, prompts, rounds.skipping, self.exploration, skips)
            rows.append(block.row_P[block.keep_P])
            rng = torch_generator(self.seed, self.steps, Purpose.ROLLOUT, number)
            rollout, reward_QG = self._sample(rows[-1], rng)
            rollouts.append(rollout)
            rewards.append(reward_QG)
            return reward_QG

        filled = fill(rounds, self.block, roll_out)
        return Asked(
            row_Q=torch.cat(rows),
            rollout=together(rollouts),
            reward_QG=torch.cat(rewards),
            weight_Q=filled.keep_P.double(),
            candidates=int(filled.keep_P.sum()),
            rounds=filled.collected.rounds,
        )

    def _learn(self, asked: Asked, signal_Q: Tensor) -> None:
        """Remember what the prompts gave, those included that the step does without."""
        outcome_Q, rounds = None, self.method.rounds
        if rounds is not None and rounds.skipping is not None and self.exploration is not None:
            epochs = self.stream.epochs
            outcome_Q, self.exploration = learn(rounds.skipping, self.exploration, asked.reward_QG, epochs=epochs)
        tokens_QG = asked.rollout.length_N.view(asked.reward_QG.shape)
        self.history.update(asked.row_Q, asked.reward_QG, signal_Q, tokens_QG, self.steps, outcome_P=outcome_Q)

    def _sample(self, row_Q: Tensor, rng: torch.Generator) -> tuple[Rollout, Tensor]:
        """Completions of some prompts and their rewards (Q, G)."""
        prompts = [self.prompts[row] for row in row_Q]
        rollout = sample(self.model, prompts, rng, samples=GENERATIONS, max_new_tokens=MAX_NEW_TOKENS)
        return rollout, self._rewards(row_Q, rollout)

    def _completions(self, asked: Asked) -> Completions:
        """What completion pruning may look at."""
        advantage_N = self.method.advantages(asked.reward_QG).flatten()
        return Completions(
            advantage_N=advantage_N,
            tokens_N=asked.rollout.length_N,
            group_N=torch.arange(len(asked.row_Q)).repeat_interleave(GENERATIONS),
            live_N=self.live(advantage_N),
            confidence_N=confidence(asked.rollout.logp_NT, asked.rollout.mask_NT),
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
