"""Metrics of a step, by the names of docs/metrics.md."""

import torch
from torch import Tensor

from dppo.groups import each_group
from dppo.pruning.ceiling import selection_ceiling
from dppo.pruning.designs import effective_sample_size, relative_added_variance
from dppo.pruning.tokens import SampledTokens, TokenDraw, TokenPruning
from dppo.step.records import StepPrompts
from dppo.types import Completions, Rewards


def step_metrics(completions: Completions, rewards: Rewards, prompts: StepPrompts) -> dict[str, float]:
    """Metrics about all candidates, estimated from those rolled out with one over their probability as weight."""
    group_N = completions.group_N
    inverse_Q = prompts.prob_Q.reciprocal()
    has_signal_Q = each_group(lambda advantage_QG: (advantage_QG != 0).any(1), group_N, completions.advantage_N)
    reward_Q = rewards.mean_Q
    metrics = {
        "candidates/reward": float((inverse_Q * reward_Q).nansum() / inverse_Q[~reward_Q.isnan()].sum()),
        "candidates/zero_variance_groups": float((inverse_Q * ~has_signal_Q).sum() / inverse_Q.sum()),
        "rollout/zero_variance_groups": 1.0 - has_signal_Q.double().mean().item(),
        "prune/prompts_kept_share": len(prompts.row_Q) / len(prompts.candidates.row_P),
        "prune/largest_prompt_weight": _largest(prompts.draw.weight_N),
        "prune/prompts_with_history": prompts.candidates.seen_P.double().mean().item(),
        "prune/prompt_rate": _rate(prompts.draw.prob_N[prompts.candidates.seen_P]),
    }
    if (collected := prompts.collected) is None:
        return metrics
    used = int((prompts.weight_Q > 0).sum())
    return metrics | {
        "rollout/rounds": float(collected.rounds),
        "rollout/groups": float(collected.rolled_out),
        "rollout/groups_unused": 1 - used / collected.rolled_out,
        "rollout/groups_surplus": (collected.counted - used) / collected.rolled_out,
    }


def kept_metrics(weight_N: Tensor, tokens_N: Tensor) -> dict[str, float]:
    """Metrics of a draw among units of so many tokens, by their weights; 0 if a unit is left out."""
    kept_N = weight_N > 0
    return {
        "prune/kept_share": kept_N.double().mean().item(),
        "prune/effective_rows": effective_sample_size(weight_N),
        "prune/largest_weight": _largest(weight_N),
        "prune/tokens_trained": tokens_N[kept_N].sum().item(),
        "prune/tokens_skipped": tokens_N[~kept_N].sum().item(),
    }


def draw_metrics(
    live_N: Tensor, weight_N: Tensor, prob_N: Tensor, score_N: Tensor, tokens_N: Tensor
) -> dict[str, float]:
    """Metrics of one draw over the completions of a share, all ranks together."""
    live_prob_N = prob_N[live_N]
    found = kept_metrics(weight_N, tokens_N) | {
        "prune/live_share": live_N.double().mean().item(),
        "prune/completion_rate": _rate(live_prob_N),
        "prune/completion_ceiling": selection_ceiling(score_N[live_N].square(), tokens_N[live_N]),
    }
    if bool((live_prob_N > 0).all()):  # else a ranking, whose dropping is a bias and no variance
        found["prune/added_variance"] = relative_added_variance(live_prob_N, score_N[live_N])
    return found


def token_metrics(
    level: TokenPruning, draw: TokenDraw, moment_RT: Tensor, sampled: SampledTokens, live_N: Tensor, *, all_tokens: int
) -> dict[str, float]:
    """Metrics of the tokens of one draw, over the R live completions of a share, which has ``all_tokens``."""
    span, scored = int(sampled.span_NT.sum()), int(sampled.mask_NT.sum())
    weight_RT, prob_RT = draw.weight_NT[live_N] * sampled.mask_NT, draw.prob_NT[live_N]
    known_RT = sampled.mask_NT & (prob_RT > 0)
    total = moment_RT[known_RT].sum()
    added = (moment_RT[known_RT] * (prob_RT[known_RT].reciprocal() - 1)).sum()
    forwarded = int(draw.length_N[live_N].sum())
    return {
        "prune/token_rate": level.rate,
        "prune/token_kept_share": forwarded / max(span, 1),
        "prune/head_share": int((weight_RT > 0).sum()) / max(scored, 1),
        "prune/largest_token_weight": _largest(weight_RT.flatten()),
        "prune/token_added_variance": float(added / total) if total > 0 else 0.0,
        "prune/tokens_trained": float(forwarded),
        "prune/tokens_skipped": float(all_tokens - forwarded),
    }


def _rate(prob_R: Tensor) -> float:
    """Share of some units that a draw drops on average; 0 where there are none."""
    return 1.0 - prob_R.mean().item() if len(prob_R) else 0.0


def _largest(weight_N: Tensor) -> float:
    """The largest weight, 0 where there is none."""
    return torch.cat([weight_N, weight_N.new_zeros(1)]).max().item()
