"""Frozen draws of tokens: gradients of tokens add up, and what is biased among ways to leave them out is found."""

import pytest
import torch

from dppo.errors import DesignError
from dppo.lab.comparison.contestants import choose
from dppo.lab.frozen.grid import FrozenSettings, compare_frozen
from dppo.lab.frozen.lines import PrunedLevel
from dppo.lab.frozen.methods import embedded_training, lines_of, methods_of
from dppo.lab.frozen.sample import bias_of, figures
from dppo.lab.frozen.tokens import at_token_rates, sample_tokens, takes_tokens, token_gradients
from dppo.methods import METHODS
from dppo.pruning import cuts, random_prefix
from dppo.verification.draws import full_batch

BUILD = embedded_training().build_other
DPPO, DRAWS = BUILD("dppo"), 300


@pytest.fixture(scope="module")
def tokens(subject):
    return token_gradients(subject, full_batch(subject, DPPO) != 0)


def bias_and_figures(subject, tokens, method):
    found = sample_tokens(subject, tokens, method, DRAWS, 0)
    bias = bias_of(found, tokens.gradient_SK)
    return bias, figures(found, bias, tokens.gradient_SK)


def test_gradients_of_tokens_add_up_to_those_of_completions(subject, tokens):
    needed = (full_batch(subject, DPPO) != 0).nonzero()[:, 0]
    owner_S = tokens.known_NT.nonzero()[:, 0]
    whole_RK = torch.stack([tokens.gradient_SK[owner_S == row].sum(0) for row in needed])
    found, exact = whole_RK @ whole_RK.T, subject.gram_NN[needed][:, needed]
    scale = exact.diagonal().sqrt()
    error = (found - exact) / scale[:, None] / scale
    assert float(error.abs().max()) < 0.15 and float(error.square().mean().sqrt()) < 0.04, "as far as folding goes"
    assert torch.allclose(tokens.sampled.logp_NT[~tokens.sampled.mask_NT], torch.zeros(()))


@pytest.mark.parametrize(
    ("rates", "loss"), [((0.5, 0.0), "dr_grpo"), ((0.0, 0.7), "grpo"), ((0.3, 0.7), "dr_grpo"), ((0.3, 0.7), "grpo")]
)
def test_tokens_that_are_drawn_are_unbiased(subject, tokens, rates, loss):
    method = at_token_rates(BUILD("dppo") if loss == "dr_grpo" else METHODS["dppo"], *rates)
    bias, found = bias_and_figures(subject, tokens, method)
    assert bias.squared <= bias.bound(1e-4) and found.added_variance > 0.01
    assert found.rows_kept == pytest.approx((1 - rates[0]) * (1 - rates[1]), abs=0.1)


@pytest.mark.parametrize("wrong", ["weights forgotten", "a weight for each completion"])
def test_wrong_twins_are_found(subject, tokens, monkeypatch, wrong):
    right = cuts.TokenDraw.of.__func__

    def twin(cls, keep_NT, reach_NT, prob_NT):
        prob_NT = torch.ones_like(prob_NT) if wrong == "weights forgotten" else reach_NT[:, :1].expand_as(reach_NT)
        return right(cls, keep_NT, reach_NT, prob_NT)

    monkeypatch.setattr(cuts.TokenDraw, "of", classmethod(twin))
    method = BUILD("nat_rpc")
    bias, _ = bias_and_figures(subject, tokens, at_token_rates(method, 0.4, 0.0))
    assert bias.squared > bias.bound(1e-4)
    monkeypatch.undo()
    bias, _ = bias_and_figures(subject, tokens, at_token_rates(method, 0.4, 0.0))
    assert bias.squared <= bias.bound(1e-4)


@pytest.mark.slow
def test_the_table_has_tokens_where_a_method_for_them_is_named(subject):
    contestants = choose(["dppo", "nat_urs", "nat_rpc", "cppo"], {}, {})
    lines = lines_of(contestants, methods_of(contestants, BUILD, {}), subject, BUILD)[:4]
    found = compare_frozen(lines, DPPO, FrozenSettings(rates=(0.3, 0.7), draws=DRAWS // 3))
    rows = {(row.name, row.level, row.token_rate or row.head_rate): row for row in found.measured}
    assert found.passed
    of_tokens = {key for key in rows if key[1] in (PrunedLevel.TOKENS, PrunedLevel.HEAD)}
    assert of_tokens == {
        *(("dppo", level, rate) for level in (PrunedLevel.TOKENS, PrunedLevel.HEAD) for rate in (0.3, 0.7)),
        *(("nat_urs", PrunedLevel.HEAD, rate) for rate in (0.3, 0.7)),
        ("nat_rpc", PrunedLevel.TOKENS, 0.3),  # its prefixes leave out at most half
    }
    prefix, best = (rows[name, PrunedLevel.TOKENS, 0.3].figures.added_variance for name in ("nat_rpc", "dppo"))
    assert prefix > 1.5 * best
    assert ("dppo", PrunedLevel.COMPLETIONS, 0.0) in rows, "beside completions"
    plain = lines_of(choose(["dppo"], {}, {}), [DPPO], subject, BUILD)
    assert not any(PrunedLevel.TOKENS in line.levels for line in plain)
    assert takes_tokens(BUILD("gspo")) == (False, False) and takes_tokens(DPPO) == (True, True)
    with pytest.raises(DesignError):
        random_prefix(torch.ones(1, 4), torch.ones(1, 4).bool(), 0.7, 0.1)
