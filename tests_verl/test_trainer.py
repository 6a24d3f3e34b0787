"""verl's trainer with dynamic pruning: stock where nothing is dropped, and on average the full batch's gradient."""

import math

import in_process
import pytest
import torch
from in_process import ACTOR, PRUNING, STORE, parameters, sized, train, trainer
from late_server import Server
from tensordict import TensorDict
from test_ahead import COLOCATE, MODES, SEPARATE
from test_ahead import SIZES as AHEAD

import dppo.verl.batch
from dppo.errors import ConfigError, RewardError
from dppo.verl.layout import place

SIZES = sized(4, 4, mini_batch=2)
PRUNED = {"sync": "dynamic_pruning", "colocate_async": COLOCATE, "separate_async": SEPARATE}
SIXTEEN = ("data.train_max_samples=16", "trainer.total_training_steps=8")


@pytest.mark.parametrize("mode", PRUNED)
def test_without_pruning_the_runs_of_verl_and_of_ours_are_equal_bit_for_bit(toy, mode):
    name = PRUNED[mode]
    sizes, agents = (SIZES, in_process.Agents) if mode == "sync" else ((*AHEAD, *MODES[name]), Server)
    options = (*sizes, f"{ACTOR}.use_kl_loss=True")  # so that every row has a gradient
    stock = trainer(toy, mode, *options, agents=agents)
    logged = train(stock, 3)
    ours = trainer(toy, name, *options, f"{PRUNING}.method=grpo", agents=agents)
    found = train(ours, 3)
    assert ours.agent_loop_manager.asked == stock.agent_loop_manager.asked
    assert torch.equal(parameters(stock), parameters(ours)) and logged[2]["actor/grad_norm"] > 0
    same = [name for name in logged[2] if name.startswith("actor/") and "perf" not in name]
    assert len(same) > 5 and all(logged[2][name] == found[2][name] for name in same)
    assert all(each["rows/tokens_share"] == 1 for each in found)
    if mode != "sync":
        back = stock.agent_loop_manager.back
        assert ours.agent_loop_manager.back == back != sorted(back)  # out of order, or it shows nothing
    pruned = trainer(toy, name, *options, f"{PRUNING}.completion_prune_rate=0.5", agents=agents)
    train(pruned, 3)
    assert not torch.equal(parameters(stock), parameters(pruned))  # the comparison above can fail


@pytest.mark.parametrize("options", [(f"{PRUNING}.method=grpo",), (f"{PRUNING}.completion_prune_rate=0.5",)])
def test_groups_of_equal_rewards_have_no_gradient_although_verls_mean_of_them_is_off_by_rounding(toy, options):
    made = trainer(toy, "dynamic_pruning", *sized(3, 8), *options)
    made.prepare_step()
    silent, alone, _ = (key for key, (tag, _) in STORE["train"].items() if tag.get("is_prompt"))
    for key, (_, row) in list(STORE["train"].items()):
        if "rm_scores" in row:
            row["rm_scores"][-1] = float(int(key.split("_")[1]) % 2)
            if key.startswith(silent):
                row["rm_scores"][-1] = 0.1
            if key.startswith(alone):
                row["rm_scores"][-1] = 0.3
                if not key.endswith("_3_0"):
                    del STORE["train"][key]
    metrics = {}
    batch = made._step_once(metrics, {}, 3)
    advantage = {key: row["advantages"][0] for key, (_, row) in STORE["train"].items() if "advantages" in row}
    assert all(0 < abs(advantage[key]) < 0.1 for key in batch.keys if key.startswith(silent))  # verl's own
    sent = made.actor_rollout_wg.passes[-1][1]
    assert not any(key.startswith(silent) for key in sent) and f"{alone}_3_0" in sent  # whose advantage is its reward
    assert metrics["rollout/zero_variance_groups"] == pytest.approx(1 / 3)


