"""TRL's asynchronous trainer with pruning: gradients, bias, groups in any order, resuming."""

import itertools
import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import candidates_of
from async_runs import GENERATIONS as G
from async_runs import (
    ONE_CALL,
    TWO_CALLS,
    NoTransfer,
    ScriptedWorker,
    StockWorker,
    gradients,
    group_of,
    on_ranks,
    ours,
    stock,
)
from peft import LoraConfig
from refusals import refused, warned
from tiny_runs import logged, problems, relative_difference, two_processes
from transformers import AutoModelForCausalLM
from trl.experimental.async_grpo.packing import TREE_ATTENTION, TreeRow, register_tree_attention
from trl_gradients import mean_over_draws, unweighted

from dppo.errors import CheckpointError, ConfigError, EngineError
from dppo.step.in_flight import InFlight
from dppo.step.records import drawn_block, whole_block
from dppo.trl.async_grpo import steps, stream
from dppo.trl.async_grpo.attention import serve_tree_attention
from dppo.types import Block, Draw

# -- rows -------------------------------------------------------------------------------------------------------------


def samples_of(*groups):
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
    row = steps.TokenRow(samples_of(group_of(0, 0, forks=True), group_of(1, 1)))
    packed = TreeRow.pack(row)
    longest = packed.pop("tree_max_seqlens").tolist()
    inputs = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    inputs |= {"tree_max_seqlen_q": longest[0], "tree_max_seqlen_k": longest[1]}
    logits = tree(packed["input_ids"][None], position_ids=packed["position_ids"][None], **inputs).logits[0]
    assert len(packed["input_ids"]) < sum(len(sample["input_ids"]) for sample in row.samples)  # prompts once
    expected = [
        plain(torch.tensor(sample["input_ids"])[None]).logits[0, np.flatnonzero(sample["completion_mask"][1:])]
        for sample in row.samples
    ]
    torch.testing.assert_close(logits[packed["token_index"]], torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_rows_keep_to_a_budget_and_every_process_has_as_many():
    samples = samples_of(*(group_of(number, number) for number in range(5)))
    for ranks, budget in ((1, 30), (2, 30), (3, None), (3, 1000)):
        rows = steps.rows_of(samples, ranks, budget=budget, per_row=4)
        assert len(rows) % ranks == 0 and all(row.samples for row in rows)
        dealt = [sample for row in rows for sample in row.samples]
        assert sorted(id(each["input_ids"]) for each in dealt) == sorted(id(each["input_ids"]) for each in samples)
        assert budget is None or all(len(row.tokens) <= budget for row in rows)
    few = steps.rows_of(samples[:2], 3, budget=None, per_row=4)  # fewer samples than processes
    assert sorted(sum(s["advantage"] != 0 for s in row.samples) for row in few) == [0, 1, 1]
    assert steps.rows_of([], 2, budget=None, per_row=4) == []


# -- gradients --------------------------------------------------------------------------------------------------------


CONTRACT = {
    "one call": (ONE_CALL, False, ()),
    "forks": (ONE_CALL, True, ()),
    "two calls": (TWO_CALLS, False, ()),
    "equal rewards in a group": (ONE_CALL, False, (1, 3)),
}


@pytest.mark.parametrize(("calls", "forks", "flat"), CONTRACT.values(), ids=CONTRACT)
def test_with_nothing_pruned_the_gradient_is_that_of_trl(calls, forks, flat, tiny_path, tmp_path):
    """TRL makes one call, because it counts rows. Groups of equal rewards cost nothing."""
    groups = [group_of(row, row, forks=forks, flat=row in flat) for row in (0, 1)]
    rows = samples_of(*groups)
    theirs = StockWorker(forks=forks, flat=flat)
    (expected,) = gradients(stock(tiny_path, tmp_path / "stock", theirs, per_device_train_batch_size=len(rows)))
    worker = ScriptedWorker(forks=forks, flat=flat)
    trainer = ours(tiny_path, tmp_path / "ours", worker, method="grpo", **calls | {"max_steps": 1})
    assert relative_difference(gradients(trainer)[0], expected) < 3e-6
    signal = sum(row["advantage"] != 0 for row in rows)
    assert logged(trainer, "batch/samples_per_step")[0] == pytest.approx(signal)
    rewards = [rows[0].metrics["reward"] for group in groups for rows in group.completions]
    assert logged(trainer, "reward")[0] == pytest.approx(np.mean(rewards))
    assert logged(trainer, "candidates/zero_variance_groups")[0] == (0.5 if flat else 0.0)
    if calls is TWO_CALLS:  # of which TRL takes the mean, and their numbers of tokens differ
        (of_means,) = gradients(stock(tiny_path, tmp_path / "means", StockWorker(), **calls))
        assert relative_difference(of_means, expected) > 1e-3


def test_a_step_without_a_signal_is_a_step_with_a_gradient_of_zero(tiny_path, tmp_path, monkeypatch):
    trainer = ours(tiny_path, tmp_path, ScriptedWorker(flat=range(8)), method="grpo", weight_decay=0.1)
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


def over_kept(plan):
    kept = plan.completions.tokens_N[plan.kept(0)].sum()
    return replace(plan, sizes=plan.sizes._replace(denominator=float(kept)))


COMPLETIONS = {"completion_prune_rate": 0.5, "prune_floor": 0.1}
DRAWS = {
    "completions": (COMPLETIONS, None),
    "cuts": ({"token_prune_rate": 0.4}, None),
    "head": ({"head_prune_rate": 0.5, "completion_prune_rate": 0.0}, None),
    "both": ({"completion_prune_rate": 0.3, "token_prune_rate": 0.3}, None),
    "wrong: without weights": (COMPLETIONS, unweighted),
    "wrong: over the kept tokens": (COMPLETIONS, over_kept),
}


@pytest.mark.parametrize(("options", "wrong"), DRAWS.values(), ids=DRAWS)
def test_the_expected_gradient_is_that_of_the_full_batch(options, wrong, tiny_path, tmp_path):
    trainer = ours(tiny_path, tmp_path, **ONE_CALL | options)
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
        return gradient_of(trainer, wrong(plan) if wrong else plan, completions)

    full, mean = mean_over_draws(trainer.session, gradient)
    error = relative_difference(mean, full)
    assert error > 1e-2 if wrong else error < 1e-6


@pytest.mark.parametrize(
    ("loss_type", "weighted", "unbiased"), [("dr_grpo", True, True), ("dr_grpo", False, False), ("dapo", True, False)]
)
def test_the_expected_gradient_over_prompts_is_that_of_all(loss_type, weighted, unbiased, tiny_path, tmp_path):
    """Over every set of three that is requested. ``dapo`` divides by tokens that are rolled out, which follow the draw:
    it is declared as biased."""
    prob_P = torch.tensor([0.9, 0.5, 0.3], dtype=torch.float64)
    trainer = ours(tiny_path, tmp_path, **ONE_CALL, data=problems(3), completion_prune_rate=0.0, loss_type=loss_type)
    trainer.model.double()
    trainer.session.source = None  # nothing is learned from one group for the next

    def gradient(keep_P, prob_P):
        weight_P = torch.where(keep_P, 1 / prob_P, 0.0) if weighted else keep_P.double()
        drawn = Draw(keep_N=keep_P, prob_N=prob_P, weight_N=weight_P)
        block = Block(candidates=candidates_of([1.0] * len(keep_P)), draw=drawn)
        rows = keep_P.nonzero()[:, 0].tolist()
        flying = InFlight(prompts=len(keep_P), generations=G)
        flying = flying.after_block(drawn_block(block, G), [str(row) for row in rows])
        requested, _ = flying.after_update({str(row) for row in rows})
        trainer.session.samples = None
        groups = [group_of(row, row) for row in rows]
        return gradient_of(trainer, *steps.planned(trainer.session, requested, groups, 0, 0.0))

    full = gradient(torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64))
    mean = dict.fromkeys(full, 0.0)
    for kept in itertools.product((True, False), repeat=3):
        if any(kept):  # the gradient of none is zero
            keep_P = torch.tensor(kept)
            chance, found = torch.where(keep_P, prob_P, 1 - prob_P).prod(), gradient(keep_P, prob_P)
            mean = {name: mean[name] + chance * found[name] for name in full}
    error = relative_difference(mean, full)
    assert error < 1e-6 if unbiased else error > 1e-2


