"""verl's engine with our loss: its own gradient where every weight is 1, and the full batch's in expectation.

Six rows in micro-batches of 64 tokens, every outcome of a draw over four, the real FSDP engine and ``ppo_loss``.
"""

from functools import partial

import pytest
import torch
from in_process import configuration, record_gradients, training_worker
from steps import all_draws
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.utils.losses import ppo_loss

from dppo.verl.batch import jagged
from dppo.verl.layout import Prefixes, place
from dppo.verl.loss import WEIGHT, weighted_ppo_loss
from dppo.verl.support import ROW_LOSSES

TOLERANCE = 1e-6
PROB_N = torch.tensor([0.5, 1.0, 0.25, 0.75, 1.0, 0.5], dtype=torch.float64)
LENGTHS = ((5, 3), (6, 9), (4, 12), (7, 5), (5, 1), (6, 7))
"""Tokens of the prompt and of the completion of each row."""
ADVANTAGE = (1.2, -0.7, 0.4, -1.5, 0.9, 0.0)
MODES = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
TERMS = {"policy": (False, 0.0), "KL": (True, 0.0), "KL and entropy": (True, 0.01)}
CASES = [("vanilla", mode, term) for mode in MODES for term in TERMS]
CASES += [(loss, mode, term) for loss in ROW_LOSSES for mode, term in (("seq-mean-token-mean", "KL and entropy"),)]
CASES += [(loss, "token-mean", "KL") for loss in ("gspo", "cispo", "dppo_kl", "dro")]
CASES = sorted(set(CASES))


@pytest.fixture(scope="module")
def engine(toy):
    worker, actor = training_worker(configuration(toy))
    return worker, actor, record_gradients(worker)


def batch(rows, extra):
    """Rows of the full batch as a worker gets them; off the policy that sampled, so that clipping bites."""
    rng = torch.Generator().manual_seed(0)
    columns = {name: [] for name in ("prompts", "responses", "input_ids", "position_ids", "response_mask")}
    columns |= {name: [] for name in ("old_log_probs", "ref_log_prob", "advantages")}
    for (prompt, completion), advantage in zip(LENGTHS, ADVANTAGE, strict=True):
        ids = torch.randint(5, 40, (prompt + completion,), generator=rng)
        columns["prompts"].append(ids[:prompt])
        columns["responses"].append(ids[prompt:])
        columns["input_ids"].append(ids)
        columns["position_ids"].append(torch.arange(len(ids)))
        columns["response_mask"].append(torch.ones(completion, dtype=torch.int64))
        columns["old_log_probs"].append(torch.randn(completion, generator=rng) * 0.3 - 4)
        columns["ref_log_prob"].append(torch.randn(completion, generator=rng) * 0.3 - 4)
        columns["advantages"].append(torch.full((completion,), advantage))
    columns["loss_mask"] = columns["response_mask"]
    taken = {name: jagged([values[row] for row in rows]) for name, values in columns.items()}
    data = TensorDict(taken | extra, batch_size=len(rows))
    options = {"temperature": 1.0, "calculate_entropy": True, "global_batch_size": len(LENGTHS), "epochs": 1, "seed": 0}
    options |= {"mini_batch_size": len(rows), "dataloader_kwargs": {"shuffle": False}}
    for name, value in options.items():
        tensordict_utils.assign_non_tensor_data(data, name, value)
    return data


def gradient(engine, loss, rows, **extra):
    worker, _, found = engine
    worker.set_loss_fn(loss)
    worker.train_mini_batch(batch(rows, extra))
    return found.pop()


def configured(actor, loss_mode, mode, term):
    use_kl, entropy = TERMS[term]
    settings = {"loss_agg_mode": mode, "use_kl_loss": use_kl, "kl_loss_coef": 0.1, "entropy_coeff": entropy}
    for name, value in (settings | {"loss_scale_factor": 12 if mode.endswith("norm") else None}).items():
        object.__setattr__(actor, name, value)
    actor.policy_loss.__dict__.update(loss_mode=loss_mode, dro_beta=0.5)
    return partial(ppo_loss, config=actor), partial(weighted_ppo_loss, config=actor)


