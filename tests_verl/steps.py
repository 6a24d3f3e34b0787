"""Steps of verl's trainer on rollouts that stay the same: every draw of a step is told, and its gradient kept."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, product

import torch
from in_process import ACTOR, STORE, LocalGroup, get, put, record_gradients, sized, trainer

from dppo.pruning import TokenPruning
from dppo.pruning.tokens import best_cuts
from dppo.types import Draw

ONE_STEP = sized(2, 4)
KL = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1")
ALL_TERMS = (*KL, f"{ACTOR}.entropy_coeff=0.01")
RATIOS = ("algorithm.rollout_correction.rollout_is=token",)
REWARDS = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0)
PROB_N = torch.tensor([1.0, 0.5, 0.5, 1.0, 0.25, 0.75, 1.0, 1.0], dtype=torch.float64)
OF_PASSES = ("log_probs", "entropy", "old_log_probs", "ref_log_prob", "advantages", "returns", "rollout_is_weights")
OF_PASSES += ("pruning_weight", "token_level_rewards")


@dataclass(frozen=True)
class Given:
    """A selection of completions whose draws are told, one after the other."""

    told: Iterator[torch.Tensor]
    rate: float = 0.5
    bias: str = ""
    weighted: bool = True

    def at_rate(self, rate):
        return replace(self, rate=rate)

    def draw(self, completions, rng):
        keep_N = next(self.told)
        weight_N = torch.where(keep_N, 1 / PROB_N if self.weighted else torch.ones_like(PROB_N), 0.0)
        return Draw(keep_N=keep_N, prob_N=PROB_N, weight_N=weight_N)


def all_draws(prob_N=PROB_N):
    """Every outcome of a draw, with its chance."""
    free = [number for number, p in enumerate(prob_N.tolist()) if p < 1]
    for kept in product((False, True), repeat=len(free)):
        keep_N = torch.ones(len(prob_N), dtype=torch.bool)
        keep_N[free] = torch.tensor(kept)
        yield math.prod(torch.where(keep_N, prob_N, 1 - prob_N).tolist()), keep_N


POINTS = 4
"""Equally likely outcomes of a draw of cuts: probabilities of reaching a token are whole multiples of one over it."""
ALL_CUTS = [(1 / POINTS, point) for point in range(POINTS)]
CUTS = "+trainer.v1.sampler.sampler_kwargs.pruning.token_prune_rate=0.4"


def in_quarters(moment_NT, span_NT, rate, floor):
    """The best cuts as if doubt fell along each completion, as it does not in the toy, rounded up to probabilities that
    ``POINTS`` outcomes have exactly."""
    moment_NT = moment_NT / span_NT.cumsum(1).clamp_min(1)
    reach_NT = best_cuts(moment_NT, span_NT, rate, floor)
    return (reach_NT * POINTS - 1e-9).ceil() / POINTS


class AtPoint:
    """Random numbers that stand for one outcome: every completion is cut by one number."""

    def __init__(self, point):
        self.point = point

    def permutation(self, count):
        return torch.full((count,), (self.point + 0.5) / POINTS * count).numpy()

    def random(self, count):
        return torch.zeros(count).numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCuts(TokenPruning):
    """Cuts whose outcomes are told, one draw after the other."""

    points: list[int]
    weighted: bool = True

    def draw(self, moment_NT, span_NT, rng):
        self.points.append(self.points.pop(0))
        draw = TokenPruning.draw(self, moment_NT, span_NT, AtPoint(self.points[-1]))
        return draw if self.weighted else replace(draw, weight_NT=(draw.weight_NT > 0).double())


class OffPolicy(LocalGroup):
    """Old and reference log-probabilities are off the policy's, by something of each row alone: clips and KL bite."""

    def inferred(self, name, batch):
        found = super().inferred(name, batch)
        rows = get(batch.keys, batch.partition_id, ["log_probs", "input_ids"])
        phase = 1.0 if name == "old" else 2.0
        moved = [
            p + 0.3 * torch.sin(phase * ids + torch.arange(len(ids)))
            for p, ids in zip(rows["log_probs"].unbind(), rows["input_ids"].unbind(), strict=True)
        ]
        rows["log_probs"] = torch.nested.as_nested_tensor(moved, layout=torch.jagged)
        put(batch.keys, batch.partition_id, rows.select("log_probs"))
        return found


