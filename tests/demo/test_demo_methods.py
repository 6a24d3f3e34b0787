"""Every preset in the loop on one screen: it takes a step, and what is biased does what its paper says."""

import copy
from dataclasses import replace

import pytest
import torch

from dppo.demo.loop import GENERATIONS, Loop
from dppo.demo.model import build_model
from dppo.demo.task import make_split
from dppo.demo.tokenizer import build_tokenizer
from dppo.methods import DPPO, GRPO, INFOBATCH, METHODS, PODS
from dppo.objective import CENTRED, GROUP_SCALED, emphasised, group_advantages
from dppo.pruning import allocate
from dppo.rng import torch_generator

PROMPTS = 4


@pytest.fixture(scope="module")
def start():
    torch.manual_seed(0)
    return build_model(0).eval(), build_tokenizer(), make_split(0, train=16, held_out=6)


def coin(self, rows, rollout):
    """Rewards by coin flip in place of right answers, which an untrained policy never gives: groups get a signal."""
    flips = torch.randint(2, (len(rows), GENERATIONS), generator=torch_generator(1, self.steps)).float()
    flips[:, 0] = torch.tensor([0.5, 2.0, 0.0, 1.0] * len(rows))[: len(rows)]
    return flips


def steps(start, monkeypatch, method, dones=(0.0,), prompts=PROMPTS, rewards=coin):
    """Gradients of some steps at given points of a run, and their reports; parameters do not move."""
    model, tokenizer, split = start
    monkeypatch.setattr(Loop, "_rewards", rewards)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a, **k: None)
    loop = Loop(copy.deepcopy(model), tokenizer, split.train, method, seed=0, prompts=prompts)
    gradients = []

    def keep():
        parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in loop.model.parameters()]
        gradients.append(torch.cat([part.flatten() for part in parts]).double())

    monkeypatch.setattr(loop.optimizer, "step", keep)
    reports = [loop.step(1e-3, done) for done in dones]
    monkeypatch.undo()
    return gradients, reports


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_takes_steps(name, start, monkeypatch):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    gradients, reports = steps(start, monkeypatch, method, dones=(0.0, 0.5))
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)


def test_pods_is_grpo_on_the_groups_that_are_left(start, monkeypatch):
    """The same loop with the dropped completions unscorable: left out of every statistic, and without a gradient."""

    def left(self, rows, rollout):
        reward_QG = coin(self, rows, rollout)
        for reward_G in reward_QG:
            order = sorted(range(GENERATIONS), key=lambda i: (reward_G[i].item(), i))
            subsets = [order[: 4 - i] + sorted(order[4 - i :], key=lambda j: -reward_G[j])[:i] for i in range(5)]
            best = max(subsets, key=lambda subset: round(reward_G[subset].var().item(), 6))
            dropped = [i for i in range(GENERATIONS) if i not in best]
            reward_G[dropped] = torch.nan
        return reward_QG

    (mine,), (report,) = steps(start, monkeypatch, PODS)
    (wanted,), _ = steps(start, monkeypatch, GRPO, rewards=left)
    torch.testing.assert_close(mine, 2 * wanted, rtol=1e-4, atol=1e-7)
    assert report.completions_trained == PROMPTS * GENERATIONS // 2
    (whole,), _ = steps(start, monkeypatch, replace(PODS, statistics=GRPO.statistics))
    assert (whole - mine).norm() > 1e-2 * mine.norm(), "statistics of the whole group give another gradient"


def test_infobatch_stops_pruning_for_the_last_eighth(start, monkeypatch):
    _, reports = steps(start, monkeypatch, INFOBATCH, dones=(0.0,) * 4 + (0.5, 0.87, 0.88, 0.99))
    rollouts = [report.rollouts // GENERATIONS for report in reports]
    assert rollouts[:4] == [PROMPTS] * 4 and rollouts[6:] == [PROMPTS] * 2
    assert min(rollouts[4:6]) < PROMPTS


def test_the_emphasised_objective_is_trained_on(start, monkeypatch):
    squared = replace(GRPO, advantages=emphasised(CENTRED, 1.0))

    def by_hand(reward_PG):
        advantage_PG = group_advantages(reward_PG, scale="none")
        return advantage_PG * advantage_PG.abs()

    (mine,), _ = steps(start, monkeypatch, squared)
    (wanted,), _ = steps(start, monkeypatch, replace(GRPO, advantages=replace(CENTRED, compute=by_hand)))
    torch.testing.assert_close(mine, wanted)
    pruned = replace(DPPO, advantages=emphasised(GROUP_SCALED, 1.0))
    (gradient,), (report,) = steps(start, monkeypatch, pruned)
    assert gradient.isfinite().all() and report.completions_trained < report.rollouts


def test_allocation_grows_the_block_and_leaves_the_update_as_large(start, monkeypatch):
    sizes = allocate(PROMPTS, GENERATIONS, 0.5)
    for name in ("cppo_trl", "cppo_verl", "pods"):
        _, (usual,) = steps(start, monkeypatch, METHODS[name])
        _, (report,) = steps(start, monkeypatch, METHODS[name], prompts=sizes.prompts)
        assert report.rollouts == 2 * usual.rollouts == 2 * PROMPTS * GENERATIONS
        assert usual.completions_trained < report.completions_trained <= sizes.update
