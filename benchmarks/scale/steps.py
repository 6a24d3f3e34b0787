"""Cost of planning up to a million completions and 100 million prompts, and the time that ranks wait for each other.

python -m benchmarks.scale.steps [--quick] [--output benchmarks/results/scale.json]

Six of ten groups have no gradient, and half of the rest is drawn. ``idle_share`` is the time that ranks wait for the
busiest one, ``1 - mean / largest`` of the tokens they forward, with rows left where they were rolled out and dealt.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.shared import Record, options, seconds_of, spread_with_ends, write
from dppo.methods import METHODS
from dppo.pruning import PromptHistory
from dppo.rng import Purpose, step_streams, torch_generator
from dppo.step import RolledOut, StepPlan, plan_step, whole_block
from dppo.trl.grpo.rollouts import NOWHERE, ranks_of_rows
from dppo.types import Rewards

GROUP_SIZE, MAX_TOKENS, WITHOUT_GRADIENT = 8, 1024, 0.6
METHOD = METHODS["dppo"].with_rates(prompt=0.5, completion=0.5)


def record(figure: str, size: int, unit: str, values: list[float]) -> Record:
    """A figure at a size, with its spread."""
    return {"figure": figure, "size": size, "unit": unit, **spread_with_ends(values)}


def timed(figure: str, size: int, run: Callable[[], object], repeats: int) -> Record:
    """Milliseconds of a call, after one that is not counted."""
    run()
    return record(figure, size, "ms", [1e3 * seconds_of(run) for _ in range(repeats)])


def generation(size: int, seed: int = 0) -> tuple[RolledOut, Tensor]:
    """Completions of groups of eight, rewards 0 and 1, log-normal lengths by prompt; and (N,) tokens of the prompts."""
    rng, groups = torch_generator(seed, Purpose.CHECK), size // GROUP_SIZE
    group_N = torch.arange(groups).repeat_interleave(GROUP_SIZE)
    mixed_Q = torch.rand(groups, generator=rng) >= WITHOUT_GRADIENT
    reward_N = (torch.rand(size, generator=rng) < 0.5) & mixed_Q[group_N]
    log_N = 6 + 0.4 * torch.randn(groups, generator=rng)[group_N] + 0.4 * torch.randn(size, generator=rng)
    tokens_N = log_N.exp().clamp(1, MAX_TOKENS).long()
    prompt_N = torch.randint(100, 201, (groups,), generator=rng)[group_N]
    rewards = Rewards.of_groups(reward_N.double().view(groups, GROUP_SIZE))
    return RolledOut(rewards=rewards, tokens_N=tokens_N), prompt_N


def planned(rolled_out: RolledOut, seed: int = 0) -> StepPlan:
    """The plan of a step that consists of the groups given."""
    prompts = whole_block(rolled_out.rewards.groups, len(rolled_out.rewards))
    return plan_step(METHOD, rolled_out, prompts, streams=step_streams(seed, 0), max_tokens=MAX_TOKENS)


def plan_and_deal(size: int, ranks: int, repeats: int) -> Iterator[Record]:
    """Milliseconds of the plan of a step, and of dealing its rows to ranks."""
    rolled_out, prompt_N = generation(size)
    weight_UN, lengths = planned(rolled_out).weight_UN, (prompt_N, rolled_out.tokens_N[None])
    yield timed("plan_step", size, lambda: planned(rolled_out), repeats)
    deal = lambda: ranks_of_rows(*lengths, weight_UN, ranks, group_N=rolled_out.rewards.group_N)  # noqa: E731
    yield timed(f"deal_to_{ranks}_ranks", size, deal, repeats)


def idle_shares(ranks: int, prompts_per_rank: int, seeds: int) -> Iterator[Record]:
    """Share of time that ranks wait, before and after dealing, and the share of tokens that move."""
    shares: dict[str, list[float]] = {"idle_share_at_home": [], "idle_share_dealt": [], "share_of_tokens_moved": []}
    for seed in range(seeds):
        rolled_out, prompt_N = generation(ranks * prompts_per_rank * GROUP_SIZE, seed)
        weight_UN, completion_N = planned(rolled_out, seed).weight_UN, rolled_out.tokens_N
        home_N = torch.arange(weight_UN.shape[1]) // (prompts_per_rank * GROUP_SIZE)
        group_N = rolled_out.rewards.group_N
        dealt_N = ranks_of_rows(prompt_N, completion_N[None], weight_UN, ranks, group_N=group_N)
        home_N = home_N.where(dealt_N != NOWHERE, NOWHERE)
        for name, rank_N in (("idle_share_at_home", home_N), ("idle_share_dealt", dealt_N)):
            cost_R = tokens_of_ranks(prompt_N, completion_N, group_N, rank_N, ranks)
            shares[name].append(float(1 - cost_R.mean() / cost_R.max()))
        moved = completion_N[dealt_N != home_N].sum() / completion_N[dealt_N != NOWHERE].sum()
        shares["share_of_tokens_moved"].append(float(moved))
    for name, values in shares.items():
        yield record(f"{name}_{prompts_per_rank}_prompts_a_rank", ranks, "share", values)


def tokens_of_ranks(prompt_N: Tensor, completion_N: Tensor, group_N: Tensor, rank_N: Tensor, ranks: int) -> Tensor:
    """(R,) tokens that each rank forwards: completions, and the prompt of each group that it has a part of, once."""
    kept_N = rank_N != NOWHERE
    rank_K, group_K, groups = rank_N[kept_N], group_N[kept_N], 1 + int(group_N.max())
    cost_R = torch.zeros(ranks, dtype=torch.float64).index_add_(0, rank_K, completion_N[kept_N].double())
    pair_P, first_P = np.unique((rank_K * groups + group_K).numpy(), return_index=True)
    prompt_P = prompt_N[kept_N][torch.from_numpy(first_P)].double()
    return cost_R.index_add_(0, torch.from_numpy(pair_P) // groups, prompt_P)


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    arguments = options(__doc__, quick="small sizes and few repeats, in a few seconds").parse_args()
    torch.set_num_threads(1)
    whole = (4096, 65_536, 2**20), (10**6, 10**7, 10**8), (2, 8, 64, 512), 5
    sizes, histories, ranks, repeats = ((64, 256), (100, 1000), (2, 8), 2) if arguments.quick else whole
    rows = [row for size in sizes for row in plan_and_deal(size, ranks[-1], repeats)]
    for size in histories:
        history = PromptHistory(np.arange(size, dtype=np.uint64))
        rows.append(record("memory_of_history", size, "bytes", [history.nbytes]))
    rows += [row for prompts in (2, 8) for many in ranks for row in idle_shares(many, prompts, repeats)]
    for row in rows:
        ends = f"({row['quartile_low']:,.2f} to {row['quartile_high']:,.2f})"
        print(f"{row['figure']:44}{row['size']:>12,}{row['median']:>16,.2f} {row['unit']} {ends}")
    write(arguments.output, rows, [0])


if __name__ == "__main__":
    main()