@pytest.mark.slow  # two more processes: tests/trl/test_trl_ranks.py is quick
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_have_the_gradient_of_one(tiny_path, tmp_path, kind):
    two_processes("async_runs.py", tiny_path, tmp_path, kind)
    found = torch.load(tmp_path / "gradients.pt")
    for name, expected in on_ranks(tiny_path, tmp_path / "one", 1).items():
        assert len(found[name]) == len(expected) == 3
        signal = [any(value.any() for value in each.values()) for each in expected]
        assert any(signal) == (name != "nothing")
        for here, whole, has_signal in zip(found[name], expected, signal, strict=True):
            assert here.keys() == whole.keys()
            assert any(value.any() for value in here.values()) == has_signal
            assert not has_signal or relative_difference(here, whole) < 1e-3, name  # of weights after Adam's steps


# -- groups -----------------------------------------------------------------------------------------------------------


def trained_ids(trainer, **options):
    """Numbers of the groups of each step."""
    found, original = [], trainer.passes_of

    def record(plan, completions):
        found.append([*trainer._trained])
        return original(plan, completions)

    trainer.passes_of = record
    trainer.train(**options)
    return found


def test_the_last_call_of_a_step_has_all_rows(tiny_path, tmp_path):
    calls = itertools.islice(ours(tiny_path, tmp_path).get_train_dataloader(), 4)
    assert [len(call["rows"]) > 0 for call in calls] == [False, True] * 2


