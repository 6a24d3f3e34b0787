"""Whole steps at the largest sizes, for ``growth.py``: the plan, rows over ranks, and a history of many prompts.

Six of ten groups have no gradient, and half of the rest is drawn. ``idle_share`` is what ranks wait for the busiest
one, ``1 - mean / largest`` of the tokens they forward, with rows left on the rank that rolled them out and dealt.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.shared import Record, milliseconds, python_peak, spread_with_ends
from dppo.methods import METHODS
from dppo.pruning import PromptHistory, PromptStream
from dppo.rng import Purpose, step_streams, torch_generator
from dppo.step import PromptSource, RolledOut, StepPlan, drafted, plan_step, whole_block
from dppo.trl.grpo.rollouts import NOWHERE, Lengths, ranks_of_rows
from dppo.types import Rewards

GROUP_SIZE, MAX_TOKENS, WITHOUT_GRADIENT = 8, 1024, 0.6
METHOD = METHODS["dppo"].with_rates(prompt=0.5, completion=0.5)
BLOCK = 4096
"""Prompts of a step that a large history is asked for."""


def record(figure: str, size: int, taken: Record, *, bar: float | None = None) -> Record:
    """A record of a figure at a size, with what it is per completion where that means something."""
    unit, median = taken["unit"], taken["median"]
    each = {"ms": (median * 1e3 / size, "us"), "bytes": (median / size, "bytes")}.get(unit, (None, None))
    per = dict(zip(("per_completion", "per_completion_unit"), each, strict=True))
    return {"figure": figure, "size": size, **taken, **per, "bar": bar}


def counted(figure: str, size: int, amount: float) -> Record:
    """A record of bytes, which are counted once."""
    return record(figure, size, {"unit": "bytes", **spread_with_ends([amount])})


def timed(figure: str, size: int, run: Callable[[], object], repeats: int, *, bar: float | None = None) -> Record:
    """A record of milliseconds."""
    return record(figure, size, milliseconds(run, repeats), bar=bar)


def generation(size: int, seed: int = 0) -> tuple[RolledOut, Lengths]:
    """Completions of groups of eight: rewards of 0 and 1, log-normal lengths that go with the prompt."""
    rng, groups = torch_generator(seed, Purpose.CHECK), size // GROUP_SIZE
    group_N = torch.arange(groups).repeat_interleave(GROUP_SIZE)
    mixed_Q = torch.rand(groups, generator=rng) >= WITHOUT_GRADIENT
    reward_N = (torch.rand(size, generator=rng) < 0.5) & mixed_Q[group_N]
    log_N = 6 + 0.4 * torch.randn(groups, generator=rng)[group_N] + 0.4 * torch.randn(size, generator=rng)
    tokens_N = log_N.exp().clamp(1, MAX_TOKENS).long()
    prompt_N = torch.randint(100, 201, (groups,), generator=rng)[group_N]
    rewards = Rewards.of_groups(reward_N.double().view(groups, GROUP_SIZE))
    lengths = Lengths(prompt_N=prompt_N, completion_UN=tokens_N[None], group_N=group_N)
    return RolledOut(rewards=rewards, tokens_N=tokens_N), lengths


def planned(rolled_out: RolledOut, seed: int = 0) -> StepPlan:
    """The plan of a step that consists of the groups given."""
    prompts = whole_block(rolled_out.rewards.groups, len(rolled_out.rewards))
    return plan_step(METHOD, rolled_out, prompts, streams=step_streams(seed, 0), max_tokens=MAX_TOKENS)


def step_records(size: int, ranks: int, repeats: int) -> Iterator[Record]:
    """Of a step of ``size`` completions on ``ranks`` ranks: the plan, the dealing, and the memory both take."""
    rolled_out, lengths = generation(size)
    plan = planned(rolled_out)

    def deal() -> Tensor:
        return ranks_of_rows(lengths, plan.weight_UN, ranks, shares_prompts=True)

    yield timed("plan_step", size, lambda: planned(rolled_out), repeats)
    yield timed(f"deal_to_{ranks}_ranks", size, deal, repeats)
    records = (plan, plan.completions, plan.prompts, plan.rewards, rolled_out)
    held = {id(v): v for each in records for f in fields(each) if isinstance(v := getattr(each, f.name), Tensor)}
    yield counted("memory_of_plan_step", size, sum(tensor.nbytes for tensor in held.values()))
    yield counted(f"memory_of_dealing_to_{ranks}_ranks", size, python_peak(deal))


def idle_shares(ranks: int, prompts_per_rank: int, seeds: int) -> Iterator[Record]:
    """What ranks wait for the busiest one, before and after dealing, and the share of tokens that move."""
    shares: dict[str, list[float]] = {"idle_share_at_home": [], "idle_share_dealt": [], "share_of_tokens_moved": []}
    for seed in range(seeds):
        rolled_out, lengths = generation(ranks * prompts_per_rank * GROUP_SIZE, seed)
        weight_UN = planned(rolled_out, seed).weight_UN
        home_N = torch.arange(weight_UN.shape[1]) // (prompts_per_rank * GROUP_SIZE)
        dealt_N = ranks_of_rows(lengths, weight_UN, ranks, shares_prompts=True)
        home_N = home_N.where(dealt_N != NOWHERE, NOWHERE)
        for name, rank_N in (("idle_share_at_home", home_N), ("idle_share_dealt", dealt_N)):
            cost_R = tokens_of_ranks(lengths, rank_N, ranks)
            shares[name].append(float(1 - cost_R.mean() / cost_R.max()))
        moved_N = dealt_N != home_N
        moved, kept = lengths.completion_UN[0, moved_N].sum(), lengths.completion_UN[0, dealt_N != NOWHERE].sum()
        shares["share_of_tokens_moved"].append(float(moved / kept))
    for name, values in shares.items():
        figure = f"{name}_{prompts_per_rank}_prompts_a_rank"
        yield {**record(figure, ranks, {"unit": "share", **spread_with_ends(values)}), "growth": None}


def tokens_of_ranks(lengths: Lengths, rank_N: Tensor, ranks: int) -> Tensor:
    """(R,) tokens that each rank forwards: completions, and the prompt of each group that it has a part of, once."""
    kept_N = rank_N != NOWHERE
    rank_K, group_K = rank_N[kept_N], lengths.group_N[kept_N]
    cost_R = torch.zeros(ranks, dtype=torch.float64).index_add_(0, rank_K, lengths.completion_UN[0, kept_N].double())
    pair_P, first_P = np.unique((rank_K * (1 + lengths.group_N.max()) + group_K).numpy(), return_index=True)
    prompt_P = lengths.prompt_N[kept_N][torch.from_numpy(first_P)].double()
    return cost_R.index_add_(0, torch.from_numpy(pair_P) // (1 + lengths.group_N.max()), prompt_P)


def history_records(size: int, repeats: int) -> Iterator[Record]:
    """Of a history of ``size`` prompts: memory, a step's block drawn from it, what a step learns, and the file."""
    block = min(BLOCK, size)
    history, stream = PromptHistory(np.arange(size, dtype=np.uint64)), PromptStream(size, seed=0)
    source = PromptSource(stream, history, prompts=block)
    yield timed("history_order_of_an_epoch", size, lambda: PromptStream(size, seed=0).take(1), 1)
    asked = source.block(METHOD, 0, generations=GROUP_SIZE)
    rewards = Rewards.of_groups(torch.arange(len(asked.row_Q) * GROUP_SIZE).view(-1, GROUP_SIZE) % 3 == 0)
    rolled_out = RolledOut(rewards=rewards, tokens_N=torch.full((len(rewards),), 100))
    draft = drafted(METHOD, rolled_out, asked, max_tokens=MAX_TOKENS)
    yield timed("history_block", size, lambda: source.block(METHOD, 1, generations=GROUP_SIZE), repeats)
    yield timed("history_learn", size, lambda: source.learn(draft, 1), repeats)
    yield counted("memory_of_history", size, history.nbytes)
    with tempfile.TemporaryDirectory() as folder:
        yield timed("history_save", size, lambda: history.save(Path(folder, "history.npz")), 1)
