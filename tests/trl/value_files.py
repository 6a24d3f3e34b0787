"""Files of optimal values for A*-PO."""

import json

import torch

from dppo.methods.a_star_po import optimal_value
from dppo.pruning.prior import prompt_key
from dppo.rewards import identities


def write_values(path, dataset, *, samples=8):
    """Made-up reference rewards of every prompt, and their values."""
    rng = torch.Generator().manual_seed(3)
    reward_PG = torch.randint(2, (len(dataset), samples), generator=rng).double()
    value_P = optimal_value(reward_PG, beta=0.5)
    lines = [
        {"prompt": prompt_key(int(key)), "value": value, "rewards": rewards}
        for key, value, rewards in zip(identities(dataset["prompt"]), value_P.tolist(), reward_PG.tolist(), strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)
