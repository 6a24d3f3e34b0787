"""Runs over prompts with known rewards, and the comparison of their steps."""

from dataclasses import replace

import torch
from drafts import Run, draft_of

from dppo.methods import METHODS
from dppo.pruning import Auto, PromptPruning
from dppo.types import Rewards

SIZE, PROMPTS, GROUP, SEED = 24, 4, 3, 6
DPPO, DAPO, GRESO = METHODS["dppo"].with_rates(prompt=0.5), METHODS["dapo"], METHODS["greso"]
AUTO = replace(DPPO, prompts=PromptPruning(rate=0.8, floor=0.2, auto=Auto(fewest=8, least_gain=1.0)))


def source(method=DPPO, *, size=SIZE, prompts=PROMPTS, **options):
    return Run.over(size, method, prompts=prompts, seed=SEED, **options)


def answers(row_Q):
    """Rewards of groups, a function of the dataset row: rows that are multiples of three are silent, low or high."""
    zero_variance_Q = row_Q % 3 == 0
    reward_QG = torch.where(zero_variance_Q, (row_Q % 2).double(), 0.0)[:, None].repeat(1, GROUP)
    reward_QG[:, 0] += (~zero_variance_Q).double() * (1 + row_Q / 100)
    return Rewards.of_groups(reward_QG)


def taught(run, steps, *, first=0):
    """The prompts of some steps, each of which the history learns from."""
    found = []
    for step in range(first, first + steps):
        if run.method.rounds is None:
            prompts = run.block(step, generations=GROUP)
        else:
            prompts = run.rounds(step, lambda number, block: answers(block.row_Q))
        run.learn(draft_of(run.method, prompts, answers(prompts.row_Q), tokens=7), step)
        found.append(prompts)
    return found


def after(steps, method=DPPO, **options):
    """A run that has learned from some steps."""
    run = source(method, **options)
    taught(run, steps)
    return run


def kept_share(prompts) -> float:
    """Share of the candidates that were rolled out."""
    return len(prompts.row_Q) / len(prompts.candidates.row_P)


def same(first, second) -> bool:
    """True for two steps with the same bits."""
    pairs = [(first, second), (first.draw, second.draw), (first.candidates, second.candidates)]
    names = ("row_Q", "prob_Q", "weight_Q", "keep_N", "prob_N", "weight_N", "row_P", "signal_P", "tokens_P", "seen_P")
    values = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in names if hasattr(a, name)]
    numbers = (first.sequences, first.collected) == (second.sequences, second.collected)
    return numbers and all(torch.equal(a, b) for a, b in values)