def of_tokens(row_B, weight_B):
    """The weight of each row for each of its completion tokens."""
    return jagged([torch.full((LENGTHS[row][1],), float(w)) for row, w in zip(row_B, weight_B, strict=True)])


def bias(engine, loss, full, weight_of, by_tokens, name=WEIGHT):
    """Distance of the mean over every draw from the full batch's gradient, relative to it."""
    prompt_N, tokens_N = torch.tensor(LENGTHS).T
    scored_NT = torch.arange(int(tokens_N.max())) < tokens_N[:, None]
    rows = Prefixes(prompt_N=prompt_N, scored_NT=scored_NT, completion_N=tokens_N)
    mean = torch.zeros_like(full, dtype=torch.float64)
    for chance, keep_N in all_draws(PROB_N):
        tokens_U = tokens_N.sum()[None].double() if by_tokens else None
        placement = place((keep_N / PROB_N)[None], rows, 1, tokens_U=tokens_U)
        values = of_tokens(placement.row_B, weight_of(placement))
        mean += chance * gradient(engine, loss, placement.row_B, **{name: values}).double()
    return float((mean - full).norm() / full.norm())


@pytest.mark.parametrize(("loss_mode", "mode", "term"), CASES, ids=map("-".join, CASES))
def test_weights_of_one_give_verls_gradient_and_drawn_ones_its_mean(engine, loss_mode, mode, term):
    stock, ours = configured(engine[1], loss_mode, mode, term)
    everything = list(range(len(LENGTHS)))
    full = gradient(engine, stock, everything)
    assert torch.equal(
        gradient(engine, ours, everything, **{WEIGHT: of_tokens(everything, [1.0] * len(everything))}), full
    )
    assert full.norm() > 1e-3
    found = bias(engine, ours, full, lambda placement: placement.weight_B, by_tokens=mode == "token-mean")
    print(f"{loss_mode} {mode} {term}: bias {found:.1e}")
    assert found < TOLERANCE


@pytest.mark.parametrize(("mode", "term"), [("seq-mean-token-mean", "KL"), ("token-mean", "policy")])
def test_verls_own_weights_alone_are_biased_and_the_check_above_sees_it(engine, mode, term):
    """``rollout_is_weights`` reach the policy term only, and know nothing of the tokens that are sent."""
    stock, _ = configured(engine[1], "vanilla", mode, term)
    full = gradient(engine, stock, list(range(len(LENGTHS))))
    found = bias(engine, stock, full, lambda found: found.weight_B, by_tokens=False, name="rollout_is_weights")
    print(f"rollout_is_weights {mode} {term}: bias {found:.1e}")
    assert found > 0.02


def test_weights_that_are_forgotten_are_seen(engine):
    stock, ours = configured(engine[1], "vanilla", "seq-mean-token-mean", "policy")
    full = gradient(engine, stock, list(range(len(LENGTHS))))
    assert bias(engine, ours, full, lambda placement: (placement.weight_B > 0).float(), by_tokens=False) > 0.1


def test_a_batch_without_weights_is_an_error_and_not_a_biased_step(engine):
    _, ours = configured(engine[1], "vanilla", "seq-mean-token-mean", "policy")
    with pytest.raises(KeyError, match=WEIGHT):
        gradient(engine, ours, [0, 1, 2, 3])


@pytest.mark.parametrize("loss_mode", ["geo_mean", "clip_cov"])
def test_what_is_refused_would_be_biased(engine, loss_mode):
    torch.manual_seed(0)
    stock, ours = configured(engine[1], loss_mode, "seq-mean-token-mean", "policy")
    full = gradient(engine, stock, list(range(len(LENGTHS))))
    assert bias(engine, ours, full, lambda placement: placement.weight_B, by_tokens=False) > 0.02