def test_groups_come_back_late_in_any_order_twice_or_unasked(tiny_path, tmp_path):
    """One that took longer than a step is not overtaken until it is stale."""
    held = []

    def late(group, worker):  # every fourth row comes when six more groups were asked for
        held.append((len(worker.asked) + 6 * (group.group_id % 4 == 0), group))
        back = [each for due, each in held if due <= len(worker.asked)]
        held[:] = [(due, each) for due, each in held if due > len(worker.asked)]
        return [*back, *back[:1], group_of(10_000, 0)]

    trainer = ours(tiny_path, tmp_path, ScriptedWorker(late), max_steps=12, max_staleness=3, data=problems(30))
    found = trained_ids(trainer)
    ids = [*itertools.chain(*found)]
    assert len(ids) == len(set(ids)) == 24 and ids != sorted(ids) and 10_000 not in ids
    assert all(len(each) == 2 and each == sorted(each) for each in found)  # in the order of the requests
    assert sum(logged(trainer, "sample/dropped_stale_total")) == 0
    assert trainer.state.log_history[0]["sample/unrequested_total"] > 0


def too_long(group):
    sample = group.completions[0][0]
    for name in ("input_ids", "completion_mask", "old_log_probs"):
        setattr(sample, name, np.resize(getattr(sample, name), 60))
    return [group]


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda group: [], "sample/requested_again_total"),
        (lambda group: [replace(group, model_version=-5)], "sample/dropped_stale_total"),
        (too_long, "batch/dropped_oversize_total"),
    ],
    ids=["lost", "stale", "too long"],
)
def test_a_group_that_cannot_be_trained_on_is_asked_for_again_or_replaced(change, counted, tiny_path, tmp_path):
    worker = ScriptedWorker(lambda group, worker: change(group) if group.group_id == 1 else [group])
    options = {"max_steps": 8, "max_staleness": 1, "token_budget": 50, "data": problems(30)}
    trainer = ours(tiny_path, tmp_path, worker, **options)
    with warned("token_budget=50") if change is too_long else nullcontext():
        ids = [*itertools.chain(*trained_ids(trainer))]
    rows = dict(worker.asked)
    assert 1 not in ids and [rows[number] for number in ids].count(rows[1]) == (change is not too_long)
    assert sum(logged(trainer, counted)) == 1


@pytest.mark.parametrize(("max_staleness", "lost"), [(0, {1}), (1, {0, 1, 2})])
def test_groups_without_which_no_step_can_be_made_are_asked_for_again(
    max_staleness, lost, tiny_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ScriptedWorker, "check_health", lambda *_: None)
    worker = ScriptedWorker(lambda group, worker: [group] * (group.group_id not in lost))
    trainer = ours(tiny_path, tmp_path, worker, max_staleness=max_staleness, heartbeat_stale_after_s=0.02)
    assert [len(each) for each in trained_ids(trainer)] == [2, 2]


