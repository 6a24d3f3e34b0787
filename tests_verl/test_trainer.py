"""verl's trainer with dynamic pruning: stock where nothing is dropped, and on average the full batch's gradient."""

import math
import warnings
from dataclasses import dataclass, replace
from itertools import product

import in_process
import pytest
import torch
from in_process import PRUNING, STORE, parameters, record_gradients, train, trainer, whole

import dppo.verl.trainer
from dppo.errors import ConfigError
from dppo.types import Draw
from dppo.verl.layout import place

SIZES = ("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4")
ONE_STEP = ("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4")
REWARDS = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0)
PROB_N = torch.tensor([1.0, 0.5, 0.5, 1.0, 0.25, 0.75, 1.0, 1.0], dtype=torch.float64)


@dataclass(frozen=True)
class Given:
    """A selection of completions whose draw is told."""

    keep_N: torch.Tensor
    rate: float = 0.5
    bias: str = ""
    weighted: bool = True

    def at_rate(self, rate):
        return replace(self, rate=rate)

    def draw(self, completions, rng):
        weight_N = torch.where(self.keep_N, 1 / PROB_N if self.weighted else torch.ones_like(PROB_N), 0.0)
        return Draw(keep_N=self.keep_N, prob_N=PROB_N, weight_N=weight_N)


def rolled_out(made):
    """The first step of a trainer up to the update: a batch with advantages from known rewards."""
    made.prepare_step()
    rewards = iter(REWARDS)
    for _, row in STORE["train"].values():
        if "rm_scores" in row:
            row["rm_scores"][-1] = next(rewards)
    batch, _ = made.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    batch.extra_info["temperature"] = 1.0
    batch = made._compute_old_log_prob(made._balance_batch(batch, {}), {})
    if made.use_reference_policy:
        batch = made._compute_ref_log_prob(batch, {})
    return made._compute_advantage(batch, {})


MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extra", [(), ("actor_rollout_ref.actor.entropy_coeff=0.01",)], ids=["policy", "entropy"])
def test_the_mean_over_every_draw_is_verls_gradient_of_the_whole_batch(toy, mode, extra):
    options = (f"actor_rollout_ref.actor.loss_agg_mode={mode}", "actor_rollout_ref.actor.loss_scale_factor=12", *extra)
    made = trainer(toy, "dynamic_pruning", *ONE_STEP, *options)
    group, gradients = made.actor_rollout_wg, record_gradients(made.actor_rollout_wg.worker)
    batch = rolled_out(made)
    full = full_gradient(made, group, batch, gradients)
    free = [number for number, p in enumerate(PROB_N.tolist()) if p < 1]
    mean, sent = torch.zeros_like(full, dtype=torch.float64), set()
    for kept in product((False, True), repeat=len(free)):
        keep_N = torch.ones(len(PROB_N), dtype=torch.bool)
        keep_N[free] = torch.tensor(kept)
        made.method = replace(made.method, completions=Given(keep_N=keep_N))
        made._update_actor(batch, {})
        mean += math.prod(torch.where(keep_N, PROB_N, 1 - PROB_N).tolist()) * gradients.pop().double()
        sent.add(group.calls[-1])
    bias = float((mean - full).norm() / full.norm())
    print(f"{mode} {extra}: bias {bias:.1e}, sent {sorted(sent)}")
    assert bias < 1e-6 and {rows for rows, _, _ in sent} == {4, 5, 6, 7, 8} and {whole for *_, whole in sent} == {8}


def full_gradient(made, group, batch, gradients):
    """That of verl's loss on the whole batch, by verl's own update."""
    from functools import partial

    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    ours, made._rows_per_step = group.worker.loss_fn, 8
    group.set_loss_fn(partial(ppo_loss, config=omega_conf_to_dataclass(made.config.actor_rollout_ref.actor)))
    PPOTrainerSync._update_actor(made, batch, {})
    group.set_loss_fn(ours)
    return gradients.pop()


