"""verl's asynchronous trainers: each prompt has the weight it was asked with, in whichever step it is trained on."""

import json
import shutil
import warnings
from functools import partial

import in_process
import pandas as pd
import pytest
import torch
from in_process import ACTOR, PRUNING, STORE, parameters, sized, train, trainer
from late_server import Server

from dppo.errors import CheckpointError, EngineError, ShapeError
from dppo.files import sealed, unsealed
from dppo.step.in_flight import InFlight

COLOCATE, SEPARATE = "dynamic_pruning_colocate_async", "dynamic_pruning_separate_async"
SIZES = (*sized(8, 2, mini_batch=4), "data.train_max_samples=16", "trainer.total_training_steps=8")
APART = ("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1")
APART += ("actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", "trainer.v1.separate_async.parameter_sync_step=2")
RATES = (f"{PRUNING}.prompt_prune_rate=0.4", f"{PRUNING}.completion_prune_rate=0.0")
TOKENS = f"{PRUNING}.token_prune_rate=0.5"
MODES = {COLOCATE: (), SEPARATE: APART}
warned = partial(pytest.warns, UserWarning)


def kept_in(folder):
    """Options of a run whose checkpoints are in a folder, and that goes on from the newest."""
    return (f"trainer.default_local_dir={folder}", "trainer.resume_mode=auto")


def slow(text):
    return int(text[2]) % 4 == 0


class Late(Server):
    """A fourth of the prompts comes back in odd steps alone."""

    late = staticmethod(lambda text, step: slow(text) and step % 2 == 0)


class Never(Server):
    """Two prompts do not come back."""

    late = staticmethod(lambda text, step: text in ("0+0=", "0+3="))


class Several(Server):
    """Groups are back before they are needed."""

    at_once = 3


def spied(made):
    """The prompts of each update: (step, rows, probabilities, weights, sequences), as the run goes on."""
    seen, plan = [], made._plan

    def told(found):
        prompts = made.requested.prompts
        columns = (prompts.row_Q.tolist(), prompts.prob_Q.tolist(), prompts.weight_Q.tolist())
        seen.append((made.global_steps, *columns, prompts.sequences))
        return plan(found)

    made._plan = told
    return seen


def asked_with(made):
    """(row, probability) of every prompt when it was asked for, as the run goes on."""
    seen, block = [], made.source.block

    def told(method, number, **options):
        prompts = block(method, number, **options)
        seen.extend(zip(prompts.row_Q.tolist(), prompts.prob_Q.tolist(), strict=True))
        return prompts

    made.source.block = told
    return seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", [Server, Late])
def test_the_probability_travels_with_a_prompt_to_the_update_that_trains_on_it(toy, mode, server):
    made = trainer(toy, mode, *SIZES, *MODES[mode], *RATES, agents=server)
    seen, asked = spied(made), asked_with(made)
    first = [(flight.row, flight.prob) for flight in made.ahead.flights]
    logged = train(made, 5)
    asked = first + asked
    trained = [(row, prob) for _, rows, probs, _, _ in seen for row, prob in zip(rows, probs, strict=True)]
    flying = [(flight.row, flight.prob) for flight in made.ahead.flights]
    assert sorted(trained + flying) == sorted(asked)  # each once, with what it was asked with
    assert any(prob < 1 for _, prob in trained) and len({prob for _, prob in trained}) > 4
    for _, _, probs, weights, sequences in seen:
        assert weights == pytest.approx([1 / prob for prob in probs]) and sequences == 16 // made.parameter_sync_step
    assert {call[2] for call in made.actor_rollout_wg.calls} == {8}  # verl's denominator is of its own mini-batch
    assert len(seen) == 5 * made.parameter_sync_step and logged[-1]["rollout/in_flight"] >= len(made.ahead.flights)
    rows = [row for row, _ in trained]
    visits = made.source.history._arrays["rollouts"]
    assert visits.tolist() == [rows.count(row) for row in range(16)]  # learned when it came back, and only then
    if server is Late:
        late = [step for step, text in made.agent_loop_manager.back if slow(text)]
        assert late and all(step % 2 for step in late)