def test_prompts_are_pruned_once_they_have_a_history_and_every_step_waits_for_those_alone(toy):
    options = (f"{PRUNING}.prompt_prune_rate=0.5", "data.train_max_samples=32", "trainer.total_training_steps=8")
    made = trainer(toy, "dynamic_pruning", *sized(16, 2, mini_batch=8), *options)
    logged = train(made, 4)
    part_Q = made.requested.prompts.part_Q
    assert torch.bincount(part_Q).tolist() == [4, 4], "as many for each mini-batch"
    part_of, (placement,) = dict(zip(made.requested.uid_Q, part_Q.tolist(), strict=True)), made.dispatched.passes
    keys = [made.dispatched.whole.keys[row] for row in placement.row_B]
    for row, (key, weight) in enumerate(zip(keys, placement.weight_B, strict=True)):
        assert not weight or part_of[key.rsplit("_", 2)[0]] == row // placement.rows_per_step
    asked = [sum(step == number for step, _ in made.agent_loop_manager.asked) for number in (1, 2, 3, 4)]
    assert asked == [16, 16, 8, 8] and [each["prune/prompts_kept_share"] for each in logged] == [1, 1, 0.5, 0.5]
    assert made.source.history.visited(range(32)).all() and logged[2]["prune/largest_prompt_weight"] > 1
    assert {call[2] for call in made.actor_rollout_wg.calls} == {16}  # what the loss is divided by: of the whole block


def test_blocks_of_fill_are_longer_and_still_a_mean_over_their_prompts(toy, monkeypatch):
    """verl divides by ``train_batch_size`` prompts, so weights carry that over the length of the block."""
    seen = []

    def spied(weight_UN, rows, ranks, **divided):
        seen.append((float(weight_UN.sum()), divided, place(weight_UN, rows, ranks, **divided)))
        return seen[-1][2]

    monkeypatch.setattr(dppo.verl.batch, "place", spied)
    options = (f"{PRUNING}.prompt_prune_rate=0.5", f"{PRUNING}.prompt_mode=fill", f"{ACTOR}.use_kl_loss=True")
    made = trainer(toy, "dynamic_pruning", *sized(8, 2), *SIXTEEN, *options)
    train(made, 3)
    block = len(made.requested.prompts.candidates.row_P)
    assert block > 8 and made.requested.prompts.sequences == 2 * block and len(made.requested.uid_Q) <= 9
    total, divided, placement = seen[-1]
    assert divided == {"tokens_U": None, "scale": 8 / block} and seen[0][1]["scale"] == 1.0
    assert float(placement.weight_B.sum()) == pytest.approx(total * 8 / block, rel=1e-5)


def test_group_sizes_follow_history(toy, monkeypatch):
    """Half of the prompts always give what they gave before: sizes differ, the denominator does not."""
    mixed = in_process.compute_score

    def settled(source, text, truth):
        return float(int(truth) > 4) if int(truth) % 2 else mixed(source, text, truth)

    monkeypatch.setattr(in_process, "compute_score", settled)
    options = (f"{PRUNING}.method=dppo_history_sizes", f"{PRUNING}.completion_prune_rate=0.0")
    made = trainer(toy, "dynamic_pruning", *sized(8, 4), *SIXTEEN, *options)
    train(made, 4)
    sizes = made.requested.size_Q
    assert len(set(sizes)) > 1 and min(sizes) >= 1 and sum(sizes) <= 40
    assert {call[2] for call in made.actor_rollout_wg.calls} == {32}


def test_a_baseline_from_history_trains_groups_of_one(toy):
    alone = trainer(toy, "dynamic_pruning", *sized(8, 1), SIXTEEN[0], f"{PRUNING}.method=grpo_history")
    logged = train(alone, 2)
    assert logged[0]["actor/grad_norm"] == 0 and logged[1]["actor/grad_norm"] > 0
    assert not STORE["train"]  # the queue is empty after a step
    least, most = (logged[1][f"critic/advantages/{end}"] for end in ("min", "max"))
    assert -1 < least < 0 < most < 1  # not verl's raw rewards


def test_a_session_that_failed_is_left_out_and_its_group_is_still_trained(toy):
    made = trainer(toy, "dynamic_pruning", *SIZES)
    made.prepare_step()
    first = next(key for key, (_, row) in STORE["train"].items() if "rm_scores" in row)
    del STORE["train"][first]
    metrics = {}
    made._step_once(metrics, {}, 4)
    assert metrics["prune/live_share"] < 1 and metrics["rows/sent"] % 2 == 0 and metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_named(toy, value):
    """verl's mean and deviation of its group are none then, and its loss would be."""
    made = trainer(toy, "dynamic_pruning", *SIZES)
    made.prepare_step()
    first = next(key for key, (_, row) in STORE["train"].items() if "rm_scores" in row)
    STORE["train"][first][1]["rm_scores"][-1] = value
    with pytest.raises(RewardError, match=f"the reward of {first} is {value:g}, .*Return 0.0 in its place"):
        made._step_once({}, {}, 4)


