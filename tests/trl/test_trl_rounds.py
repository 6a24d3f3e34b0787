"""Methods of other papers in TRL training: what they say, on the groups that they retain; and rounds survive."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import trl_gradients
from refusals import refused, warned
from resumed_runs import ROUNDS, STEPS, trainer
from safetensors.torch import load_file
from tiny_runs import (
    GENERATIONS,
    ON_CPU,
    alike,
    first_half_reward,
    length_reward,
    logged,
    problems,
    relative_difference,
    scripted,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl_gradients import TOLERANCE, constant, dppo_run, trl_run

from dppo.errors import CheckpointError, RoundsError
from dppo.files import sealed
from dppo.step import PromptSource


def pods_by_hand(prompts, completions, **_):
    """The lowest and the highest reward of each group of 4, and None, which TRL leaves out of its statistics."""
    reward, found = length_reward(prompts, completions), []
    for first in range(0, len(reward), GENERATIONS):
        group = reward[first : first + GENERATIONS]
        low = group.index(min(group))
        high = max((i for i in range(GENERATIONS) if i != low), key=lambda i: (group[i], -i))
        found += [group[i] if i in (low, high) else None for i in range(GENERATIONS)]
    return found


def test_pods_is_stock_trl_on_the_groups_that_are_left(tiny_path, tmp_path):
    options = dict(loss_type="grpo", completion_prune_rate=0.5, accept_bias=True)
    mine, trainer = dppo_run(tiny_path, tmp_path, method="pods", **options)
    stock, _ = trl_run(tiny_path, tmp_path, loss_type="grpo", reward=pods_by_hand)
    twice = {name: 2 * gradient for name, gradient in stock[0].items()}  # its mean is over all 4, ours over the 2 kept
    assert relative_difference(mine[0], twice) < 1e-4
    assert set(trainer.in_use.batch.weight_UB.unique().tolist()) <= {0.0, 2.0}
    whole, _ = dppo_run(tiny_path, tmp_path, method="cppo", **options)
    assert relative_difference(whole[0], twice) > 1e-2


def divergence_by_hand(path):
    """Gradients of the paper's loss on the scripted completions. The behaviour policy is the rollout's."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompts = [prompt for prompt in problems(8)["prompt"] for _ in range(GENERATIONS)]
    made = scripted(prompts, SimpleNamespace(processing_class=tokenizer))
    texts = tokenizer.batch_decode(made["completion_ids"], skip_special_tokens=True)
    reward_PG = torch.tensor(length_reward(prompts, texts)).view(8, GENERATIONS)
    centred = reward_PG - reward_PG.mean(1, keepdim=True)
    advantage_N = (centred / (reward_PG.std(1, keepdim=True) + 1e-4)).flatten().tolist()
    loss, left_out = torch.zeros(()), 0
    for prompt, ids, sampled, advantage in zip(
        made["prompt_ids"], made["completion_ids"], made["logprobs"], advantage_N, strict=True
    ):
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logp, mu = logits.log_softmax(1)[range(len(ids)), ids], torch.tensor(sampled).exp()
        pi = logp.detach().exp()
        kept = (pi - mu <= 0.15) if advantage > 0 else (mu - pi <= 0.15)
        loss = loss - (kept * (pi / mu).clamp(max=20) * advantage * logp).sum()
        left_out += int((~kept).sum())
    (loss / sum(map(len, made["completion_ids"]))).backward()
    assert left_out > 20, "the trust region matters"
    return {name: p.grad for name, p in model.named_parameters()}


def test_a_trust_region_by_divergence_is_around_the_policy_that_sampled(tiny_path, tmp_path):
    def without_log_probs(prompts, trainer):
        return scripted(prompts, trainer) | {"logprobs": None}

    wanted = divergence_by_hand(tiny_path)
    mine, trainer = dppo_run(tiny_path, tmp_path, method="divergence_ppo_tv", accept_bias=True)
    assert relative_difference(mine[0], wanted) < 1e-4 and not trainer.biases
    told_nothing, on_policy = (
        dppo_run(tiny_path, tmp_path, method=method, accept_bias=True, rollout=without_log_probs)[0][0]
        for method in ("divergence_ppo_tv", "dapo_loss")
    )
    assert relative_difference(told_nothing, wanted) > 0.1, "the wrong twin takes the old policy for the sampler"
    assert relative_difference(told_nothing, on_policy) < 1e-5, "at ratio 1 no mask and no clip bites"


# Rounds of rollouts, by DAPO and GRESO.

DAPO = dict(method="dapo", loss_type="dapo", accept_bias=True)
GRESO = dict(method="greso", loss_type="grpo", accept_bias=True)
WANTED = 3


def retained(trainer):
    """Dataset rows of the groups that the last step was made of."""
    prompts = trainer.in_use.plan.prompts
    return prompts.row_Q[prompts.weight_Q > 0].tolist()


def stock(path, tmp_path, rows, **options):
    """TRL itself, on these rows of the same dataset and nothing else."""
    settings = {"reward": first_half_reward} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_gradients, "problems", lambda _: problems(10).select(rows))
        return trl_run(path, tmp_path, prompts=len(rows), shuffle_dataset=False, **settings)[0]


def rounds_run(path, folder, seen, **options):
    """A run whose prompts decide which groups have zero variance."""
    return trainer(path, folder, seen=seen, **ROUNDS | options)


def run(path, tmp_path, **options):
    """A run on 10 prompts, of which the first four have groups of differing rewards, in steps of three."""
    settings = dict(reward=first_half_reward, prompts=10, per_device_train_batch_size=WANTED * GENERATIONS)
    return dppo_run(path, tmp_path, **{**settings, **DAPO, **options})