@pytest.mark.parametrize("seed", [0])
def test_without_pruning_the_runs_of_verl_and_of_ours_are_equal_bit_for_bit(toy, seed):
    stock = trainer(toy, "sync", *SIZES)
    logged = train(stock, 2)
    ours = trainer(toy, "dynamic_pruning", *SIZES, f"{PRUNING}.method=grpo", f"{PRUNING}.seed={seed}")
    found = train(ours, 2)
    assert torch.equal(parameters(stock), parameters(ours)) and logged[0]["actor/grad_norm"] > 0
    same = [name for name in logged[1] if name.startswith("actor/") and "perf" not in name]
    assert len(same) > 5 and all(logged[1][name] == found[1][name] for name in same)
    assert found[1]["candidates/epoch"] == 8 / 64 and "candidates/reward" not in logged[1]
    pruned = trainer(toy, "dynamic_pruning", *SIZES)
    train(pruned, 2)
    assert not torch.equal(parameters(stock), parameters(pruned))  # the comparison above can fail


def test_leaving_out_what_has_no_gradient_changes_nothing_and_sends_less(toy):
    rates = f"{PRUNING}.completion_prune_rate=0.0"
    gradients = []
    for mode, options in (("sync", ()), ("dynamic_pruning", (rates,))):
        made = trainer(toy, mode, *ONE_STEP, *options)
        found = record_gradients(made.actor_rollout_wg.worker)
        made.prepare_step()
        rows = [row for _, row in STORE["train"].values() if "rm_scores" in row]
        for number, row in enumerate(rows):  # the first group has no signal
            row["rm_scores"][-1] = float(number >= 4 and number % 2)
        made._step_once({}, {}, 2)
        gradients.append((found.pop(), made.actor_rollout_wg.calls[-1][0]))
    (full, all_rows), (skipped, fewer) = gradients
    assert (all_rows, fewer) == (8, 4)
    assert float((full - skipped).norm() / full.norm()) < 1e-6


def test_prompts_are_pruned_once_they_have_a_history_and_every_step_waits_for_those_alone(toy):
    made = trainer(
        toy,
        "dynamic_pruning",
        *("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=2"),
        *(f"{PRUNING}.prompt_prune_rate=0.5", "data.train_max_samples=32", "trainer.total_training_steps=8"),
    )
    logged = train(made, 4)
    asked = [sum(step == number for step, _ in made.agent_loop_manager.asked) for number in (1, 2, 3, 4)]
    assert asked == [16, 16, 8, 8] and [each["prune/prompts_kept_share"] for each in logged] == [1, 1, 0.5, 0.5]
    assert made.source.history.seen_share == 1.0 and logged[2]["prune/largest_prompt_weight"] > 1
    assert {call[2] for call in made.actor_rollout_wg.calls} == {16}  # what the loss is divided by: of the whole block


def test_blocks_of_fill_are_longer_and_still_a_mean_over_their_prompts(toy, monkeypatch):
    """verl divides by ``train_batch_size`` prompts, so weights carry that over the length of the block."""
    seen = []

    def spied(weight_UN, rows, ranks, **divided):
        seen.append((float(weight_UN.sum()), divided, place(weight_UN, rows, ranks, **divided)))
        return seen[-1][2]

    monkeypatch.setattr(dppo.verl.trainer, "place", spied)
    made = trainer(
        toy,
        "dynamic_pruning",
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=2"),
        *(f"{PRUNING}.prompt_prune_rate=0.5", f"{PRUNING}.prompt_mode=fill", "data.train_max_samples=16"),
        *("trainer.total_training_steps=8", "actor_rollout_ref.actor.use_kl_loss=True"),
    )
    train(made, 3)
    block = len(made.asked.prompts.candidates.row_P)
    assert block > 8 and made.asked.prompts.sequences == 2 * block and len(made.asked.uid_Q) <= 9
    total, divided, placement = seen[-1]
    assert divided == {"tokens_U": None, "scale": 8 / block} and seen[0][1]["scale"] == 1.0
    assert float(placement.weight_B.sum()) == pytest.approx(total * 8 / block, rel=1e-5)


