"""Every preset takes steps in the loop, and biased ones do what their papers say."""

from dataclasses import replace

import pytest
import torch

from dppo.methods import METHODS
from dppo.objective import CENTRED, GROUP_SCALED, emphasised
from dppo.rng import Purpose, torch_generator
from dppo_lab.demo.loop import GENERATIONS

GRPO, PODS = METHODS["grpo"], METHODS["pods"]
PROMPTS = 4


def coin(row_Q, step):
    flips = torch.randint(2, (len(row_Q), GENERATIONS), generator=torch_generator(1, Purpose.CHECK, step)).float()
    flips[:, 0] = torch.tensor([0.5, 2.0, 0.0, 1.0] * len(row_Q))[: len(row_Q)]
    return flips


@pytest.fixture
def steps(still):
    """Gradients of some steps at given points of a run, and their reports."""

    def taken(method, dones=(0.0,), rewards=coin):
        loop, gradients = still(method, rewards, prompts=PROMPTS)
        return gradients, [loop.step(1e-3, done) for done in dones]

    return taken


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.needs_reference])
def test_every_preset_takes_steps(name, steps):
    method = METHODS[name]
    if method.rounds is None:
        method = method.with_rates(prompt=0.5 if "infobatch" in name else 0.25)
    gradients, reports = steps(method, dones=(0.0, 0.5))
    assert all(g.isfinite().all() and g.norm() > 0 for g in gradients)
    assert all(0 < report.completions_trained <= report.rollouts for report in reports)


def test_pods_is_grpo_on_the_groups_that_are_left(steps):
    """The same loop with the dropped completions unscorable: left out of every statistic, and without a gradient."""

    def left(row_Q, step):
        reward_QG = coin(row_Q, step)
        for reward_G in reward_QG:
            order = sorted(range(GENERATIONS), key=lambda i: (reward_G[i].item(), i))
            subsets = [order[: 4 - i] + sorted(order[4 - i :], key=lambda j: -reward_G[j])[:i] for i in range(5)]
            best = max(subsets, key=lambda subset: round(reward_G[subset].var().item(), 6))
            dropped = [i for i in range(GENERATIONS) if i not in best]
            reward_G[dropped] = torch.nan
        return reward_QG

    (mine,), (report,) = steps(PODS)
    (wanted,), _ = steps(GRPO, rewards=left)
    torch.testing.assert_close(mine, 2 * wanted, rtol=1e-4, atol=1e-7)
    assert report.completions_trained == PROMPTS * GENERATIONS // 2
    (whole,), _ = steps(replace(PODS, statistics=GRPO.statistics))
    assert (whole - mine).norm() > 1e-2 * mine.norm(), "statistics of the whole group give another gradient"


def test_infobatch_stops_pruning_for_the_last_eighth(steps):
    _, reports = steps(METHODS["infobatch"], dones=(0.0,) * 4 + (0.5, 0.87, 0.88, 0.99))
    rollouts = [report.rollouts // GENERATIONS for report in reports]
    assert rollouts[:4] == [PROMPTS] * 4 and rollouts[6:] == [PROMPTS] * 2
    assert min(rollouts[4:6]) < PROMPTS


def test_the_emphasised_objective_is_trained_on(steps):
    def by_hand(rewards, context):
        reward_QG = rewards.reward_NF.double().view(-1, GENERATIONS)
        centred_QG = reward_QG - reward_QG.mean(1, keepdim=True)
        return (centred_QG * centred_QG.abs()).flatten()

    (mine,), _ = steps(replace(GRPO, advantages=emphasised(CENTRED, 1.0)))
    (wanted,), _ = steps(replace(GRPO, advantages=replace(CENTRED, compute=by_hand)))
    torch.testing.assert_close(mine, wanted)
    pruned = replace(METHODS["dppo"], advantages=emphasised(GROUP_SCALED, 1.0))
    (gradient,), (report,) = steps(pruned)
    assert gradient.isfinite().all() and report.completions_trained < report.rollouts