@pytest.mark.filterwarnings("ignore:a group is left out")
@pytest.mark.parametrize(
    ("change", "budget", "error", "named"),
    [
        (lambda group: [group], 5, EngineError, "token_budget=5"),
        (lambda group: [replace(group, model_version=-9)], 0, EngineError, "update_model_version"),
        (lambda group: group.samples, 0, EngineError, "RolloutSample"),
        (lambda group: [], 0, RuntimeError, "nothing comes"),
    ],
    ids=["all too long", "all stale", "single samples", "dead"],
)
def test_a_worker_that_sends_nothing_of_use_ends_the_run(
    change, budget, error, named, tiny_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    trainer = ours(tiny_path, tmp_path, ScriptedWorker(lambda group, worker: change(group)), token_budget=budget)
    with refused(error, named):
        trainer.train()


def test_an_epoch_counts_candidates_and_schedules_follow_it(tiny_path, tmp_path):
    options = {"completion_prune_rate": 0.5, "prune_schedule": "stop", "prune_until": 0.5}
    trainer = ours(tiny_path, tmp_path, data=problems(6), max_steps=-1, num_train_epochs=2, **options)
    assert len(trained_ids(trainer)) == 6 and trainer.state.global_step == 6
    rates = [each["prune/completion_rate"] for each in trainer.state.log_history if "loss" in each]
    assert rates[:3] == pytest.approx([0.5] * 3, abs=0.2) and rates[3:] == [0] * 3


def test_an_epoch_of_longer_blocks_counts_all_their_candidates(tiny_path, tmp_path):
    options = {"prompt_prune_rate": 0.5, "prompt_mode": "fill", "loss_type": "dr_grpo", "num_train_epochs": 6}
    worker = ScriptedWorker(flat={row for row in range(24) if row % 3})
    trainer = ours(tiny_path, tmp_path, worker, data=problems(24), max_steps=-1, **ONE_CALL | options)
    trainer.train()
    assert min(logged(trainer, "prune/prompts_kept_share")) < 1
    ahead = 3 * 2 * 4  # blocks that were requested and not trained on are at most twice as long as a step
    assert 6 * 24 <= trainer.session.source.stream.epochs * 24 <= 6 * 24 + ahead + 8


def test_a_second_run_of_an_adapter_trains_it_and_uses_no_number_twice(tiny_path, tmp_path):
    trainer = ours(tiny_path, tmp_path, peft_config=LoraConfig(target_modules="all-linear", r=2))
    before = {name: p.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    first = [*itertools.chain(*trained_ids(trainer))]
    assert all("lora" in name for name in before)
    assert any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters() if name in before)
    asked = [*trainer.rollout_worker.asked]
    trainer.train()
    again = trainer.rollout_worker.asked[len(asked) :]
    assert {*first}.isdisjoint(number for number, _ in again)
    assert min(number for number, _ in {*again} - {*asked}) > max(number for number, _ in asked)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:resumed with max_steps")
def test_a_resumed_run_equals_one_that_was_not_interrupted(tiny_path, tmp_path):
    options = {"completion_prune_rate": 0.5, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = ours(tiny_path, tmp_path / "whole", **options)
    expected = trained_ids(whole)
    ours(tiny_path, tmp_path / "cut", **options | {"max_steps": 3}).train()
    resumed = ours(tiny_path, tmp_path / "cut", **options)
    assert trained_ids(resumed, resume_from_checkpoint=True) == expected[3:]
    assert all(map(torch.equal, whole.model.parameters(), resumed.model.parameters()))
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


def test_prompts_are_pruned_with_their_probabilities(tiny_path, tmp_path, monkeypatch):
    options = {"per_device_train_batch_size": 16, "prompt_prune_rate": 0.4, "loss_type": "dr_grpo", "max_steps": 12}
    found, original = [], steps.planned

    def record(*args):
        plan, completions = original(*args)
        found.append(plan.prompts)
        return plan, completions

    monkeypatch.setattr(steps, "planned", record)
    ours(tiny_path, tmp_path, ScriptedWorker(flat=range(5)), **options).train()
    assert min(len(each.row_Q) for each in found) < 8  # fewer are rolled out once there is a history
    assert all(bool((each.prob_Q * each.draw.weight_N[each.draw.keep_N] - 1).abs().max() < 1e-9) for each in found)


REFUSED = {
    "router": ({"router_aux_loss_coef": 0.1}, "router_aux_loss_coef"),
    "objective": ({"method": "gspo"}, "token_loss"),
    "rounds": ({"method": "dapo"}, "rounds"),
    "ratio": ({"prompt_prune_rate": 0.3}, "loss_type: dr_grpo"),
    "biased": ({"method": "cppo"}, "accept_bias"),
    "alone": ({"num_generations": 1}, "num_generations"),
    "field": ({"prompt_prune": 0.3}, "prompt_prune"),
    "groups": ({"num_generations": 6}, "gradient_accumulation_steps: 3"),
    "worker": ({"worker": NoTransfer()}, "request"),
    "streamed": ({"data": problems(8).to_iterable_dataset()}, "streaming"),
}


@pytest.mark.parametrize(("options", "named"), REFUSED.values(), ids=REFUSED)
def test_options_that_would_be_silently_wrong_are_refused(options, named, tiny_path, tmp_path):
    with refused(ConfigError, named):
        ours(tiny_path, tmp_path, **options)
