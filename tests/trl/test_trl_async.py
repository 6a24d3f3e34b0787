"""TRL's asynchronous trainer with pruning: gradients, bias, groups in any order, resuming."""

import itertools
import json
from dataclasses import replace
from functools import partial

import async_two_ranks
import numpy as np
import pytest
import torch
from arrays import candidates_of
from async_runs import GENERATIONS as G
from async_runs import NoTransfer, ScriptedWorker, StockWorker, gradients, group_of, ours, stock
from peft import LoraConfig
from refusals import refused, warned
from tiny_runs import logged, problems, relative_difference, two_processes
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.packing import TREE_ATTENTION, TreeRow, register_tree_attention
from trl_gradients import mean_over_draws, unweighted

from dppo.errors import CheckpointError, ConfigError, EngineError
from dppo.step.in_flight import InFlight
from dppo.step.records import drawn_block, whole_block
from dppo.trl.async_grpo import steps
from dppo.trl.async_grpo.attention import serve_tree_attention
from dppo.trl.async_grpo.config import DPPOAsyncConfig
from dppo.trl.async_grpo.trainer import DPPOAsyncTrainer
from dppo.types import Block, Draw

SMALL = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_steps": 1}
"""Two groups a step in one call of the loss."""


# -- attention --------------------------------------------------------------------------------------------------------


def samples_of(groups):
    names = ("input_ids", "completion_mask", "old_log_probs", "advantage")
    return [
        {name: getattr(sample, name) for name in names} | {"group_id": group.group_id, "metrics": {}}
        for group in groups
        for sample in group.samples
    ]


@pytest.mark.parametrize("window", [None, 3])
def test_tries_are_scored_as_single_sequences(tiny_path, window):
    register_tree_attention()
    assert serve_tree_attention(torch.device("cpu")) == "sdpa per segment"
    load = partial(AutoModelForCausalLM.from_pretrained, tiny_path, dtype=torch.float64)
    if window is not None:
        load = partial(load, sliding_window=window, use_sliding_window=True, max_window_layers=0,
                       layer_types=["sliding_attention"] * 2)  # fmt: skip
    tree, plain = load(attn_implementation=TREE_ATTENTION), load(attn_implementation="eager")
    row = steps.TokenRow(samples_of([group_of(0, 0, forks=True), group_of(1, 1)]))
    packed = TreeRow.pack(row)
    longest = packed.pop("tree_max_seqlens").tolist()
    indices = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    logits = tree(
        input_ids=packed["input_ids"][None],
        position_ids=packed["position_ids"][None],
        tree_max_seqlen_q=longest[0],
        tree_max_seqlen_k=longest[1],
        **indices,
    ).logits[0]
    assert len(packed["input_ids"]) < sum(len(sample["input_ids"]) for sample in row.samples)  # prompts once
    place = 0
    for sample in row.samples:
        alone = plain(input_ids=torch.tensor(sample["input_ids"])[None]).logits[0]
        for token in np.flatnonzero(sample["completion_mask"][1:]):
            found = logits[packed["token_index"][place]]
            torch.testing.assert_close(found, alone[token], rtol=1e-5, atol=1e-5)
            place += 1


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forks", [False, True])
def test_with_nothing_pruned_the_gradient_is_that_of_trl(tiny_path, tmp_path, forks):
    samples = sum(len(group_of(row, row, forks=forks).samples) for row in (0, 1))  # TRL counts rows, not completions
    worker = StockWorker(range(4), forks=forks)
    (expected,) = gradients(stock(tiny_path, tmp_path / "stock", worker, per_device_train_batch_size=samples))
    trainer = ours(tiny_path, tmp_path / "ours", ScriptedWorker(forks=forks), method="grpo", **SMALL)
    assert relative_difference(gradients(trainer)[0], expected) < 3e-6


