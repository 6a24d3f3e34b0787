"""The plan before verl's passes: they go over the rows that are kept, and the gradient's mean is still verl's."""

import re
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import in_process
import pytest
import torch
from in_process import ACTOR, PRUNING, STORE, configuration, get, parameters, put, sized, train, trainer
from steps import ALL_TERMS, KL, ONE_STEP, PROB_N, RATIOS, REWARDS, all_draws, bias, stock_and_ours
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from dppo.errors import ConfigError
from dppo.verl.trainer_base import SCHEDULE
from dppo.verl.trainers import DynamicPruningTrainer

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
GRPO, ALL = f"{PRUNING}.method=grpo", f"{PRUNING}.completion_prune_rate=0.0"
TERMS = {"KL and entropy": ALL_TERMS, "ratios": RATIOS}


def of_mode(mode):
    return (f"{ACTOR}.loss_agg_mode={mode}", f"{ACTOR}.loss_scale_factor=12")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("term", TERMS)
def test_the_mean_over_every_draw_is_verls_gradient_and_each_draw_is_that_of_the_old_order(toy, mode, term):
    (full,), step = stock_and_ours(toy, *of_mode(mode), *TERMS[term])
    assert not step.made.waits_for
    mean, furthest = 0.0, 0.0
    for chance, keep_N in all_draws():
        step.drawn(keep_N)
        ours = step.gradients.pop().double()
        mean = mean + chance * ours
        step.made.waits_for = "today's order"
        step.drawn(keep_N)
        furthest = max(furthest, bias(step.gradients.pop().double(), ours))
        step.made.waits_for = ""
    print(f"{mode} {term}: bias {bias(mean, full):.1e}, furthest from the old order {furthest:.1e}")
    assert bias(mean, full) < 1e-6 and furthest < 1e-6


def test_passes_go_over_the_rows_that_are_kept_and_over_no_other(toy):
    _, step = stock_and_ours(toy, *KL)
    tags, sizes = step.tags, set()
    for _, keep_N in all_draws():
        whole = step.drawn(keep_N)
        kept = {key for key, keep in zip(step.asked_order(), keep_N.tolist(), strict=True) if keep}
        assert [name for name, _ in step.made.actor_rollout_wg.passes] == ["old", "ref", "update"]
        for _, keys in step.made.actor_rollout_wg.passes:
            assert len(keys) == len(kept) and set(keys) == kept
        tokens = sum(tags[key]["seq_len"] for key in kept) / sum(tag["seq_len"] for tag in tags.values())
        assert step.metrics["rows/forwarded"] == step.metrics["rows/sent"] == len(kept)
        assert step.metrics["rows/tokens_share"] == pytest.approx(tokens)
        assert step.metrics["global_seqlen/mean"] == sum(tags[key]["seq_len"] for key in kept)
        assert set(whole.keys) == set(tags) and all("advantages" in STORE["train"][key][1] for key in tags)
        sizes.add(len(kept))
    assert sizes == {4, 5, 6, 7, 8} and step.gradients


def test_metrics_of_verl_are_over_what_the_page_says(toy):
    """Those over everything that was rolled out are the same for every draw; of the others the page has each."""
    step, seen = stock_and_ours(toy, *KL, *RATIOS, f"{ACTOR}.entropy_coeff=0.01")[1], {}
    for _, keep_N in list(all_draws())[::5]:
        whole = step.drawn(keep_N)
        metrics = dict(step.metrics)
        step.made._compute_metrics(whole, metrics, {"step": 1.0}, 1, 0)
        for name, value in metrics.items():
            seen.setdefault(name, set()).add(float(value))
    page = (Path(__file__).parents[1] / "docs" / "verl.md").read_text().partition("| metrics of verl | over |")[2]
    everything, entropy, kept = (re.findall(r"`([\w/*]+)`", row.split("|")[1]) for row in page.splitlines()[2:5])
    changing = {name for name, values in seen.items() if len(values) > 1 and not name.startswith(("rows/", "prune/"))}
    assert {name for name in changing if of_any(name, everything)} == set()
    assert {name for name in changing if not of_any(name, entropy + kept)} <= {"perf/mfu/actor"}  # by the clock
    assert all(any(of_any(name, [pattern]) for name in changing) for pattern in entropy + kept)


def of_any(name, patterns):
    return any(fnmatch(name, pattern) for pattern in patterns)


