"""A workload and costs that a pencil can check."""

from dataclasses import asdict, replace

import numpy as np
import torch

from dppo.pruning.cuts import token_moments
from dppo_lab.planning.costs import Costs, Timed
from dppo_lab.planning.figures import Figures
from dppo_lab.planning.model import Source, make_plan
from dppo_lab.planning.records import Length, Prices, Step
from dppo_lab.planning.tokens import TokenSample
from dppo_lab.planning.work import work_of
from dppo_lab.planning.workload import Kind, Workload


def workload(*rates_and_shares, right=20.0, wrong=40.0, prompt=11.0, longest=50.0):
    """Kinds of these pass rates and shares, every right completion of one length and every wrong one of another."""
    kinds = tuple(
        Kind(share=share, pass_rate=rate, right_tokens=right, wrong_tokens=wrong) for rate, share in rates_and_shares
    )
    return Workload(kinds=kinds, prompt_tokens=prompt, longest_prompt=(prompt,), longest_completion=(longest,))


MIXED = workload((0.0, 0.2), (0.3, 0.3), (0.8, 0.3), (1.0, 0.2))
COSTS = Costs(
    rollout_fixed=0.1,
    rollout_token=1e-3,
    completion=1e-3,
    update_fixed=0.05,
    row_token=2e-3,
    padded_token=1e-3,
    rest=0.2,
)
WORLD = Figures(workload=MIXED, costs=COSTS)
STEP, LENGTH = Step(prompts=16, generations=8), Length(steps=100, first_epoch=20)


def planned(figures=WORLD, step=STEP, length=LENGTH, rates=(0.5, 0.3, None, None), title="t", **prices):
    """The plan of a run on one GPU, where nothing else is said."""
    found = Source(name="s", figures=figures, length=length, notes=(title,))
    return make_plan(found, step, Prices(**({"gpus": 1} | prices)), rates, title=title)


def timed(option, prompts, costs=COSTS, tokens=None):
    """A step of ``MIXED`` under an option, timed as these costs say."""
    work = work_of(MIXED, replace(STEP, prompts=prompts), option, tokens)
    return Timed(
        **asdict(costs.seconds(work, option, 1)),
        layout=option.layout,
        generated=work.generated,
        completions=work.completions,
        forwarded=work.forwarded,
        scored=work.scored,
    )


def tokens_of(unsure=0.1, seed=0, count=96):
    """Completions of 5 to 40 tokens, most of which the sampler was sure of, and more so towards their ends."""
    rng = np.random.default_rng(seed)
    length_N = torch.from_numpy(rng.integers(5, 41, size=count))
    span_NT = torch.arange(40) < length_N[:, None]
    one_minus_p_NT = torch.from_numpy(np.where(rng.random((count, 40)) < unsure, rng.random((count, 40)), 1e-3))
    one_minus_p_NT = one_minus_p_NT / (1 + torch.arange(40) / 4)
    return span_NT, token_moments(torch.from_numpy(rng.normal(size=count)), torch.log1p(-one_minus_p_NT), span_NT)


def sample_of(span_NT, moment_NT):
    prompts = torch.arange(len(span_NT)) // 8
    return TokenSample.of(span_NT, moment_NT, prompts, generations=8, scored=True)
