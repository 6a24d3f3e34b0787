"""Rows of groups as a worker gets them, and workers with verl's engine or ours."""

from itertools import zip_longest

import torch
from in_process import ACTOR, configuration, training_worker
from tensordict import TensorDict
from verl.utils import tensordict_utils

from dppo.verl.batch import jagged
from dppo.verl.loss import WEIGHT
from dppo.verl.support import ROW_ENGINES

GROUPS = ((7, (5, 1, 9)), (1, (4, 6)), (12, (3,)), (5, (8, 2, 7, 4)))
"""Tokens of the prompt and of the kept completions of each group: unequal groups, and a prompt of one token."""


def interleaved(groups=GROUPS):
    """(group, prompt tokens, completion tokens) of each row; rows of a group are not neighbours."""
    columns = [[(number, prompt, tokens) for tokens in sizes] for number, (prompt, sizes) in enumerate(groups)]
    return [row for rank in zip_longest(*columns) for row in rank if row is not None]


def batch(groups=GROUPS, *, temperature=1.0, max_tokens=256, mini_batch=None):
    """Made-up rows, off the policy that sampled them."""
    rng = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 40, (prompt,), generator=rng) for prompt, _ in groups]
    rows = interleaved(groups)
    completions = [torch.randint(5, 40, (tokens,), generator=rng) for _, _, tokens in rows]
    whole = [torch.cat([prompts[group], completion]) for (group, *_), completion in zip(rows, completions, strict=True)]
    mask = [torch.ones_like(completion) for completion in completions]
    columns = {"prompts": [prompts[group] for group, *_ in rows], "responses": completions, "input_ids": whole}
    columns |= {"position_ids": [torch.arange(len(ids)) for ids in whole], "response_mask": mask, "loss_mask": mask}
    columns |= {
        name: [torch.randn(len(m), generator=rng) * 0.3 - 4 for m in mask] for name in ("old_log_probs", "ref_log_prob")
    }
    columns["advantages"] = [torch.full((len(m),), float(torch.randn((), generator=rng))) for m in mask]
    data = TensorDict({name: jagged(values) for name, values in columns.items()}, batch_size=len(rows))
    weight_B = torch.rand(len(rows), generator=rng) + 0.5
    data[WEIGHT] = jagged([weight.expand(len(m)) for weight, m in zip(weight_B, mask, strict=True)])
    options = {"temperature": temperature, "calculate_entropy": True, "global_batch_size": len(rows), "epochs": 1}
    options |= {"seed": 0, "mini_batch_size": mini_batch or len(rows), "dataloader_kwargs": {"shuffle": False}}
    options |= {"max_token_len_per_gpu": max_tokens, "compute_loss": False}
    for name, value in options.items():
        tensordict_utils.assign_non_tensor_data(data, name, value)
    return data


def worker(folder, *options, rows=False, strategy="fsdp2"):
    """verl's worker and the actor's configuration; with ``rows`` it has our engine."""
    name = ROW_ENGINES[strategy] if rows else strategy
    return training_worker(configuration(folder, f"{ACTOR}.strategy={name}", *options))
