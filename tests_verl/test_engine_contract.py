"""verl's engine with our loss: its own gradient where every weight is 1, and the full batch's in expectation.

Six rows in micro-batches of 64 tokens, every outcome of a draw over four, the real FSDP engine and ``ppo_loss``.
"""

from functools import partial

import pytest
import torch
from in_process import record_gradients
from sharing import batch, worker
from steps import all_draws
from verl.utils import tensordict_utils
from verl.workers.utils.losses import ppo_loss

from dppo.verl.batch import jagged
from dppo.verl.layout import Prefixes, place
from dppo.verl.loss import WEIGHT, weighted_ppo_loss
from dppo.verl.support import ROW_LOSSES

VERLS_WEIGHT = "rollout_is_weights"
"""verl's own weights reach the policy term alone, and do not count the tokens that are sent."""
PROB_N = torch.tensor([0.5, 1.0, 0.25, 0.75, 1.0, 0.5], dtype=torch.float64)
LENGTHS = ((5, 3), (6, 9), (4, 12), (7, 5), (5, 1), (6, 7))
"""Tokens of the prompt and of the completion of each row."""
ROWS = range(len(LENGTHS))
ADVANTAGE = (1.2, -0.7, 0.4, -1.5, 0.9, 0.0)
MODES = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
TERMS = {"policy": (False, 0.0), "KL": (True, 0.0), "KL and entropy": (True, 0.01)}
CASES = {("vanilla", mode, term) for mode in MODES for term in TERMS}
CASES |= {(loss, "seq-mean-token-mean", "KL and entropy") for loss in ROW_LOSSES}
CASES |= {(loss, "token-mean", "KL") for loss in ("gspo", "cispo", "dppo_kl", "dro")}


@pytest.fixture(scope="module")
def engine(toy):
    made, actor = worker(toy)
    return made, actor, record_gradients(made)


def of_tokens(rows, value_B):
    """The value of each row for each of its completion tokens."""
    return jagged([torch.full((LENGTHS[row][1],), float(value)) for row, value in zip(rows, value_B, strict=True)])


def gradient(engine, loss, rows=ROWS, **weights):
    """The gradient of some rows of the batch. Their weights, a number for each, are in fields of these names."""
    made, _, found = engine
    data = batch([(prompt, (tokens,)) for prompt, tokens in LENGTHS], max_tokens=64)
    data["advantages"] = of_tokens(ROWS, ADVANTAGE)
    data = tensordict_utils.index_select_tensor_dict(data, list(rows))
    del data[WEIGHT]
    for name, weight_B in weights.items():
        data[name] = of_tokens(rows, weight_B)
    tensordict_utils.assign_non_tensor_data(data, "mini_batch_size", len(rows))
    made.set_loss_fn(loss)
    made.train_mini_batch(data)
    return found.pop()


def configured(actor, loss_mode, mode, term):
    """verl's loss and ours with some options."""
    use_kl, entropy = TERMS[term]
    settings = {"loss_agg_mode": mode, "use_kl_loss": use_kl, "kl_loss_coef": 0.1, "entropy_coeff": entropy}
    for name, value in (settings | {"loss_scale_factor": 12 if mode.endswith("norm") else None}).items():
        object.__setattr__(actor, name, value)
    actor.policy_loss.__dict__.update(loss_mode=loss_mode, dro_beta=0.5)
    return partial(ppo_loss, config=actor), partial(weighted_ppo_loss, config=actor)


def bias(engine, loss, full, field=WEIGHT, *, by_tokens=False, forgotten=False):
    """Distance of the mean over every draw from the full batch's gradient, relative to it."""
    prompt_N, tokens_N = torch.tensor(LENGTHS).T
    scored_NT = torch.arange(int(tokens_N.max())) < tokens_N[:, None]
    rows = Prefixes(prompt_N=prompt_N, scored_NT=scored_NT, completion_N=tokens_N)
    mean = torch.zeros_like(full, dtype=torch.float64)
    for chance, keep_N in all_draws(PROB_N):
        tokens_U = tokens_N.sum()[None].double() if by_tokens else None
        placement = place((keep_N / PROB_N)[None], rows, 1, tokens_U=tokens_U)
        weight_B = placement.weight_B > 0 if forgotten else placement.weight_B
        mean += chance * gradient(engine, loss, placement.row_B, **{field: weight_B}).double()
    return float((mean - full).norm() / full.norm())


@pytest.mark.parametrize(("loss_mode", "mode", "term"), sorted(CASES), ids=map("-".join, sorted(CASES)))
def test_weights_of_one_give_verls_gradient_and_drawn_ones_its_mean(engine, loss_mode, mode, term):
    stock, ours = configured(engine[1], loss_mode, mode, term)
    full = gradient(engine, stock)
    assert torch.equal(gradient(engine, ours, **{WEIGHT: [1.0] * len(LENGTHS)}), full) and full.norm() > 1e-3
    found = bias(engine, ours, full, by_tokens=mode == "token-mean")
    print(f"{loss_mode} {mode} {term}: bias {found:.1e}")
    assert found < 1e-6


@pytest.mark.parametrize(
    ("loss_mode", "mode", "term", "field"),
    [
        ("vanilla", "seq-mean-token-mean", "KL", VERLS_WEIGHT),
        ("vanilla", "token-mean", "policy", VERLS_WEIGHT),
        ("geo_mean", "seq-mean-token-mean", "policy", WEIGHT),
        ("clip_cov", "seq-mean-token-mean", "policy", WEIGHT),
    ],
)
def test_verls_own_weights_and_losses_that_are_refused_would_be_biased(engine, loss_mode, mode, term, field):
    torch.manual_seed(0)
    stock, ours = configured(engine[1], loss_mode, mode, term)
    found = bias(engine, stock if field == VERLS_WEIGHT else ours, gradient(engine, stock), field)
    print(f"{loss_mode} {mode} {term} {field}: bias {found:.1e}")
    assert found > 0.02


def test_forgotten_weights_are_seen_and_a_batch_without_weights_is_an_error(engine):
    stock, ours = configured(engine[1], "vanilla", "seq-mean-token-mean", "policy")
    assert bias(engine, ours, gradient(engine, stock), forgotten=True) > 0.1
    with pytest.raises(KeyError, match=WEIGHT):
        gradient(engine, ours, [0, 1, 2, 3])