@pytest.mark.parametrize("filters", [False, True])
def test_a_group_whose_sessions_all_failed_changes_no_denominator(toy, filters):
    """verl divides by it. The wrong twin divides by the groups that are left: weights of 4/3."""
    filtering = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
    options = (*filtering, f"{PRUNING}.accept_bias=True") if filters else ()
    made = trainer(
        toy, "dynamic_pruning", *sized(4, 4), f"{PRUNING}.completion_prune_rate=0.0", *options, agents=Failing
    )
    train(made, 1)
    assert set(made.dispatched.passes[0].weight_B.tolist()) == {1.0}


class Failing(in_process.Agents):
    """Rewards differ in each group, and all sessions of the second fail."""

    def generate_sequences(self, batch):
        for number, (prompt, text, size) in enumerate(self.prompts_of(batch)):
            self._sessions(prompt, text, size)
            for session in range(size):
                key = f"{prompt['uid']}_{session}_0"
                STORE["train"][key][1]["rm_scores"][-1] = float(session % 2)
                if number == 1:
                    del STORE["train"][key]
            STORE["train"][prompt["uid"]][0]["status"] = "failure" if number == 1 else "finished"


def test_what_is_logged_of_the_kl_term_is_weighted_as_its_gradient_is(toy):
    """A reference one below every log-probability: one KL for each token. The wrong twin logs a quarter of it or so."""

    class Below(in_process.LocalGroup):
        def compute_ref_log_prob(self, batch):
            batch = self.inferred("ref", batch)
            logp = in_process.get(batch.keys, batch.partition_id, ["log_probs"])["log_probs"]
            below = torch.nested.as_nested_tensor([row - 1.0 for row in logp.unbind()], layout=torch.jagged)
            in_process.put(batch.keys, batch.partition_id, TensorDict({"log_probs": below}, batch_size=len(batch.keys)))
            return batch

    options = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean")
    pruned = (*options, f"{PRUNING}.completion_prune_rate=0.7")
    made = trainer(toy, "dynamic_pruning", *sized(4, 4), *pruned, group=Below)
    logged = train(made, 1)[0]
    sent = made.dispatched.passes[0]
    each = 1 - 1 + math.exp(-1)  # verl's k3 of a difference of -1
    assert len(sent.row_B) < 16
    assert logged["actor/kl_loss"] == pytest.approx(each * float(sent.weight_B.sum()) / 16, rel=1e-4)


def test_every_start_takes_the_same_rows_where_verl_has_no_seed(toy):
    options = (*sized(4, 2), "data.train_max_samples=8", "data.shuffle=True", "data.seed=null")
    first, second = (trainer(toy, "dynamic_pruning", *options).train_dataset.dataframe["prompt"] for _ in range(2))
    assert list(first) == list(second)


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("sync", ("shuffle=True", "policy_loss.loss_mode=clip_cov"), "2 problems.*shuffle=False.*loss_mode=vanilla"),
        ("colocate_async", ("shuffle=True",), "trainer_mode=dynamic_pruning_colocate_async.*shuffle=False"),
        ("separate_async", ("ppo_mini_batch_size=2",), "Write data.train_batch_size=4"),
    ],
)
def test_options_of_verl_that_cannot_be_exact_stop_the_run_at_its_start(toy, mode, options, words):
    """Every such option is in tests/verl."""
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        trainer(toy, PRUNED[mode], *AHEAD, *MODES.get(PRUNED[mode], ()), *(f"{ACTOR}.{each}" for each in options))


def test_a_biased_setting_says_so_at_the_start(toy, capsys):
    with pytest.warns(UserWarning, match="normaliser is biased under prompt pruning"):
        trainer(toy, "dynamic_pruning", *SIZES, f"{ACTOR}.loss_agg_mode=token-mean", f"{PRUNING}.prompt_prune_rate=0.3")
    assert "dppo | biased: " in capsys.readouterr().out