def test_accumulation_divides_by_the_tokens_of_the_whole_step(tiny_path, tmp_path):
    (expected,) = gradients(stock(tiny_path, tmp_path / "stock", StockWorker(range(4))))
    two_calls = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    found = gradients(ours(tiny_path, tmp_path / "ours", method="grpo", **SMALL | two_calls))
    assert relative_difference(found[0], expected) < 3e-6
    # TRL takes a mean of two means, whose numbers of tokens differ here.
    (of_means,) = gradients(stock(tiny_path, tmp_path / "means", StockWorker(range(4)), **two_calls))
    assert relative_difference(of_means, expected) > 1e-3


def test_groups_of_equal_rewards_cost_nothing_and_change_nothing(tiny_path, tmp_path):
    flat = {1, 3}.__contains__
    (expected,) = gradients(stock(tiny_path, tmp_path / "stock", StockWorker(range(4), flat=flat)))
    trainer = ours(tiny_path, tmp_path / "ours", ScriptedWorker(flat=flat), method="grpo", **SMALL)
    assert relative_difference(gradients(trainer)[0], expected) < 3e-6
    rewards = [s.metrics["reward"] for row in (0, 1) for s in group_of(row, row, flat=flat(row)).samples]
    assert logged(trainer, "reward")[0] == pytest.approx(np.mean(rewards))
    assert logged(trainer, "batch/samples_per_step")[0] == G
    assert logged(trainer, "candidates/zero_variance_groups")[0] == 0.5


def test_a_step_without_a_signal_is_a_step_with_a_gradient_of_zero(tiny_path, tmp_path, monkeypatch):
    trainer = ours(tiny_path, tmp_path, ScriptedWorker(flat=lambda row: True), method="grpo", weight_decay=0.1)
    monkeypatch.setattr(trainer, "_row_loss", None)  # nothing is forwarded
    found = gradients(trainer)
    assert len(found) == 2 and all(not value.any() for each in found for value in each.values())
    assert found[0].keys() == dict(trainer.model.named_parameters()).keys()  # weights decay as TRL's would
    assert trainer.state.log_history[0]["batch/microbatches_per_step"] == 2


def gradient_of(trainer, plan, completions):
    """The gradient of a plan through the trainer's own rows and loss."""
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    (call,) = trainer.passes_of(plan, completions)
    rows = [{name: x.double() if x.is_floating_point() else x for name, x in row.items()} for row in call]
    trainer.compute_loss(trainer.model, {"rows": rows}).backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def full_and_mean(path, folder, *, forget="", **options):
    """The full batch's gradient, and the mean over every draw of a method."""
    trainer = ours(path, folder, **SMALL | options)
    trainer.model.double()
    groups = [group_of(0, 0, forks=True), group_of(1, 1)]
    completions = [steps.Completion(rows, place) for place, group in enumerate(groups) for rows in group.completions]

    def gradient(tape):
        plan = trainer.session.plan(
            whole_block(2, 2 * G),
            steps.rolled_out(completions, tokens=trainer.session.method.tokens.active),
            streams=lambda *_: tape,
            advantages=steps.given_advantages(completions),
        )
        if forget == "weights":
            plan = unweighted(plan)
        if forget == "denominator":
            kept = plan.completions.tokens_N[plan.kept(0)].sum()
            plan = replace(plan, sizes=plan.sizes._replace(denominator=float(kept)))
        return gradient_of(trainer, plan, completions)

    return mean_over_draws(trainer.session, gradient)


PROBABILITIES = (0.9, 0.5, 0.3)
"""Of three candidate prompts."""