def rows_of(uids):
    """Rows of some groups in the queue: tags, and tensors as bytes."""
    return {
        key: (dict(tag), {name: value.numpy().tobytes() for name, value in row.items() if torch.is_tensor(value)})
        for key, (tag, row) in STORE["train"].items()
        if key.split("_")[0] in set(uids)
    }


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_cut_of_what_an_update_takes_and_groups_in_flight_stay_as_they_are(toy, mode):
    made = trainer(toy, mode, *SIZES, *MODES[mode], *RATES, TOKENS, agents=Several)
    balance, update, in_flight, cleared, back = made._balance_batch, made._step_once, [], [], []

    def balanced(batch, metrics, **options):
        found = balance(batch, metrics, **options)
        assert STORE["train_before"] and not STORE.get("train_update")
        in_flight.append((made.ahead.flights, rows_of(made.ahead.uids)))
        return found

    def updated(metrics, timing, count):
        batch = update(metrics, timing, count)
        flights, rows = in_flight[-1]
        assert made.ahead.flights == flights and rows == rows_of(made.ahead.uids)
        cleared.append(not any(STORE[name] for name in STORE if name != "train"))
        back.append(len(rows) > len(flights))  # some of those in flight are back, with completions
        whole = [len(STORE["train"][key][1]["input_ids"]) for key in batch.keys]
        assert [tag["seq_len"] for tag in batch.tags] == whole  # what verl logs and clears is not cut
        return batch

    made._balance_batch, made._step_once = balanced, updated
    before = parameters(made)
    steps = train(made, 3)
    for logged in steps:
        assert logged["rows/tokens_share"] < 1 and 0 < logged["prune/token_kept_share"] < 1
        assert logged["prune/largest_token_weight"] > 1 and logged["actor/grad_norm"] > 0
    assert len(cleared) == 3 * made.parameter_sync_step and all(cleared) and any(back)
    assert not torch.equal(parameters(made), before)


@pytest.mark.parametrize("multiple", [4, 1])
def test_a_block_that_keeps_one_prompt_for_each_of_its_updates(toy, multiple):
    """At a rate of 0.8, 2 of 8 prompts would be kept for 4 updates; no update is left with nothing to train on."""
    sizes = (*sized(8, 4, mini_batch=2), "data.train_max_samples=16", "trainer.total_training_steps=9", *APART[:-1])
    rates = (f"{PRUNING}.prompt_prune_rate=0.8", f"{PRUNING}.prune_floor=0.1")
    made = trainer(toy, SEPARATE, *sizes, "trainer.v1.separate_async.parameter_sync_step=4", *rates, agents=Server)
    seen, block = spied(made), made.source.block
    made.source.block = lambda method, number, **options: block(method, number, **options | {"multiple": multiple})
    if multiple == 1:  # wrong: as many as the rate says
        with pytest.raises(ShapeError, match="2 prompts of a block that is split over 4 updates"):
            train(made, 5)
        return
    logged = train(made, 5)
    assert {len(rows) for _, rows, *_ in seen[:4]} == {2} and {len(rows) for _, rows, *_ in seen[-4:]} == {1}
    assert all(each["actor/grad_norm"] >= 0 and each["rows/sent"] > 0 for each in logged)
    assert parameters(made).isfinite().all()


def test_what_never_comes_back_stays_in_flight_and_the_run_goes_on(toy, tmp_path):
    options = (*SIZES, *RATES, *kept_in(tmp_path))
    made = trainer(toy, COLOCATE, *options, "data.train_max_samples=64", "trainer.save_freq=3", agents=Never)
    train(made, 3)
    lost = [text for _, text, _ in made.agent_loop_manager.waiting.values()]
    assert {"0+0=", "0+3="} <= set(lost) and len(lost) == len(made.ahead.flights)
    again = trainer(toy, COLOCATE, *options, "data.train_max_samples=64", agents=Server)
    assert sorted(text for _, text in again.agent_loop_manager.asked) == sorted(lost)
    train(again, 1)
    assert "0+0=" in {text for _, text in again.agent_loop_manager.back}