def test_group_sizes_follow_history(toy, monkeypatch):
    """Half of the prompts always give what they gave before: sizes differ, the denominator does not."""
    mixed = in_process.compute_score

    def settled(source, text, truth):
        return float(int(truth) > 4) if int(truth) % 2 else mixed(source, text, truth)

    monkeypatch.setattr(in_process, "compute_score", settled)
    made = trainer(
        toy,
        "dynamic_pruning",
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=4"),
        *(f"{PRUNING}.method=dppo_history_sizes", f"{PRUNING}.completion_prune_rate=0.0"),
        *("data.train_max_samples=16", "trainer.total_training_steps=8"),
    )
    train(made, 4)
    sizes = made.asked.size_Q
    assert len(set(sizes)) > 1 and min(sizes) >= 1 and sum(sizes) <= 40
    assert {call[2] for call in made.actor_rollout_wg.calls} == {32}


def test_a_baseline_from_history_trains_groups_of_one(toy):
    alone = trainer(
        toy,
        "dynamic_pruning",
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=1"),
        *(f"{PRUNING}.method=grpo_history", "data.train_max_samples=16"),
    )
    logged = train(alone, 2)
    assert logged[0]["actor/grad_norm"] == 0 and logged[1]["actor/grad_norm"] > 0
    raw = {float(row["rm_scores"].sum()) for _, row in STORE["train"].values() if "rm_scores" in row}
    assert not raw  # the queue is empty after a step
    assert (
        -1 < logged[1]["critic/advantages/min"] < 0 < logged[1]["critic/advantages/max"] < 1
    )  # not verl's raw rewards


def test_a_session_that_failed_is_left_out_and_its_group_is_still_trained(toy):
    made = trainer(toy, "dynamic_pruning", *SIZES)
    made.prepare_step()
    first = next(key for key, (_, row) in STORE["train"].items() if "rm_scores" in row)
    del STORE["train"][first]
    metrics = {}
    made._step_once(metrics, {}, 4)
    assert metrics["prune/live_share"] < 1 and metrics["rows/sent"] % 2 == 0 and metrics["actor/grad_norm"] > 0


def test_options_of_verl_that_cannot_be_exact_stop_the_run_at_its_start(toy):
    with pytest.raises(ConfigError, match="2 problems") as caught:
        trainer(
            toy,
            "dynamic_pruning",
            *SIZES,
            "actor_rollout_ref.actor.ppo_epochs=2",
            "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        )
    assert "ppo_epochs=1" in str(caught.value) and "loss_mode=vanilla" in str(caught.value)


def test_a_biased_setting_says_so_at_the_start(toy, capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = ("actor_rollout_ref.actor.loss_agg_mode=token-mean", f"{PRUNING}.prompt_prune_rate=0.3")
        trainer(toy, "dynamic_pruning", *SIZES, *options)
    assert any("normaliser is biased under prompt pruning" in str(each.message) for each in caught)
    assert "dppo | biased: " in capsys.readouterr().out


def test_the_kl_term_reaches_completions_without_an_advantage(toy):
    options = ("actor_rollout_ref.actor.use_kl_loss=True", f"{PRUNING}.completion_prune_rate=0.0")
    made = trainer(toy, "dynamic_pruning", *ONE_STEP, *options)
    made.prepare_step()
    for _, row in STORE["train"].values():
        if "rm_scores" in row:
            row["rm_scores"][-1] = 1.0
    metrics = {}
    made._step_once(metrics, {}, 2)
    assert metrics["rows/sent"] == 8 and metrics["prune/live_share"] == 1
    assert whole(list(made.actor_rollout_wg.worker.engine.module.parameters())).isfinite().all()