def full_and_mean_over_prompts(path, folder, *, loss_type, forget=""):
    """As ``full_and_mean``, over every set of prompts that is requested; their groups come back in another order."""
    trainer = ours(path, folder, **SMALL, rows=3, completion_prune_rate=0.0, loss_type=loss_type)
    trainer.model.double()
    flying = InFlight(prompts=len(PROBABILITIES), generations=G)

    def gradient(keep_P, prob_P):
        weight_P = torch.where(keep_P, 1 / prob_P, 0.0)
        if forget:
            weight_P = keep_P.double()
        drawn = Draw(keep_N=keep_P, prob_N=prob_P, weight_N=weight_P)
        block = Block(candidates=candidates_of([1.0] * len(keep_P)), draw=drawn)
        rows = keep_P.nonzero()[:, 0].tolist()
        session = flying.after_block(drawn_block(block, G), [str(row) for row in rows])
        requested, _ = session.after_update({str(row) for row in reversed(rows)})
        groups = [group_of(row, row) for row in rows]
        trainer.session.samples = None
        return gradient_of(trainer, *steps.planned(trainer.session, requested, groups, 0, 0.0))

    trainer.session.source = None  # nothing is learned from one group for the next
    full = gradient(torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64))
    prob_P, mean = torch.tensor(PROBABILITIES, dtype=torch.float64), dict.fromkeys(full, 0.0)
    for kept in itertools.product((True, False), repeat=3):
        keep_P = torch.tensor(kept)
        if not any(kept):
            continue  # its gradient is zero
        chance, found = torch.where(keep_P, prob_P, 1 - prob_P).prod(), gradient(keep_P, prob_P)
        mean = {name: mean[name] + chance * found[name] for name in full}
    return full, mean


def test_the_expected_gradient_over_prompts_is_that_of_all(tiny_path, tmp_path):
    full, mean = full_and_mean_over_prompts(tiny_path, tmp_path, loss_type="dr_grpo")
    assert relative_difference(mean, full) < 1e-6


@pytest.mark.parametrize(("loss_type", "forget"), [("dr_grpo", "weights"), ("dapo", "")])
def test_prompts_without_weights_or_with_their_own_denominator_are_seen(tiny_path, tmp_path, loss_type, forget):
    """``dapo`` divides by tokens that are rolled out, which follow the draw: it is declared as biased."""
    full, mean = full_and_mean_over_prompts(tiny_path, tmp_path, loss_type=loss_type, forget=forget)
    assert relative_difference(mean, full) > 1e-2


DRAWS = {
    "completions": {"completion_prune_rate": 0.5, "prune_floor": 0.1},
    "cuts": {"token_prune_rate": 0.4},
    "head": {"head_prune_rate": 0.5, "completion_prune_rate": 0.0},
    "both": {"completion_prune_rate": 0.3, "token_prune_rate": 0.3},
}


@pytest.mark.parametrize("options", DRAWS.values(), ids=DRAWS)
def test_the_expected_gradient_is_that_of_the_full_batch(tiny_path, tmp_path, options):
    full, mean = full_and_mean(tiny_path, tmp_path, **options)
    assert relative_difference(mean, full) < 1e-6


@pytest.mark.parametrize("forget", ["weights", "denominator"])
def test_a_wrong_estimator_is_seen(tiny_path, tmp_path, forget):
    full, mean = full_and_mean(tiny_path, tmp_path, forget=forget, **DRAWS["completions"])
    assert relative_difference(mean, full) > 1e-2


@pytest.mark.slow  # two more processes: tests/trl/test_trl_ranks.py is quick
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_have_the_gradient_of_one(tiny_path, tmp_path, kind):
    two_processes("async_two_ranks.py", tiny_path, tmp_path, kind)
    found = torch.load(tmp_path / "gradients.pt")
    for name, expected in async_two_ranks.run(tiny_path, tmp_path / "one", 1).items():
        assert len(found[name]) == len(expected) == 3
        signal = [any(value.any() for value in each.values()) for each in expected]
        assert any(signal) == (name != "nothing")
        for here, whole, has_signal in zip(found[name], expected, signal, strict=True):
            assert here.keys() == whole.keys()
            assert any(value.any() for value in here.values()) == has_signal
            assert not has_signal or relative_difference(here, whole) < 1e-3, name  # of weights after Adam's steps


def test_rows_keep_to_a_budget_and_every_process_has_as_many():
    samples = samples_of([group_of(number, number) for number in range(5)])
    for ranks, budget in ((1, 30), (2, 30), (3, None), (3, 1000)):
        rows = steps.rows_of(samples, ranks, budget=budget, per_row=4)
        assert len(rows) % ranks == 0 and all(row.samples for row in rows)
        assert sorted(id(s["input_ids"]) for row in rows for s in row.samples) == sorted(
            id(s["input_ids"]) for s in samples
        )
        assert budget is None or all(len(row.tokens) <= budget for row in rows)
    few = steps.rows_of(samples[:2], 3, budget=None, per_row=4)  # fewer samples than processes
    assert sorted(sum(s["advantage"] != 0 for s in row.samples) for row in few) == [0, 1, 1]
    assert steps.rows_of([], 2, budget=None, per_row=4) == []