@pytest.mark.parametrize(("mode", "more"), [(COLOCATE, ()), (SEPARATE, (TOKENS,))])
def test_a_run_that_ends_after_a_checkpoint_goes_on_from_it_bit_for_bit(toy, mode, more, tmp_path):
    options = (*SIZES, *MODES[mode], *RATES, *more, *kept_in(tmp_path))
    alone = trainer(toy, mode, *options, "trainer.save_freq=3", agents=Late)
    train(alone, 4)  # the fourth is lost with the process
    train(alone, 1)
    resumed = trainer(toy, mode, *options, agents=Late)
    assert resumed.global_steps == 4 and resumed.ahead.flights
    flying = [text for step, text in resumed.agent_loop_manager.asked]
    train(resumed, 2)
    assert torch.equal(parameters(alone), parameters(resumed)) and resumed.ahead.asked == alone.ahead.asked
    later = [text for step, text in alone.agent_loop_manager.asked if step >= 4]
    assert [text for _, text in resumed.agent_loop_manager.asked] == flying + later
    before = [text for step, text in alone.agent_loop_manager.back if step <= 3]
    asked = [text for step, text in alone.agent_loop_manager.asked if step <= 3]
    assert sorted(before + flying) == sorted(asked)  # asked again: what was not back, once each

    state = tmp_path / "global_step_3" / "dppo_state.json"
    found = unsealed(json.loads(state.read_text()))
    session = unsealed(found["session"])
    for flight in session["in_flight"]["flights"]:  # wrong: with the probability of nobody
        flight["weight"] = 1.0
    found["session"] = sealed(session)
    state.write_text(json.dumps(sealed(found)))
    wrong = trainer(toy, mode, *options, agents=Late)
    train(wrong, 2)
    assert not torch.equal(parameters(alone), parameters(wrong))


def test_groups_that_were_back_are_not_asked_for_again_and_lost_ones_are(toy, tmp_path, monkeypatch):
    options = (*SIZES, *RATES, *kept_in(tmp_path))
    made = trainer(toy, COLOCATE, *options, "trainer.save_freq=2", agents=Several)
    train(made, 2)
    flying, waiting = set(made.ahead.uids), dict(made.agent_loop_manager.waiting)
    assert 0 < len(waiting) < len(flying)  # some were back, and not needed yet
    queue = tmp_path / "global_step_2" / "transfer_queue"
    again = trainer(toy, COLOCATE, *options, agents=Several)
    assert set(again.ahead.uids) == flying and set(again.agent_loop_manager.waiting) == set(waiting)
    train(again, 1)

    kept = queue.with_name("kept")
    shutil.move(queue, kept)  # verl says nothing of a queue that is gone: all is asked for again, by our record
    lost = trainer(toy, COLOCATE, *options, agents=Several)
    rows = sorted((each.row, each.prob, each.size) for each in made.ahead.flights)
    assert sorted((each.row, each.prob, each.size) for each in lost.ahead.flights) == rows
    assert len(lost.agent_loop_manager.asked) == len(flying) and not flying & set(lost.ahead.uids)
    train(lost, 1)
    shutil.move(kept, queue)

    class Twice(type(made)):
        """Wrong: what is in flight is asked for again, whether or not verl's queue has it."""

        def _reissue_inflight_prompts(self, partition_id="train"):
            row_Q = torch.tensor([each.row for each in self.ahead.flights])
            uids = self.ahead.uids
            return self._submit_batch_to_rollout(self._request_instead(uids, len(uids), row_Q))

    monkeypatch.setattr(in_process, "get_trainer_cls", lambda mode: Twice)
    twice = trainer(toy, COLOCATE, *options, agents=Several)
    assert len(twice._queued) == 2 * len(flying)  # the old ones and the new


