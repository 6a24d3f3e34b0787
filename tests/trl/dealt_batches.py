"""Random batches of a rank, as they are before completions are dealt to ranks."""

import torch

from dppo.rng import Purpose, torch_generator
from dppo.step import StepSizes
from dppo.trl.batch import RankBatch

SIZE = 6
"""Completions that each rank rolls out."""


def rolled_out(rank, *, keep=0.5, sampler=True, draws=2):
    """What a rank rolled out: groups of three, ragged prompts and completions, tokens that name their place."""
    rng = torch_generator(7, Purpose.CHECK, rank)
    prompt = torch.randint(1, 5, (SIZE // 3,), generator=rng).repeat_interleave(3)
    tokens = torch.randint(1, 9, (SIZE,), generator=rng)
    prompt_mask = torch.arange(4 + rank) >= 4 + rank - prompt[:, None]
    completion_mask = torch.arange(8 + rank) < tokens[:, None]
    group = rank * SIZE // 3 + torch.arange(SIZE) // 3
    ids = 1000 * (rank * SIZE + torch.arange(SIZE))[:, None] + torch.arange(8 + rank)
    return RankBatch(
        prompt_ids=(100 * group[:, None] + torch.arange(4 + rank)) * prompt_mask,
        prompt_mask=prompt_mask.long(),
        completion_ids=ids * completion_mask,
        completion_mask=completion_mask.long(),
        loss_mask=(completion_mask & (torch.rand(completion_mask.shape, generator=rng) < 0.7)).long(),
        advantage_B=torch.randn(SIZE, generator=rng),
        weight_UB=torch.rand(draws, SIZE, generator=rng) * (torch.rand(draws, SIZE, generator=rng) < keep),
        sizes=StepSizes(3.0, 5.0, 7.0),
        full_U3=torch.ones(draws, 3),
        sampler_logp=torch.randn(completion_mask.shape, generator=rng) if sampler else None,
    )