# -- groups -----------------------------------------------------------------------------------------------------------


def trained_ids(trainer, **options):
    found, original = [], trainer.passes_of

    def record(plan, completions):
        found.append(list(trainer._trained))
        return original(plan, completions)

    trainer.passes_of = record
    trainer.train(**options)
    return found


def all_ids(trainer):
    return [number for each in trained_ids(trainer) for number in each]


def test_the_last_call_of_a_step_has_all_rows(tiny_path, tmp_path):
    calls = itertools.islice(ours(tiny_path, tmp_path).get_train_dataloader(), 4)
    assert [len(call["rows"]) > 0 for call in calls] == [False, True] * 2


def test_groups_come_back_in_any_order(tiny_path, tmp_path):
    held = []

    def late(group, worker):
        held.append(group)
        return [held.pop(), held.pop(), held.pop()] if len(held) == 3 else []

    trainer = ours(tiny_path, tmp_path, ScriptedWorker(late), max_steps=4)
    found = trained_ids(trainer)
    assert [len(each) for each in found] == [2] * 4
    flat = [number for each in found for number in each]
    assert len(set(flat)) == 8 and flat != sorted(flat)
    assert all(each == sorted(each) for each in found)  # in the order of the requests, whichever came first


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda group: [], "sample/requested_again_total"),
        (lambda group: [replace(group, model_version=-5)], "sample/dropped_stale_total"),
    ],
    ids=["lost", "stale"],
)
def test_a_group_that_is_lost_or_stale_is_asked_for_again(change, counted, tiny_path, tmp_path):
    worker = ScriptedWorker(lambda group, worker: change(group) if group.group_id == 1 else [group])
    trainer = ours(tiny_path, tmp_path, worker, rows=30, max_steps=8, max_staleness=1)
    found, rows = all_ids(trainer), dict(worker.asked)
    assert 1 not in found and [rows[number] for number in found].count(rows[1]) == 1
    assert sum(logged(trainer, counted)) == 1


class Patient(ScriptedWorker):
    """A worker that is well, whatever does not come."""

    def check_health(self, stale_after_s):
        pass


@pytest.mark.parametrize(("max_staleness", "lost"), [(0, {1}), (1, {0, 1, 2})])
def test_groups_without_which_no_step_can_be_made_are_asked_for_again(
    tiny_path, tmp_path, monkeypatch, max_staleness, lost
):
    monkeypatch.setattr("dppo.trl.async_grpo.stream.POLL_SECONDS", 0.01)
    worker = Patient(lambda group, worker: [group] * (group.group_id not in lost))
    trainer = ours(tiny_path, tmp_path, worker, max_staleness=max_staleness, heartbeat_stale_after_s=0.02)
    assert len(all_ids(trainer)) == 4


def test_a_group_that_took_longer_than_a_step_is_not_overtaken_until_it_is_stale(tiny_path, tmp_path):
    held = []

    def late(group, worker):  # every fourth row comes when six more groups were asked for
        held.append((len(worker.asked) + 6 * (group.group_id % 4 == 0), group))
        back = [each for due, each in held if due <= len(worker.asked)]
        held[:] = [(due, each) for due, each in held if due > len(worker.asked)]
        return back

    trainer = ours(tiny_path, tmp_path, ScriptedWorker(late), max_steps=12, max_staleness=3, rows=30)
    ids = all_ids(trainer)
    assert len(ids) == 24 and ids != sorted(ids)
    assert sum(logged(trainer, "sample/dropped_stale_total")) == 0