def test_prompts_in_flight_are_not_resumed_by_another_trainer_for_other_rows_or_without_their_record(toy, tmp_path):
    options = (*SIZES, *RATES, *kept_in(tmp_path))
    train(trainer(toy, COLOCATE, *options, "trainer.save_freq=1", agents=Server), 1)
    other = r"8 prompts in flight.*trainer_mode=dynamic_pruning_colocate_async"
    with warned(match="trainer_mode"), pytest.raises(CheckpointError, match=other):
        trainer(toy, "dynamic_pruning", *options)
    with warned(match="trainer_mode"), pytest.raises(CheckpointError, match=r"parameter_sync_step=2 where it has 1"):
        trainer(toy, SEPARATE, *options, *APART, agents=Server)
    pd.read_parquet(toy / "train.parquet").iloc[15::-1].to_parquet(tmp_path / "turned.parquet")
    with pytest.raises(CheckpointError, match=r"8 prompts in flight, whose rows.*dataset of the checkpoint"):
        trainer(toy, COLOCATE, *options, f"data.train_files={tmp_path}/turned.parquet", agents=Server)
    (tmp_path / "global_step_1" / "dppo_state.json").unlink()
    with warned(match="was not written with"), pytest.raises(CheckpointError, match=r"rm -r .*queue"):
        trainer(toy, COLOCATE, *options, agents=Server)
    shutil.rmtree(tmp_path / "global_step_1" / "transfer_queue")
    with warned(match="was not written with"):
        fresh = trainer(toy, COLOCATE, *options, agents=Server)
    assert fresh.global_steps == 2 and fresh.ahead.asked == 2 and len(fresh.ahead.flights) == 8


def test_prompts_that_were_drawn_are_not_trained_on_without_their_weights(toy, tmp_path):
    first = trainer(toy, COLOCATE, *SIZES, *RATES, *kept_in(tmp_path), "trainer.save_freq=4", agents=Several)
    train(first, 4)
    assert any(flight.weight != 1 for flight in first.ahead.flights)
    refused = pytest.raises(CheckpointError, match=r"method='grpo' would train on them .*completion_prune_rate=0\.")
    with refused, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the method is another one
        trainer(toy, COLOCATE, *SIZES, f"{PRUNING}.method=grpo", *kept_in(tmp_path), agents=Several)


def test_where_nothing_is_in_flight_a_run_goes_on_with_other_numbers(toy, tmp_path):
    """Weights of prompts are fixed when they are asked for: before that, a run may have any."""
    options = (*SIZES, *RATES, *kept_in(tmp_path))
    options += ("trainer.v1.colocate_async.num_warmup_batches=0",)
    made = trainer(toy, COLOCATE, *options, "trainer.save_freq=2", agents=Server)
    train(made, 2)
    assert not made.ahead.flights and not made.ahead.due
    other = ("data.train_batch_size=4", "actor_rollout_ref.rollout.n=4")
    with warned(match="data.train_batch_size: 8 -> 4"):
        resumed = trainer(toy, COLOCATE, *options, *other, agents=Server)
    seen = spied(resumed)
    train(resumed, 1)
    (step, rows, _, _, sequences), *_ = seen
    assert (step, sequences) == (3, 16) and len(rows) <= 4 and resumed.ahead.asked == 3


def test_a_synchronous_run_goes_on_with_prompts_asked_for_ahead(toy, tmp_path):
    options = (*SIZES, *RATES, *kept_in(tmp_path))
    made = trainer(toy, "dynamic_pruning", *options, "trainer.save_freq=2")
    train(made, 2)
    with warned(match="trainer_mode: 'sync' -> 'colocate_async'"):
        resumed = trainer(toy, COLOCATE, *options, agents=Server)
    assert resumed.ahead.asked == 3 and resumed.source.history.visited(range(len(resumed.source.history))).all()
    assert any(flight.prob < 1 for flight in resumed.ahead.flights)  # by the history of the run before
    train(resumed, 1)


