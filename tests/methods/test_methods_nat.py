"""Tokens left out of completions: cuts and head sampling, ours and NAT's, by every outcome through the step."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from refusals import refused
from tiny_policy import (
    GRPO_BY_HAND,
    LENGTH_N,
    MASK_NT,
    at_rates,
    expectation,
    planned,
    relative_error,
    weighted_gradients,
)

from dppo.errors import ConfigError, DesignError
from dppo.methods import METHODS
from dppo.objective import NORMALISERS, clipped_surrogate, mixes_tokens, off_policy_masked, sequence_ratio, vespo
from dppo.pruning import TokenPruning, all_alike, random_prefix
from dppo.pruning.tokens import TOKEN_AUTO, best_cuts, by_uncertainty
from dppo.trl import DPPOConfig

EXACT, BIASED = 1e-12, 1e-3
GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
LEVELS = {
    "cuts": TokenPruning(rate=0.4),
    "head": TokenPruning(head_rate=0.6),
    "random prefix": TokenPruning(rate=0.3, cut_rule=random_prefix),
    "uniform tokens": TokenPruning(head_rate=0.5, head_rule=all_alike),
}
CUT = replace(GRPO, tokens=LEVELS["cuts"])


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_outcome_together_is_the_full_gradient(level, normaliser, beta):
    method = replace(GRPO, tokens=LEVELS[level], normaliser=NORMALISERS[normaliser], beta=beta, entropy_coef=0.1)
    wanted = replace(GRPO_BY_HAND, divided=normaliser, beta=beta, entropy_coef=0.1).gradient()
    (every,) = planned(method)
    assert float(every.chance_U.sum()) == pytest.approx(1.0, abs=EXACT)
    assert len(every.gradients().unique(dim=0)) > 1, "outcomes differ"
    assert relative_error(every.chance_U @ every.gradients(), wanted) < EXACT


IN_A_ROW = {
    "cuts and head": replace(GRPO, tokens=TokenPruning(rate=0.3, head_rate=0.5)),
    "after completions": replace(at_rates(DPPO, 0.0, 0.5), tokens=TokenPruning(rate=0.3)),
    "after prompts": replace(at_rates(DPPO, 0.5, 0.0), tokens=TokenPruning(rate=0.3)),
}


@pytest.mark.parametrize("name", IN_A_ROW)
def test_draws_in_a_row_are_the_full_gradient(name):
    assert relative_error(expectation(IN_A_ROW[name]), GRPO_BY_HAND.gradient()) < EXACT


def test_weights_of_whole_completions_and_a_mean_over_the_tokens_that_are_left_are_found():
    (every,) = planned(CUT)
    weight_UNT, reach_N = every.weight_UNT, every.plan.token_draws[0].reach_N

    def bias(weight_UNT, **options):
        found = weighted_gradients(CUT, weight_UNT, every.advantage_N, every.plan.sizes, **options)
        return relative_error(every.chance_U @ found, GRPO_BY_HAND.gradient())

    assert bias(weight_UNT) < EXACT
    assert bias((weight_UNT > 0) / reach_N[:, None].clamp_min(1e-9)) > BIASED, (
        "one over the chance to be reached at all"
    )
    assert bias(weight_UNT, counted=False) > BIASED


def up_to_the_largest(moment_NT, span_NT, rate, floor):
    """Wrong: a cut behind the token of the largest moment, for certain: it looks at what is sampled later."""
    largest_N1 = moment_NT.argmax(1, keepdim=True)
    return ((torch.arange(span_NT.shape[1]) <= largest_N1) & span_NT).double()


def without_floor(moment_NT, span_NT, rate, floor):
    reach_NT = best_cuts(moment_NT, span_NT, rate, floor)
    return torch.where(reach_NT > 0.5, reach_NT, 0.0)


@pytest.mark.parametrize("rule", [up_to_the_largest, without_floor])
def test_a_cut_by_the_future_and_a_floor_forgotten_are_found(rule):
    method = replace(GRPO, tokens=TokenPruning(rate=0.4, cut_rule=rule))
    assert relative_error(expectation(method), GRPO_BY_HAND.gradient()) > BIASED


def test_losses_that_look_at_other_tokens_are_found_and_refused():
    assert not mixes_tokens(clipped_surrogate) and mixes_tokens(vespo)

    @dataclass  # one that cannot be hashed
    class Scaled:
        loss: Any

        def __call__(self, tokens):
            return 2 * self.loss(tokens)

    assert not mixes_tokens(Scaled(clipped_surrogate)) and mixes_tokens(Scaled(vespo))
    assert not any(mixes_tokens(METHODS[name].token_loss) for name in ("grpo", "dapo", "dppo_divergence_ppo_kl"))
    for changes in (
        {"token_loss": METHODS["gspo"].token_loss},
        {"router_coef": 0.1},
        {"token_loss": lambda tokens: clipped_surrogate(tokens, ratio=sequence_ratio)},
        {"kl": METHODS["a_star_po"].kl},
        {"token_loss": partial(off_policy_masked, loss=clipped_surrogate, threshold=0.1)},
        {"statistics": METHODS["pods"].statistics},
    ):
        with refused(ConfigError, "tokens"):
            replace(CUT, **changes)


WRONG = [
    ({"rate": 1.0}, "rate"),
    ({"rate": 0.9, "floor": 0.2}, "floor"),
    ({"head_rate": 1.0}, "head_rate"),
    ({"head_rate": 0.9, "head_floor": 0.2}, "head_floor"),
    ({"rate": 0.6, "cut_rule": random_prefix}, "rate=0.6"),
    ({"rate": 0.5, "cut_rule": random_prefix, "auto": TOKEN_AUTO}, "random prefix"),
]
RUN = {"report_to": [], "use_cpu": True, "bf16": False}
WRONG_RUNS = [
    ({"method": "nat_rpc", "token_prune_rate": 0.6}, ("nat_rpc", "token_prune_rate: 0.5")),
    ({"method": "nat_rpc", "token_prune_rate": "auto"}, ("nat_rpc", "which chooses no rate")),
    ({"token_prune_rate": 0.8, "prune_floor": 0.3}, ("prune_floor=0.3", "token_prune_rate=0.8")),
]


def test_rates_and_floors_out_of_range_are_refused_before_a_run(tmp_path):
    for given, named in WRONG:
        with refused(ConfigError, named):
            TokenPruning(**given)
    for given, named in WRONG_RUNS:
        with refused(ConfigError, *named):
            DPPOConfig(**RUN, **given, output_dir=str(tmp_path))
    args = DPPOConfig(**RUN, token_prune_rate=0.8, prune_floor=0.2, output_dir=str(tmp_path))
    assert args.build_method().tokens.floor == 0.2


def test_a_random_prefix_keeps_the_share_asked_for_and_never_more_than_half_less():
    span_NT = torch.from_numpy(MASK_NT)
    reach_NT = random_prefix(span_NT.double(), span_NT, 0.5, 0.05)
    assert reach_NT[0].tolist() == [1.0, 0.75, 0.5, 0.25]
    assert float(reach_NT.sum()) == pytest.approx(sum((n + 1) / 2 for n in LENGTH_N))
    with refused(DesignError, "rate"):
        random_prefix(span_NT.double(), span_NT, 0.6, 0.05)


def test_presets_are_what_the_paper_does():
    urs, rpc = METHODS["nat_urs"].tokens, METHODS["nat_rpc"].tokens
    assert (urs.rate, urs.head_rule, rpc.head_rate, rpc.cut_rule) == (0.0, all_alike, 0.0, random_prefix)
    assert not urs.needs_log_probs and not rpc.needs_log_probs
    assert TokenPruning(head_rate=0.5, head_rule=by_uncertainty).needs_log_probs