def test_a_group_is_trained_on_once(tiny_path, tmp_path):
    worker = ScriptedWorker(lambda group, worker: [group, group, group_of(10_000, 0)])
    trainer = ours(tiny_path, tmp_path, worker, max_steps=4)
    found = all_ids(trainer)
    assert len(found) == len(set(found)) == 8 and 10_000 not in found
    assert trainer.state.log_history[0]["sample/unrequested_total"] > 0


def test_a_group_too_long_for_a_row_is_replaced_by_another_prompt(tiny_path, tmp_path):
    def long(group, worker):
        if group.group_id == 0:
            first = group.completions[0][0]
            first.input_ids = np.concatenate([first.input_ids, np.full(60, 4)])
            first.completion_mask = np.concatenate([first.completion_mask, np.ones(60, int)])
            first.old_log_probs = np.concatenate([first.old_log_probs, np.zeros(60, np.float32)])
        return [group]

    trainer = ours(tiny_path, tmp_path, ScriptedWorker(long), max_steps=3, token_budget=50)
    with pytest.warns(UserWarning, match="token_budget=50"):
        assert 0 not in all_ids(trainer)
    assert sum(logged(trainer, "batch/dropped_oversize_total")) == 1


@pytest.mark.filterwarnings("ignore:a group is left out")
@pytest.mark.parametrize("change", ["long", "old"])
def test_a_run_in_which_no_group_can_be_trained_on_ends(tiny_path, tmp_path, change):
    worker, budget = ScriptedWorker(), 5
    if change == "old":
        worker, budget = ScriptedWorker(lambda group, worker: [replace(group, model_version=-9)]), 0
    trainer = ours(tiny_path, tmp_path, worker, token_budget=budget)
    with pytest.raises(EngineError, match="token_budget=5" if change == "long" else "update_model_version"):
        trainer.train()


def test_an_epoch_counts_candidates_and_schedules_follow_it(tiny_path, tmp_path):
    options = {"completion_prune_rate": 0.5, "prune_schedule": "stop", "prune_until": 0.5}
    trainer = ours(tiny_path, tmp_path, rows=6, max_steps=-1, num_train_epochs=2, **options)
    assert len(trained_ids(trainer)) == 6 and trainer.state.global_step == 6
    rates = [each["prune/completion_rate"] for each in trainer.state.log_history if "loss" in each]
    assert rates[:3] == pytest.approx([0.5] * 3, abs=0.2) and rates[3:] == [0] * 3


def test_an_epoch_of_longer_blocks_counts_all_their_candidates(tiny_path, tmp_path):
    options = {"prompt_prune_rate": 0.5, "prompt_mode": "fill", "loss_type": "dr_grpo", "num_train_epochs": 6}
    worker = ScriptedWorker(flat=lambda row: row % 3 > 0)
    trainer = ours(tiny_path, tmp_path, worker, rows=24, max_steps=-1, per_device_train_batch_size=8, **options)
    trainer.train()
    ahead = 3 * 2 * 4  # blocks that were requested and not trained on are at most twice as long as a step
    assert 6 * 24 <= trainer.session.source.stream.epochs * 24 <= 6 * 24 + ahead + 8


def test_a_second_run_of_a_trainer_uses_no_number_twice(tiny_path, tmp_path):
    trainer = ours(tiny_path, tmp_path)
    first = all_ids(trainer)
    asked = list(trainer.rollout_worker.asked)
    trainer.train()
    again = trainer.rollout_worker.asked[len(asked) :]
    assert {*first}.isdisjoint(number for number, _ in again)
    new = [number for number, row in again if (number, row) not in asked]
    assert min(new) > max(number for number, _ in asked)


def test_an_adapter_trains(tiny_path, tmp_path):
    trainer = ours(tiny_path, tmp_path, peft_config=LoraConfig(target_modules="all-linear", r=2))
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert all("lora" in name for name in before)
    assert any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters() if name in before)