class Failing(Server):
    """Two prompts fail, each time they are asked for."""

    fails = staticmethod(lambda text, step: text in ("0+1=", "0+2="))


class Stale(Server):
    """A prompt comes back when it is too old."""

    late = staticmethod(lambda text, step: text == "0+1=" and step < 4)


@pytest.mark.parametrize("server", [Failing, Stale])
def test_what_verl_drops_is_replaced_with_the_probability_that_it_had(toy, server, monkeypatch):
    options = (*SIZES, *RATES, "data.train_max_samples=64", "trainer.v1.sampler.max_off_policy_threshold=2")
    made = trainer(toy, COLOCATE, *options, agents=server)
    replaced, after = [], InFlight.after_replacing

    def told(self, gone, others, uid_Q):
        found = after(self, gone, others, uid_Q)
        before, new = ({flight.uid: flight for flight in ahead.flights} for ahead in (self, found))
        replaced.extend((before[old], new[uid]) for old, uid in zip(gone, uid_Q, strict=True))
        return found

    monkeypatch.setattr(InFlight, "after_replacing", told)
    logged = train(made, 5)
    assert replaced and all(old.prob == new.prob for old, new in replaced)
    assert all((old.size, old.block) == (new.size, new.block) for old, new in replaced)
    assert made.source.stream.offset == 8 * made.ahead.asked + len(replaced)  # the next prompts of the stream, in order
    dropped = {name for each in logged for name in each if name.endswith("/evicted_samples")}
    assert f"training/{'rollout_failure' if server is Failing else 'off_policy'}/evicted_samples" in dropped
    assert sum(each.get(name, 0) for each in logged for name in dropped) == len(replaced)
    with pytest.raises(EngineError, match="asks for 3 prompts in place of others, and 0"):
        made._next_train_batch(3)


def test_groups_that_verl_filters_are_replaced(toy, monkeypatch):
    monkeypatch.setattr(in_process, "compute_score", lambda *given: 1.0 if int(given[2]) % 3 == 0 else len(given[1]))
    options = (*SIZES, "data.train_max_samples=64", f"{PRUNING}.completion_prune_rate=0.5")
    options += ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
    made = trainer(toy, COLOCATE, *options, f"{PRUNING}.accept_bias=True", agents=Server)
    seen = spied(made)
    logged = train(made, 3)
    assert all(each["rollout/zero_variance_groups"] == 0 for each in logged)
    assert sum(each.get("training/filter_groups/evicted_samples", 0) for each in logged) > 0
    assert all(len(rows) == 8 and set(weights) == {1.0} for _, rows, _, weights, _ in seen)


def test_a_baseline_and_sizes_from_history(toy):
    """verl asks again by the columns that all prompts in its queue have, so a prompt without a history has a size."""
    options = (*SIZES, f"{PRUNING}.method=dppo_history_sizes", "actor_rollout_ref.rollout.n=4")
    made = trainer(toy, COLOCATE, *options, agents=Late)
    train(made, 2)
    asked = [row for tag, row in STORE["train"].values() if tag.get("is_prompt")]
    assert asked and all("__rollout_n__" in row for row in asked)
    assert train(made, 3)[-1]["actor/grad_norm"] > 0
    assert {flight.size for flight in made.ahead.flights} | set(made.requested.size_Q) != {4}
    assert {call[2] for call in made.actor_rollout_wg.calls} == {16}


def test_the_start_says_that_prompts_are_asked_for_ahead_and_what_is_biased_about_it(toy, capsys):
    one = (f"{ACTOR}.ppo_mini_batch_size=8", "trainer.v1.colocate_async.num_warmup_batches=2")
    with warned(match="prompts are drawn once for several optimizer steps"):
        trainer(toy, COLOCATE, *SIZES, *one, *RATES, agents=Server)
    assert "dppo | prompts are requested 2 blocks ahead" in capsys.readouterr().out
