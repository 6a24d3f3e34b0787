"""benchmarks/speed/tokens.py measures true gradients, with a KL term and without."""

import pytest
import torch

from benchmarks.speed import tokens
from benchmarks.speed.tokens import BETA, GENERATIONS, Sampled, added_variance
from dppo.pruning import TokenPruning
from dppo.verification.tiny_model import build_model
from dppo_lab.demo.task import QUICK, make_split


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "kl"])
def found(request):
    """Of a policy that was never trained and is never right: every second completion of two groups is said to be."""
    problems = make_split(1, train=3, held_out=0, task=QUICK).train
    said = torch.tensor([0.0, 1.0] * GENERATIONS + [0.0] * GENERATIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "rewards_of", lambda made, tokenizer, asked: said)
        sampled = Sampled(build_model(1), problems, build_model(2) if request.param else None)
    assert len(sampled.length_N) == (3 if request.param else 2) * GENERATIONS, "flat groups have a gradient under KL"
    return sampled


def test_its_gradient_is_that_of_the_loss(found):
    """The wrong twin forgets the slope of the first token."""
    model, expected = found.model, 0.0
    for row in range(len(found.length_N)):
        n, prompt = int(found.length_N[row]), found.prompts[row]
        ids = torch.tensor([prompt + found.token_NT[row, :n].tolist()])
        logp_TV = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected += (logp_TV.gather(-1, ids[0, len(prompt) :, None])[:, 0] * found.slope_NT[row, :n]).sum()
    full = torch.cat([part.flatten() for part in torch.autograd.grad(expected, list(model.parameters()))]).double()
    mask_NT = found.tokens.mask_NT.double()
    assert float((found.gradient(mask_NT) - full).norm() / full.norm()) < 1e-4
    mask_NT[:, 0] = 0
    assert float((found.gradient(mask_NT) - full).norm() / full.norm()) > 1e-2


def test_nothing_left_out_adds_nothing(found):
    draws = {
        "all": lambda rng: (found.tokens.mask_NT.double(), float(found.length_N.sum())),
        "half": lambda rng: found.drawn(TokenPruning(rate=0.5), rng),
    }
    rows = added_variance(found, draws, 3)
    assert rows["all"] == {"value": pytest.approx(0, abs=1e-9), "error": pytest.approx(0, abs=1e-9), "kept": 1.0}
    assert rows["half"]["value"] > 1e-3 and rows["half"]["kept"] == pytest.approx(0.5, abs=0.1)


def test_the_slope_of_the_kl_term_is_that_of_k3(found):
    row, logp_NT = 0, found.tokens.logp_NT.clone().requires_grad_()
    with torch.no_grad():
        away_T = found._log_probs(build_model(2), [row])[0] - logp_NT[row, : int(found.length_N[row])]
    beta = BETA if len(found.length_N) == 3 * GENERATIONS else 0.0
    logp_T = logp_NT[row, : len(away_T)]
    away_T = away_T.detach() + logp_T.detach() - logp_T
    (-found.advantage_N[row] * logp_T + beta * (away_T.exp() - away_T - 1)).sum().backward()
    assert torch.allclose(-found.slope_NT[row, : len(away_T)], logp_NT.grad[row, : len(away_T)].double(), atol=1e-5)
