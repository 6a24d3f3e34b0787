"""One step of the estimator, planned: whole groups of rewards in, advantages, weights and a denominator out.

This is the one place where a method's parts are put together. The order is the proof, and the types keep it:
``drafted`` fixes advantages and the denominator without random numbers; ``drawn`` gets a finished ``DraftPlan``.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from dppo.errors import ConfigError, ShapeError
from dppo.groups import group_sizes
from dppo.methods import Method
from dppo.pruning import MomentSamples, SampledTokens, TokenDraw, absolute_advantage
from dppo.rng import Purpose, Streams
from dppo.step.metrics import draw_metrics, step_metrics, token_metrics
from dppo.step.records import Live, RolledOut, StepPrompts, StepSizes, completions_of, scores, signals_of
from dppo.step.schedule import UpdateSchedule, shares_of
from dppo.types import Completions, Rewards, scattered

LATEST_COMPLETIONS = 512
"""Completions with a gradient by which a rate is chosen; more if the step itself has more."""
ONCE = UpdateSchedule()
"""One optimizer step per rollout."""


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """A step in which nothing is dropped yet: all that is fixed before any draw of completions."""

    method: Method
    """At this point of the run, with the rate that it chose for completions."""
    prompts: StepPrompts
    rewards: Rewards
    completions: Completions
    """Everything that was rolled out, with advantages from whole groups."""
    live: Live
    score_N: Tensor
    """(N,) float64 guess of each completion's gradient norm, any unit; 0 where it has no gradient."""
    sizes: StepSizes
    samples: MomentSamples | None
    """Completions with a gradient of this step and earlier ones, from which a rate is chosen; None for a fixed rate."""
    sampled: SampledTokens | None = None
    """The tokens of all completions; None if no tokens are pruned."""
    moment_NT: Tensor | None = None
    """(N, T) float64 guess of the second moment of each token's gradient; None as above."""

    @cached_property
    def signal_Q(self) -> Tensor:
        """(Q,) float64 guess of the norm of each group's gradient, for the history."""
        signal_Q, size_Q = signals_of(self.score_N, self.completions.group_N), self.prompts.size_Q
        # That of a group of the mean size: it must not depend on the size that a prompt was given.
        return signal_Q if size_Q is None else signal_Q * (size_Q.double().mean() / size_Q).sqrt()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics of the rollout, by the names of docs/metrics.md."""
        return step_metrics(self.completions, self.rewards, self.prompts)


@dataclass(frozen=True, kw_only=True)
class StepPlan(DraftPlan):
    """A draft with its draws. It is complete before anything is forwarded."""

    advantage_N: Tensor
    """(N,) float64 advantages that completions are trained with: those of whole groups for most methods."""
    weight_UN: Tensor
    """(U, N) float64 factor of the loss of each completion in each optimizer step; 0 if it is left out."""
    prob_UN: Tensor
    """(U, N) float64 probability of each in each draw; 0 without a gradient, in other shares, or if ranked out."""
    share_UN: Tensor
    """(U, N) bool, the completions that each draw was made among."""
    counted_UN: Tensor
    """(U, N) float64 number of completions of the full batch that each stands for, by the weight of its prompt, dropped
    or not; 0 in optimizer steps whose share does not contain it."""
    token_draws: tuple[TokenDraw, ...] = ()
    """Tokens of kept completions in each draw; their weights multiply ``weight_UN``. Empty if all are trained on."""

    def kept(self, draw: int) -> Tensor:
        """(R,) int64 completions that the optimizer step of that number, in [0, U), trains on."""
        return self.weight_UN[draw].nonzero()[:, 0]

    @cached_property
    def tokens_U(self) -> Tensor:
        """(U,) float64 tokens of each draw's share of the full batch, those of dropped completions included."""
        return (self.counted_UN * self.completions.tokens_N).sum(1)

    @cached_property
    def draw_metrics(self) -> list[dict[str, float]]:
        """Metrics of each of the U draws."""
        found, made = self.completions, []
        score_N = self.score_N * self.prompts.weight_Q[found.group_N]
        for index, row_N in enumerate(self.share_UN):
            given = found.live_N, self.weight_UN[index], self.prob_UN[index], score_N, found.tokens_N
            made.append(draw_metrics(*(value_N[row_N] for value_N in given)))
            if self.sampled is not None and self.moment_NT is not None:
                live_N, draw = found.live_N & row_N, self.token_draws[index]
                tokens = self.method.tokens, draw, self.moment_NT[live_N], self.sampled.take(live_N), live_N
                made[-1] |= token_metrics(*tokens, all_tokens=int(self.sampled.span_NT[row_N].sum()))
        return made