class Step:
    """The first step of a trainer with known rewards, as often as is wanted, by verl's own ``_step_once``."""

    def __init__(self, made, rewards=REWARDS):
        self.made, self.rewards, self.metrics = made, rewards, {}
        self.gradients = []
        """Gradients of the optimizer steps made; a comparison clears them."""
        self.stock = {}
        """Metrics of verl's own step."""
        made.prepare_step()
        given, noise = iter(rewards), torch.Generator().manual_seed(0)
        for _, row in STORE["train"].values():
            if "rm_scores" in row:
                row["rm_scores"][-1] = next(given)
                sampled = row["rollout_log_probs"]
                row["rollout_log_probs"] = sampled - 0.2 * torch.rand(sampled.shape, generator=noise)
        prompts = made.config.data.train_batch_size
        self.batch, _ = made.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=prompts)
        made.replay_buffer.sample = lambda **_: (copy.deepcopy(self.batch), {})

    def run(self):
        """One step; nothing is left of the one before."""
        for key in [key for key, (tag, _) in STORE["train"].items() if tag.get("is_padding")]:
            del STORE["train"][key]
        for _, row in STORE["train"].values():
            for name in OF_PASSES:
                row.pop(name, None)
        self.made.actor_rollout_wg.passes.clear()
        self.metrics = {}
        return self.made._step_once(self.metrics, {}, len(self.rewards))

    def cut(self, *points, weighted=True):
        """One step whose cuts are told."""
        told = ToldCuts(rate=0.6, cut_rule=in_quarters, points=list(points), weighted=weighted)
        self.made.session.method = replace(self.made.method, tokens=told)
        return self.run()

    def drawn(self, *keep_UN, weighted=True):
        """One step whose draws are told."""
        self.made.session.method = replace(self.made.method, completions=Given(told=cycle(keep_UN), weighted=weighted))
        return self.run()

    def mean_of_draws(self, **options):
        """The mean gradient over every draw of completions."""
        return self._mean(partial(self.drawn, **options), all_draws())

    def mean_of_cuts(self, **options):
        """The mean gradient over every outcome of the cuts."""
        return self._mean(partial(self.cut, **options), ALL_CUTS)

    def _mean(self, run, outcomes):
        mean = 0.0
        for chance, outcome in outcomes:
            run(outcome)
            mean = mean + chance * self.gradients.pop().double()
            assert not self.gradients
        return mean

    def asked_order(self):
        """Keys in the order of prompts and sessions, which draws are made in."""
        return sorted(self.batch.keys, key=lambda key: (self.made.requested.uid_Q.index(key.split("_")[0]), key))

    @property
    def tags(self):
        """verl's tags of each row, by key."""
        return dict(zip(self.batch.keys, self.batch.tags, strict=True))


def fixed_step(toy, mode, *options, group=OffPolicy, rewards=REWARDS, policy=None):
    """The first step of a trainer whose optimizer makes no step; gradients of its workers are recorded."""
    made = trainer(toy, mode, *ONE_STEP, *options, group=group, policy=policy)
    step, workers = Step(made, rewards), made.actor_rollout_wg
    if not hasattr(workers, "gradients"):
        workers.gradients = record_gradients(workers.worker)
    step.gradients = workers.gradients
    return step


def stock_and_ours(toy, *options, ours=(), **given):
    """verl's own gradients of the whole batch, and our trainer's step on the same rollouts by the same worker."""
    stock = fixed_step(toy, "sync", *options, **given)
    stock.run()
    full = list(stock.gradients)
    stock.gradients.clear()
    given["group"] = lambda _: stock.made.actor_rollout_wg
    step = fixed_step(toy, "dynamic_pruning", *options, *ours, **given)
    step.stock = stock.metrics
    return full, step


def bias(mean, full):
    """Distance from the full batch's gradient, relative to it."""
    return float((mean - full).norm() / full.norm())
