"""What ``auto`` gains over a run in which few prompts have a signal, by pass rates that only the test knows."""

import numpy as np
import pytest
import torch

from dppo.pruning import PROMPT_AUTO, Auto, MomentSamples, PromptHistory, PromptPruning, efficiency
from dppo.pruning.ceiling import PROMPT_FLOOR
from dppo.types import Rewards

PROMPTS, STEPS, BLOCK, SIZE = 400, 150, 16, 4
MASTERED, DEAD, LIVE = (0.999, 280), (0.0005, 90), (0.5, 30)
"""Pass rates, and how many prompts have them."""
USUAL = PromptPruning(rate=PROMPT_AUTO.largest, floor=PROMPT_FLOOR, auto=PROMPT_AUTO)
FAR = PromptPruning(rate=0.8, floor=0.2, auto=Auto())
"""The wrong twin: up to 0.8, at weights of up to 10."""


def gain_over_a_run(level, seed):
    """Variance times cost of everything over that of the run's own probabilities; history learns from what is kept."""
    rng = np.random.default_rng(seed)
    rate_P = rng.permutation(np.repeat(*zip(MASTERED, DEAD, LIVE, strict=True)))
    history, visits = PromptHistory(np.arange(PROMPTS, dtype=np.uint64)), MomentSamples.none()
    order = np.concatenate([rng.permutation(PROMPTS) for _ in range(1 + STEPS * BLOCK // PROMPTS)])
    probs, values = [], []
    for step, rows in enumerate(order[: STEPS * BLOCK].reshape(STEPS, BLOCK)):
        candidates = history.candidates(rows, step)
        draw = level.at_chosen_rate(visits).draw(candidates, rng)
        probs.append(draw.prob_N)
        values.append(rate_P[rows] * (1 - rate_P[rows]))
        kept = rows[draw.keep_N.numpy()]
        right_QG = torch.from_numpy(rng.random((len(kept), SIZE)) < rate_P[kept][:, None]).double()
        rewards, signal_Q, tokens_N = Rewards.of_groups(right_QG), right_QG.std(1), torch.ones(right_QG.numel())
        if history.observations:
            visits = visits.after(MomentSamples.of_visits(candidates, draw, rewards, signal_Q, tokens_N))
        history.update(kept, rewards, signal_Q, tokens_N, step)
    return efficiency(torch.cat(probs), torch.from_numpy(np.concatenate(values)), torch.ones(STEPS * BLOCK))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_rate_of_half_at_most_gains_more_than_one_that_goes_far(seed):
    usual = gain_over_a_run(USUAL, seed)
    assert usual > 1.4 and usual > gain_over_a_run(FAR, seed) + 0.05