def plan_step(
    method: Method,
    rolled_out: RolledOut,
    prompts: StepPrompts,
    *,
    streams: Streams,
    max_tokens: int,
    passes: UpdateSchedule = ONCE,
    done: float = 0.0,
    live: Live | None = None,
) -> StepPlan:
    """Advantages from whole groups, then draws, then weights, over a denominator that no draw can move.

    ``rolled_out`` are rollouts of all ranks, in groups of any sizes and in the order of ``prompts``. ``streams`` are
    the random numbers of the step, the same on every rank. ``max_tokens`` is the longest completion allowed, and
    ``done`` the share of training done, in [0, 1]. ``live`` is by default that of the method.

    Source: docs/estimators.md, the proof.
    """
    return drawn(drafted(method.at(done), rolled_out, prompts, max_tokens=max_tokens, live=live), passes, streams)


def drafted(
    method: Method, rolled_out: RolledOut, prompts: StepPrompts, *, max_tokens: int, live: Live | None = None
) -> DraftPlan:
    """The part of ``plan_step`` before any draw. It gets no random numbers, so no draw can move what it fixes."""
    _check_groups(rolled_out.rewards, prompts)
    prompt_weight_N = prompts.weight_Q[rolled_out.rewards.group_N]
    completions = completions_of(method, rolled_out, prompts.context, live, prompt_weight_N)
    samples = None
    if (level := method.drawn) is not None:
        level, samples = level.informed(completions), level.samples(completions)
        if (earlier := prompts.context.samples) is not None:
            samples = earlier.after(samples, max(LATEST_COMPLETIONS, len(samples)))
        method = replace(method, completions=level.at_chosen_rate(samples))
    method, moment_NT = _at_chosen_cuts(method, completions, rolled_out)
    counted, expected = float((prompt_weight_N * completions.tokens_N).sum()), prompts.expected_tokens
    tokens = counted if expected is None else expected
    return DraftPlan(
        method=method,
        prompts=prompts,
        rewards=rolled_out.rewards,
        completions=completions,
        live=live or method.live,
        score_N=scores(method, completions),
        sizes=StepSizes(
            denominator=method.normaliser.denominator(prompts.sequences, tokens, max_tokens),
            tokens=tokens,
            attended=0.0 if rolled_out.attended_N is None else float((prompt_weight_N * rolled_out.attended_N).sum()),
        ),
        samples=samples,
        sampled=None if moment_NT is None else rolled_out.sampled,
        moment_NT=moment_NT,
    )


def drawn(draft: DraftPlan, passes: UpdateSchedule, streams: Streams) -> StepPlan:
    """The draft with its draws of completions: the part of ``plan_step`` after everything else is fixed."""
    method, completions, rewards = draft.method, draft.completions, draft.rewards
    prompt_weight_N, advantage_N = draft.prompts.weight_Q[rewards.group_N], completions.advantage_N
    share_UN = shares_of(passes, rewards.group_N, completions.process_N, draft.prompts.part_Q, streams)
    weight_UN, prob_UN = _draws(method, completions, prompt_weight_N, share_UN, streams)
    if method.completions.rate and method.statistics is not None:
        keep_N = (weight_UN > 0).any(0)
        advantage_N = method.statistics.compute(method.advantages, rewards, draft.prompts.context, keep_N)
    # A selection may keep what has no gradient, and statistics may take one away: there is nothing to forward.
    weight_UN = weight_UN * (draft.live(advantage_N) & (completions.tokens_N > 0))
    token_draws = _token_draws(draft, weight_UN, streams)
    if token_draws:
        reach_UN = torch.stack([each.reach_N for each in token_draws])
        prob_UN = torch.where(weight_UN > 0, prob_UN * reach_UN, prob_UN)  # cuts are drawn of what is kept
        weight_UN = weight_UN * torch.stack([each.length_N > 0 for each in token_draws])
    return StepPlan(
        **{field.name: getattr(draft, field.name) for field in fields(DraftPlan)},
        advantage_N=advantage_N,
        weight_UN=weight_UN,
        prob_UN=prob_UN,
        share_UN=share_UN,
        counted_UN=share_UN * prompt_weight_N,
        token_draws=token_draws,
    )


