"""benchmarks/speed/tokens.py measures true gradients, with a KL term and without."""

from dataclasses import replace

import pytest
import torch

from benchmarks.speed import tokens as benchmark
from benchmarks.speed.tokens import BETA, GENERATIONS, Stage
from dppo.pruning import TokenPruning
from dppo.rng import Purpose, torch_generator
from dppo.verification.gradients import log_probs, trained_parameters
from dppo.verification.tiny_model import build_model
from dppo_lab.demo.task import QUICK, make_split
from dppo_lab.frozen.tokens import Fold


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "kl"])
def reference(request):
    return build_model(2) if request.param else None


@pytest.fixture(scope="module")
def found(reference):
    """Of a policy that was never trained and is never right: its rewards are random ones."""
    problems = make_split(1, train=3, held_out=0, task=QUICK).train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "MAX_NEW_TOKENS", 10)
        stage = Stage.of(build_model(1), problems, reference)
    live = int(stage.tokens.known_NT.any(1).sum())
    assert (live == 3 * GENERATIONS) or reference is None, "zero-variance groups have a gradient under KL"
    return stage


def test_its_gradient_is_that_of_the_loss(found, reference):
    """The wrong twins forget the slope of the first token, or that of the KL term."""
    subject, loss = found.subject, 0.0
    advantage_N = found.method.advantages(subject.rewards, subject.context)
    for row, tokens in enumerate(subject.completion_tokens):
        prompt = subject.prompt_tokens[row // GENERATIONS]
        logp_T = log_probs(subject.model, prompt, tokens)
        loss = loss - advantage_N[row] * logp_T.sum()
        if reference is not None:
            away_T = log_probs(reference, prompt, tokens).detach() - logp_T
            loss = loss + BETA * (away_T.exp() - away_T - 1).sum()
    parameters, rng = trained_parameters(subject.model), torch_generator(0, Purpose.CHECK, 4)
    folds = [Fold.made(parameter.numel(), rng) for parameter in parameters]
    parts = torch.autograd.grad(loss, parameters)
    wanted = sum(fold(part.flatten()[None]) for fold, part in zip(folds, parts, strict=True))[0].double()

    def off(slope_S):
        return float((slope_S @ found.tokens.gradient_SK - wanted).norm() / wanted.norm())

    assert off(found.slope_S) < 1e-4
    owner_S, place_S = found.tokens.known_NT.nonzero().unbind(1)
    assert off(found.slope_S * (place_S > 0)) > 1e-2
    assert reference is None or off(-advantage_N[owner_S]) > 1e-2


def test_nothing_left_out_adds_nothing(found):
    row = found.added_variance(torch.ones(3, len(found.slope_S), dtype=torch.float64))
    assert row == {**dict.fromkeys(("value", "error", "alone"), pytest.approx(0, abs=1e-9)), "kept": 1.0}
    half = found.added_variance(found.weights(TokenPruning(rate=0.5), 20))
    assert half["value"] > 1e-3 and half["kept"] == pytest.approx(0.5, abs=0.1)


def test_tokens_one_by_one_add_what_they_do_together_where_their_gradients_are_at_right_angles(found):
    weight_MS = torch.ones(2, len(found.slope_S), dtype=torch.float64)
    weight_MS[:, 0] = 0
    one = found.added_variance(weight_MS)
    assert one["value"] == pytest.approx(one["alone"], rel=1e-9) and one["alone"] > 0
    gradient_SK = found.tokens.gradient_SK.clone()
    gradient_SK[1] = gradient_SK[0] * found.slope_S[0] / found.slope_S[1]  # the second token pulls as the first
    alike = replace(found, tokens=replace(found.tokens, gradient_SK=gradient_SK))
    weight_MS[:, 1] = 0
    two = alike.added_variance(weight_MS)
    assert two["value"] == pytest.approx(2 * two["alone"], rel=1e-9)