def test_wrong_twins_are_seen(toy, monkeypatch):
    (full,), step = stock_and_ours(toy)
    made, compute = step.made, step.made._compute_old_log_prob
    assert bias(step.mean_of_draws(weighted=False), full) > 0.1, "forgotten weights"
    with monkeypatch.context() as patch:
        patch.setattr(made, "_compute_advantage", partial(PPOTrainerSync._compute_advantage, made))
        assert bias(step.mean_of_draws(), full) > 0.02, "advantages of the kept rows alone"

    def moved(batch, metrics):
        found = compute(batch, metrics)
        old = get(batch.keys, batch.partition_id, ["old_log_probs"])
        rows = old["old_log_probs"].unbind()
        other = [*rows[1:], rows[0]]
        fitted = [torch.cat([theirs, mine])[: len(mine)] for theirs, mine in zip(other, rows, strict=True)]
        old["old_log_probs"] = torch.nested.as_nested_tensor(fitted, layout=torch.jagged)
        put(batch.keys, batch.partition_id, old)
        return found

    monkeypatch.setattr(made, "_compute_old_log_prob", moved)
    assert bias(step.mean_of_draws(), full) > 0.02, "old log-probabilities of another row"


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_every_pass_over_the_batch_has_a_draw_and_the_mean_of_each_is_verls_gradient(toy, mode):
    full, step = stock_and_ours(toy, f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.loss_agg_mode={mode}")
    assert len(full) == 2 and torch.equal(*full)  # no optimizer step was made between the two
    draws = list(all_draws())
    first, second = 0.0, 0.0
    for number, (chance, keep_N) in enumerate(draws):
        other, later_N = draws[(number * 7 + 3) % len(draws)]
        step.drawn(keep_N, later_N)
        passes = step.made.actor_rollout_wg.passes
        assert [name for name, _ in passes] == ["old", "update", "update"]
        assert set(passes[0][1]) == set(passes[1][1]) | set(passes[2][1])
        assert len(passes[1][1]) == int(keep_N.sum()) and len(passes[2][1]) == int(later_N.sum())
        second, first = second + other * step.gradients.pop().double(), first + chance * step.gradients.pop().double()
        assert not step.gradients
    assert bias(first, full[0]) < 1e-6 and bias(second, full[0]) < 1e-6
    assert step.made.config.actor_rollout_ref.actor.optim.total_training_steps == 2 * step.made.total_training_steps
    step.drawn(draws[0][1], draws[0][1])
    once = step.gradients[1]
    step.drawn(draws[0][1], draws[-1][1])
    assert not torch.equal(step.gradients[3], once)  # the second pass is the second draw's


def test_the_learning_rate_takes_as_many_steps_as_are_said_in_as_many_passes(toy):
    """Megatron's optimizer has all four numbers, and takes null for three of them."""
    optim = f"{ACTOR}.optim"
    for warm_up, decay, expected in ((3, 4, [8, 6, 8, None]), ("null", 4, [8, None, 8, None])):
        options = (*ONE_STEP, f"{ACTOR}.ppo_epochs=2", f"{optim}.lr_warmup_steps={warm_up}")
        options += (f"+{optim}.lr_decay_steps={decay}", f"+{optim}.lr_wsd_decay_steps=null")
        config = configuration(toy, "trainer.v1.trainer_mode=dynamic_pruning", *options)
        made = DynamicPruningTrainer(config)
        made._init_tokenizer()
        made._init_dataloader()
        assert [config.actor_rollout_ref.actor.optim[name] for name in SCHEDULE] == expected


@pytest.mark.parametrize(("mode", "ours"), [*((mode, GRPO) for mode in MODES), ("seq-mean-token-mean", ALL)])
def test_what_has_no_gradient_is_left_out_and_grpo_is_verls_step_bit_for_bit_where_all_have_one(toy, mode, ours):
    for rewards, rows in ((REWARDS, 8), ((0.0, 0.0, 0.0, 0.0, *REWARDS[4:]), 4), ((1.0,) * 8, 1)):
        (full,), step = stock_and_ours(toy, *of_mode(mode), rewards=rewards, ours=(ours,))
        step.run()
        found = step.gradients.pop()
        assert [len(keys) for _, keys in step.made.actor_rollout_wg.passes] == [rows, rows]
        if rows == 8 and ours == GRPO:
            assert torch.equal(found, full)
        assert (found - full).norm() <= 1e-6 * full.norm()


def test_the_kl_term_reaches_completions_without_an_advantage(toy):
    (full,), step = stock_and_ours(toy, *KL, rewards=(1.0,) * 8, ours=(ALL,))
    step.run()
    assert step.metrics["rows/sent"] == 8 and bias(step.gradients.pop(), full) < 1e-5


@pytest.fixture
def a_third_is_silent(monkeypatch):
    """A third of the prompts has equal rewards; those of the others differ."""
    score = in_process.compute_score

    def scored(source, text, truth):
        return 1.0 if int(truth) % 3 == 0 else score(source, text, truth) + len(text) / 50

    monkeypatch.setattr(in_process, "compute_score", scored)


@pytest.mark.usefixtures("a_third_is_silent")
def test_method_grpo_keeps_verls_mini_batches(toy):
    """Two updates of two epochs, weights moving: a silent group left out of its mini-batch changes rounding alone."""
    sizes = (*sized(6, 4, mini_batch=2), f"{ACTOR}.ppo_epochs=2")
    stock = trainer(toy, "sync", *sizes)
    train(stock, 2)
    ours = trainer(toy, "dynamic_pruning", *sizes, GRPO)
    logged = train(ours, 2)
    assert all(each["rows/fillers"] or each["rows/forwarded"] < 24 for each in logged)  # something had no gradient
    assert bias(parameters(ours), parameters(stock)) < 1e-5


def test_entropy_of_the_kept_rows_stands_for_that_of_all(toy):
    for mode in ("seq-mean-token-mean", "seq-mean-token-sum"):
        _, step = stock_and_ours(toy, *KL, f"{ACTOR}.loss_agg_mode={mode}")
        total = weights = 0.0
        for chance, keep_N in all_draws():  # a ratio: its two sums are each exact in expectation
            step.drawn(keep_N)
            weight = float((keep_N / PROB_N).sum())
            total, weights = total + chance * step.metrics["actor/entropy"] * weight, weights + chance * weight
        assert total / weights == pytest.approx(step.stock["actor/entropy"], rel=1e-5)


def test_rewards_made_of_log_probabilities_keep_the_order_of_verl(toy):
    (full,), step = stock_and_ours(toy, "algorithm.use_kl_in_reward=True")
    assert bias(step.mean_of_draws(), full) < 1e-6
    passes = [(name, len(keys)) for name, keys in step.made.actor_rollout_wg.passes]
    assert passes == [("old", 8), ("ref", 8), ("update", 8)]


def test_without_the_samplers_probabilities_a_step_has_another_score(toy):
    silent = ("actor_rollout_ref.rollout.calculate_log_probs=False", f"{PRUNING}.completion_prune_rate=0.5")
    made = trainer(toy, "dynamic_pruning", *ONE_STEP, *silent, f"{ACTOR}.loss_agg_mode=token-mean")
    assert made.method.score_name == "advantage with length"
    made.prepare_step()
    for _, row in STORE["train"].values():
        row.pop("rollout_log_probs", None)
    metrics = {}
    made._step_once(metrics, {}, 2)
    assert metrics["actor/grad_norm"] > 0 and metrics["rows/sent"] < 8


@pytest.mark.usefixtures("a_third_is_silent")
def test_groups_that_verl_filters_are_replaced_and_the_step_is_made_of_those_it_has_left(toy):
    sizes = (*sized(4, 4), "algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
    with pytest.raises(ConfigError, match="accept_bias=True"):
        trainer(toy, "dynamic_pruning", *sizes)
    rate = f"{PRUNING}.completion_prune_rate=0.5"
    made = trainer(toy, "dynamic_pruning", *sizes, f"{PRUNING}.accept_bias=True", rate)
    logged = train(made, 2)
    asked = [prompt for _, prompt in made.agent_loop_manager.asked]
    assert len(asked) == len(set(asked)) > 8 == 2 * len(made.requested.uid_Q)  # in the order of the stream, none twice
    assert made.source.stream.offset == len(asked)
    assert all(each["training/filter_groups/evicted_samples"] > 0 for each in logged)
    assert all(each["rollout/zero_variance_groups"] == 0 and each["rows/sent"] < 16 for each in logged)
    assert any("rounds are biased" in reason for reason in made.method.selection_bias)