def _at_chosen_cuts(method: Method, completions: Completions, rolled_out: RolledOut) -> tuple[Method, Tensor | None]:
    """The method at the rate of cuts that it chooses, and (N, T) moments of all tokens; None if all are kept."""
    level, sampled, live_N = method.tokens, rolled_out.sampled, completions.live_N
    if not level.active:
        return method, None
    if sampled is None:
        needs = f"tokens are left out by the sampler's log-probabilities ({level}), and these rollouts have none"
        raise ConfigError(f"{needs}. Use an engine with them (use_vllm, rollout_func), or token_prune_rate: 0.")
    factor_N = absolute_advantage(completions)
    if completions.weight_N is not None:
        factor_N = factor_N * completions.weight_N
    if completions.averaged_N is not None:
        factor_N = factor_N / completions.averaged_N.double()
    moment_NT, tokens = sampled.moments(factor_N), float(completions.tokens_N.sum())
    of_live = (value_N[live_N] for value_N in (moment_NT, sampled.span_NT, completions.group_N))
    return replace(method, tokens=level.at_chosen_rate(*of_live, rolled_out=tokens)), moment_NT


def _token_draws(draft: DraftPlan, weight_UN: Tensor, streams: Streams) -> tuple[TokenDraw, ...]:
    """Draws of each optimizer step among the tokens of the completions that it keeps."""
    level, sampled, moment_NT = draft.method.tokens, draft.sampled, draft.moment_NT
    if sampled is None or moment_NT is None:
        return ()
    prompt_weight_N, made = draft.prompts.weight_Q[draft.rewards.group_N], []
    for index, weight_N in enumerate(weight_UN):
        unit_R = (weight_N > 0).nonzero()[:, 0]
        drawn_R1 = (weight_N / prompt_weight_N)[unit_R, None]  # moments have the weight of the prompt in them
        draw = level.draw(moment_NT[unit_R] * drawn_R1**2, sampled.span_NT[unit_R], streams(Purpose.TOKEN_DRAW, index))
        made.append(scattered(draw, unit_R, len(weight_N)))
    return tuple(made)


def _check_groups(rewards: Rewards, prompts: StepPrompts) -> None:
    """Refuse groups that are not those of the prompts, or another number of completions than was asked for."""
    groups, expected = rewards.groups, prompts.context.expected
    if groups != len(prompts.row_Q):
        raise ShapeError(f"{groups} groups were rolled out of {len(prompts.row_Q)} prompts: expected one of each.")
    if expected is not None and expected.mean_QF.shape != (shape := (groups, rewards.reward_NF.shape[1])):
        raise ShapeError(f"expected has shape {tuple(expected.mean_QF.shape)}, and there are {shape} rewards.")
    if prompts.size_Q is not None:
        if not torch.equal(found_Q := group_sizes(rewards.group_N), prompts.size_Q):
            asked = f"{prompts.size_Q.tolist()!s:.60} were asked for. Roll out prompts.size_Q of each"
            raise ShapeError(f"groups of {found_Q.tolist()!s:.60} completions were rolled out where {asked}.")
        return
    used, counted = int((prompts.weight_Q > 0)[rewards.group_N].sum()), prompts.sequences
    if used > counted or (used < counted and prompts.draw.keep_N.all()):  # more count where prompts were pruned
        raise ShapeError(f"sequences={counted}, and the step has {used} completions. Try sequences={used}.")


def _draws(
    method: Method, completions: Completions, prompt_weight_N: Tensor, share_UN: Tensor, streams: Streams
) -> tuple[Tensor, Tensor]:
    """(U, N) weights and probabilities of every completion in every draw; ``share_UN`` are those it is made among."""
    steps, count = share_UN.shape
    weight_UN, prob_UN = torch.zeros(2, steps, count, dtype=torch.float64)
    for index in range(steps):
        # A ranking is of whole groups, which may be dealt to shares completion by completion.
        among_N = share_UN[index] | getattr(method.completions, "of_groups", False)
        unit_R = (among_N & (prompt_weight_N > 0)).nonzero()[:, 0]
        part = completions if len(unit_R) == count else completions.take(unit_R)
        draw = method.completions.draw(part, streams(Purpose.COMPLETION_DRAW, index))
        weight_UN[index, unit_R], prob_UN[index, unit_R] = draw.weight_N * prompt_weight_N[unit_R], draw.prob_N
    return weight_UN * share_UN, prob_UN * share_UN