def graded(prompts, completions, answer, **_):
    """Groups that differ for the first four problems, all right for even ones of the others, all wrong for odd ones."""
    rewards = [reward / 2 for reward in length_reward(prompts, completions)]
    return [r if int(n) < 4 else float(int(n) % 2 == 0) for r, n in zip(rewards, answer, strict=True)]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (DAPO, {}),
        (DAPO, {"beta": 0.2}),
        (DAPO, {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.5}),
        (GRESO, {"reward": graded}),
        (GRESO, {"reward": graded, "loss_type": "dapo"}),
    ],
)
def test_a_step_is_stock_trl_on_the_groups_retained(method, options, tiny_path, tmp_path, monkeypatch):
    mine, trainer = run(tiny_path, tmp_path, **method | options)
    rows = retained(trainer)
    assert set(rows) <= {0, 1, 2, 3} and len(trainer.in_use.plan.prompts.row_Q) > len(rows)
    assert method is GRESO or (len(rows) == WANTED and logged(trainer, "rollout/rounds")[0] >= 2)
    wanted = stock(tiny_path, tmp_path, rows, **{"loss_type": method["loss_type"]} | options)
    assert max(relative_difference(a, b) for a, b in zip(mine, wanted, strict=True)) < TOLERANCE
    if options:
        return
    rounds = PromptSource.rounds

    def everything(*args, **options):
        prompts = rounds(*args, **options)
        weight_Q = torch.ones_like(prompts.weight_Q)
        return replace(prompts, weight_Q=weight_Q, sequences=len(weight_Q) * GENERATIONS)

    monkeypatch.setattr(PromptSource, "rounds", everything)
    wrong, _ = run(tiny_path, tmp_path)
    assert relative_difference(wrong[0], wanted[0]) > 0.1, "the wrong twin: all groups rolled out stay in at weight 1"


def test_metrics_of_rounds_are_logged(tiny_path, tmp_path):
    _, trainer = run(tiny_path, tmp_path, max_steps=3)
    rounds, groups, unused, surplus, zero = (
        logged(trainer, f"rollout/{name}")
        for name in ("rounds", "groups", "groups_unused", "groups_surplus", "zero_variance_groups")
    )
    assert groups == [WANTED * r for r in rounds]
    assert unused == pytest.approx([1 - WANTED / g for g in groups])
    assert [z + s for z, s in zip(zero, surplus, strict=True)] == pytest.approx(unused)
    assert trainer.session.source.stream.epochs == pytest.approx(sum(groups) / 10)


@pytest.mark.skipif(not ON_CPU, reason="another device samples other completions, which may suffice elsewhere")
def test_a_run_that_reaches_the_limit_is_saved_before_it_stops(tiny_path, tmp_path):
    def flat_from_step_4(prompts, completions, trainer_state, **_):
        rewards = length_reward(prompts, completions)
        return [1.0 if trainer_state.global_step >= 4 else reward for reward in rewards]

    seen, options = [], {"save_steps": 100, "max_rounds": 2}
    stuck = rounds_run(tiny_path, tmp_path, seen, reward=flat_from_step_4, **options)
    with refused(RoundsError, "step 4", "2 rounds", "0 of 6", "checkpoint-4", "max_rounds: 4"):
        stuck.train()
    failed, folder, again = seen[-2:], tmp_path / "checkpoint-4", []
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[n], p) for n, p in stuck.model.state_dict().items() if n in saved)
    resumed = rounds_run(tiny_path, tmp_path, again, reward=length_reward, max_rounds=0)
    with warned("max_rounds: 2 -> 0"):
        resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.state.global_step == STEPS and again[0] == failed[0], "the same prompts are asked again"


def test_without_checkpoints_the_error_says_that_nothing_was_saved(tiny_path, tmp_path):
    with refused(RoundsError, "step 0", "10 rounds", "0 of 30", "no checkpoint"):
        run(tiny_path, tmp_path, reward=constant)


def test_what_greso_learned_is_resumed(tiny_path, tmp_path):
    """The wrong twin has lost it, and its exploration starts anew."""
    straight, after = [], []
    first = rounds_run(tiny_path, tmp_path / "a", straight, **GRESO)
    first.train()
    assert logged(first, "prune/prompts_kept_share")[-1] < 1 and logged(first, "prune/explore_hard")[-1] != 0.5

    def resumed(name, seen):
        made = rounds_run(tiny_path, tmp_path / name, seen, **GRESO)
        made.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
        return made.session.source.learned

    assert resumed("b", after) == first.session.source.learned
    assert straight[-len(after) :] == after and alike(tmp_path / "a", tmp_path / "b")

    file = tmp_path / "a" / "checkpoint-5" / "dppo_state.json"
    state = json.loads(file.read_text())
    assert state["session"]["source"]["learned"]["hard"] != 0.5
    for learned, told in ((None, contextlib.nullcontext()), ({"wrong": 1}, refused(CheckpointError, "damaged"))):
        session = {name: value for name, value in state["session"].items() if name != "checksum"}
        session["source"]["learned"] = learned
        state["session"] = sealed(session)
        file.write_text(json.dumps(state))
        with warned("dppo_state.json"), told:
            assert resumed("c", []) != first.session.source.learned


def test_a_step_that_lacks_groups_goes_on_with_what_there_is(tiny_path, tmp_path):
    def one_problem(prompts, completions, answer, **_):
        rewards = length_reward(prompts, completions)
        return [r if int(n) == 3 else 0.0 for r, n in zip(rewards, answer, strict=True)]

    options = GRESO | {"reward": one_problem, "max_rounds": 2, "shuffle_dataset": False}
    _, made = run(tiny_path, tmp_path, **options)
    assert retained(made) == [3] and made.in_use.batch.sizes.denominator == GENERATIONS