def test_prompts_are_pruned_with_their_probabilities(tiny_path, tmp_path, monkeypatch):
    options = {"per_device_train_batch_size": 16, "prompt_prune_rate": 0.4, "loss_type": "dr_grpo", "max_steps": 12}
    found, original = [], steps.planned

    def record(*args):
        plan, completions = original(*args)
        found.append(plan.prompts)
        return plan, completions

    monkeypatch.setattr(steps, "planned", record)
    ours(tiny_path, tmp_path, ScriptedWorker(flat=range(5).__contains__), **options).train()
    assert min(len(each.row_Q) for each in found) < 8  # fewer are rolled out once there is a history
    assert all(bool((each.prob_Q * each.draw.weight_N[each.draw.keep_N] - 1).abs().max() < 1e-9) for each in found)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:resumed with max_steps")
def test_a_resumed_run_equals_one_that_was_not_interrupted(tiny_path, tmp_path):
    options = {"completion_prune_rate": 0.5, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = ours(tiny_path, tmp_path / "whole", **options)
    expected = trained_ids(whole)
    ours(tiny_path, tmp_path / "cut", **options | {"max_steps": 3}).train()
    resumed = ours(tiny_path, tmp_path / "cut", **options)
    assert trained_ids(resumed, resume_from_checkpoint=True) == expected[3:]
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # What was in flight is asked for under the same numbers, and nothing twice.
    assert len(set(resumed.rollout_worker.asked)) == len(resumed.rollout_worker.asked)


def test_a_state_of_other_prompts_and_a_damaged_one_are_refused(tiny_path, tmp_path):
    ours(tiny_path, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    with warned("per_device_train_batch_size"), refused(CheckpointError, "num_generations"):
        ours(tiny_path, tmp_path, per_device_train_batch_size=8).train(resume_from_checkpoint=True)
    state = tmp_path / "checkpoint-1" / "dppo_state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"next_id": "many"}))
    with warned("changed since"), refused(CheckpointError, "is damaged or of another version"):
        ours(tiny_path, tmp_path).train(resume_from_checkpoint=True)


# -- what is refused --------------------------------------------------------------------------------------------------


REFUSED = {
    "router": ({"router_aux_loss_coef": 0.1}, "router_aux_loss_coef"),
    "objective": ({"method": "gspo"}, "token_loss"),
    "rounds": ({"method": "dapo"}, "rounds"),
    "ratio": ({"prompt_prune_rate": 0.3}, "loss_type: dr_grpo"),
    "biased": ({"method": "cppo"}, "accept_bias"),
    "alone": ({"num_generations": 1}, "num_generations"),
    "field": ({"prompt_prune": 0.3}, "prompt_prune"),
    "groups": ({"num_generations": 6}, "gradient_accumulation_steps: 3"),
}


@pytest.mark.parametrize(("options", "named"), REFUSED.values(), ids=REFUSED)
def test_options_that_would_be_silently_wrong_are_refused(tiny_path, tmp_path, options, named):
    with pytest.raises(ConfigError, match=named):
        ours(tiny_path, tmp_path, **options)


def test_workers_and_data_without_requests_are_refused(tiny_path, tmp_path):
    args = DPPOAsyncConfig(str(tmp_path), bf16=False, use_cpu=True, report_to="none")
    with pytest.raises(ConfigError, match="request"):
        DPPOAsyncTrainer(tiny_path, args=args, train_dataset=problems(4), rollout_worker=NoTransfer())
    streamed = problems(4).to_iterable_dataset()
    with pytest.raises(ConfigError, match="streaming"):
        DPPOAsyncTrainer(tiny_path, args=args, train_dataset=streamed, rollout_worker=ScriptedWorker())


def test_a_worker_that_sends_single_samples_is_refused(tiny_path, tmp_path):
    trainer = ours(tiny_path, tmp_path, ScriptedWorker(lambda group, worker: group.samples))
    with pytest.raises(EngineError, match=RolloutSample.__name__):
        trainer.train()


def test_a_worker_that_has_died_ends_the_run(tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr("dppo.trl.async_grpo.stream.POLL_SECONDS", 0.01)
    trainer = ours(tiny_path, tmp_path, ScriptedWorker(lambda group, worker: []))
    with pytest.raises(RuntimeError, match="nothing comes"):
        trainer.train()
