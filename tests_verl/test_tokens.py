"""Tokens left out on verl: the mean over cuts is verl's gradient, and each pass goes over the prefixes alone."""

from dataclasses import replace
from itertools import cycle

import in_process
import pytest
import torch
from in_process import ACTOR, PRUNING, STORE, get, parameters, put, sized, train, trainer
from steps import ALL_TERMS, CUTS, KL, ONE_STEP, POINTS, RATIOS, Given, OffPolicy, all_draws, bias, stock_and_ours
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

import dppo.verl.batch
from dppo.errors import ConfigError
from dppo.objective import DR_GRPO, mixes_tokens
from dppo.verl.layout import Prefixes, place
from dppo.verl.support import MIXING_LOSSES, ROW_LOSSES
from dppo.verl.trainer_base import PrunedTrainer

EXACT, ROUNDED, SEEN = 1e-6, 1e-5, 0.02
PADDED = ("actor_rollout_ref.model.use_remove_padding=False",)
CASES = {
    "token-mean, KL and entropy": ("token-mean", ALL_TERMS),
    "token-sum, KL": ("token-sum", KL),
    "seq-mean-token-mean, KL and entropy": ("seq-mean-token-mean", ALL_TERMS),
    "seq-mean-token-mean, ratios, padded": ("seq-mean-token-mean", (*RATIOS, *PADDED)),
    "seq-mean-token-sum, ratios": ("seq-mean-token-sum", RATIOS),
    "seq-mean-token-sum-norm, KL and entropy, padded": ("seq-mean-token-sum-norm", (*ALL_TERMS, *PADDED)),
    "bypass": ("seq-mean-token-sum", (f"{ACTOR}.policy_loss.loss_mode=cispo", f"{RATIOS[0][:28]}.bypass_mode=True")),
}


class Noted(OffPolicy):
    """Notes the tokens of each row that a pass is given, prompt and completion."""

    def __init__(self, config):
        super().__init__(config)
        self.lengths = []

    def data(self, batch):
        data = super().data(batch)
        length = data["input_ids"].offsets().diff()
        assert torch.equal(length, torch.tensor([tag["seq_len"] for tag in batch.tags]))
        for name in ("responses", "response_mask", "loss_mask"):
            assert torch.equal(data[name].offsets().diff(), length - data["prompts"].offsets().diff())
        assert all(torch.equal(row, torch.arange(len(row))) for row in data["position_ids"].unbind())
        self.lengths.append(dict(zip(batch.keys, length.tolist(), strict=True)))
        return data


def options_of(mode, terms):
    return (f"{ACTOR}.loss_agg_mode={mode}", f"{ACTOR}.loss_scale_factor=12", *terms)


@pytest.mark.parametrize("case", CASES)
def test_the_mean_over_every_cut_is_verls_gradient_and_each_is_that_of_whole_rows_before_the_update(case, toy):
    (full,), step = stock_and_ours(toy, *options_of(*CASES[case]), ours=(CUTS,))
    mean, furthest, kept = 0.0, 0.0, set()
    for point in range(POINTS):
        step.cut(point)
        ours = step.gradients.pop().double()
        mean, kept = mean + ours / POINTS, kept | {(step.metrics["rows/sent"], step.metrics["rows/tokens_share"])}
        step.made.waits_for = True
        step.cut(point)
        furthest = max(furthest, bias(step.gradients.pop().double(), ours))
        step.made.waits_for = False
    print(f"{case}: bias {bias(mean, full):.1e}, furthest from whole rows {furthest:.1e}")
    assert bias(mean, full) < EXACT and furthest < ROUNDED
    assert len({rows for rows, _ in kept}) > 1 and min(share for _, share in kept) < 0.5  # some are cut at 0
    assert not any(STORE[name] for name in STORE if name != "train")


@pytest.fixture
def plans(monkeypatch):
    """The plan of each step, the newest last."""
    found, plan = [], PrunedTrainer._plan
    monkeypatch.setattr(PrunedTrainer, "_plan", lambda self, returned: found.append(plan(self, returned)) or found[-1])
    return found


def drawn_lengths(step, plan):
    """Tokens of each drawn row in each optimizer step: its prompt and the completion up to the cut."""
    keys, tags = step.asked_order(), step.tags
    return [
        {key: tags[key]["prompt_len"] + n for key, n in zip(keys, draw.length_N.tolist(), strict=True) if n}
        for draw in plan.token_draws
    ]


def test_each_pass_goes_over_the_prefix_that_is_drawn_and_over_no_other_token(toy, plans):
    _, step = stock_and_ours(toy, *KL, group=Noted, ours=(CUTS,))
    group, shares = step.made.actor_rollout_wg, set()
    for point in range(POINTS):
        group.lengths.clear()
        step.cut(point)
        (kept,) = drawn_lengths(step, plans[-1])
        assert [name for name, _ in group.passes] == ["old", "ref", "update"]
        assert group.lengths == [kept] * 3
        whole = sum(tag["seq_len"] for tag in step.batch.tags)
        assert step.metrics["rows/tokens_share"] == pytest.approx(sum(kept.values()) / whole)
        assert step.metrics["global_seqlen/mean"] == sum(kept.values())
        shares.add(step.metrics["prune/token_kept_share"])
    assert len(shares) > 1 and max(shares) <= 1 and step.gradients


def test_several_passes_over_the_batch_have_cuts_of_their_own_and_old_ones_reach_as_far_as_any(toy, plans):
    options = (f"{ACTOR}.ppo_epochs=2", *options_of("seq-mean-token-mean", KL))
    full, step = stock_and_ours(toy, *options, group=Noted, ours=(CUTS,))
    group, first, second, differing = step.made.actor_rollout_wg, 0.0, 0.0, 0
    for point in range(POINTS):
        group.lengths.clear()
        step.cut(point, (point + 1) % POINTS)
        mine, other = drawn_lengths(step, plans[-1])
        union = {key: max(mine.get(key, 0), other.get(key, 0)) for key in mine | other}
        assert [name for name, _ in group.passes] == ["old", "ref", "update", "update"]
        assert group.lengths == [union, union, mine, other]
        differing += mine != other
        second, first = second + step.gradients.pop().double() / POINTS, first + step.gradients.pop().double() / POINTS
    assert bias(first, full[0]) < EXACT and bias(second, full[0]) < EXACT and differing


def test_completions_are_dealt_to_mini_batches_and_cut_within_each(toy):
    sizes = (f"{ACTOR}.ppo_mini_batch_size=1", *options_of("seq-mean-token-mean", KL))
    full, step = stock_and_ours(toy, *sizes, ours=(CUTS,))
    mean = 0.0
    for point in range(POINTS):
        step.cut(point)
        assert len(step.gradients) == len(full) == 2
        mean = mean + (step.gradients.pop() + step.gradients.pop()).double() / POINTS
    assert bias(mean, sum(full)) < EXACT  # verl's own mini-batches have other completions


def test_completions_pruned_and_cut(toy):
    """Both draws of one step: their weights multiply."""
    rate = f"{PRUNING}.completion_prune_rate=0.5"
    (full,), step = stock_and_ours(toy, *options_of("seq-mean-token-mean", KL), ours=(CUTS, rate))
    mean = 0.0
    for chance, keep_N in all_draws():
        step.made.session.method = replace(step.made.method, completions=Given(told=cycle((keep_N,))))
        mean = mean + chance * step.mean_of_cuts()
    assert bias(mean, full) < EXACT


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_tokens_without_loss_are_gone_through_and_counted_nowhere(toy, mode, monkeypatch):
    monkeypatch.setattr(in_process.Agents, "silent", slice(2, 5))
    (full,), step = stock_and_ours(toy, *options_of(mode, KL), ours=(CUTS,))
    assert {int((row["response_mask"] == 0).sum()) for _, row in STORE["train"].values() if "rm_scores" in row} >= {3}
    assert bias(step.mean_of_cuts(), full) < EXACT


def one_weight_per_completion(step, monkeypatch):
    cut = Prefixes.cut

    def first_weights(self, *given):
        found = cut(self, *given)
        return replace(found, weight_NT=found.weight_NT[:, :1].expand_as(found.weight_NT))

    monkeypatch.setattr(Prefixes, "cut", first_weights)


def mean_over_the_tokens_of_a_row_before_its_cut(step, monkeypatch):
    step.made.session.method = replace(step.made.method, normaliser=DR_GRPO)  # as if verl did not divide by them


def mean_over_the_tokens_that_are_sent(step, monkeypatch):
    uncorrected = lambda *given, tokens_U, scale: place(*given, tokens_U=None, scale=scale)  # noqa: E731
    monkeypatch.setattr(dppo.verl.batch, "place", uncorrected)


def update_over_whole_rows(step, monkeypatch):
    """Whose last tokens no pass before it has looked at."""
    weighted = PrunedTrainer._weighted

    def whole_rows(self, placement, batch):
        old = get(batch.keys, batch.partition_id, ["old_log_probs"])["old_log_probs"].unbind()
        masks = get(batch.keys, "train", ["response_mask"])
        missing = [len(mask) - len(row) for mask, row in zip(masks["response_mask"].unbind(), old, strict=True)]
        padded = [torch.nn.functional.pad(row, (0, count)) for row, count in zip(old, missing, strict=True)]
        masks["old_log_probs"] = torch.nested.as_nested_tensor(padded, layout=torch.jagged)
        return put(batch.keys, "train", masks.select("old_log_probs"))

    def of_rows_alone(self, placement, rows):
        completion_N = torch.tensor([tag["response_len"] for tag in self.dispatched.whole.tags])
        whole = replace(placement.rows, weight_NT=None, completion_N=completion_N)
        return weighted(self, replace(placement, rows=whole), rows)

    monkeypatch.setattr(PrunedTrainer, "_rows_of", whole_rows)
    monkeypatch.setattr(PrunedTrainer, "_weighted", of_rows_alone)


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        ("seq-mean-token-mean", one_weight_per_completion),
        ("seq-mean-token-mean", mean_over_the_tokens_of_a_row_before_its_cut),
        ("token-mean", mean_over_the_tokens_that_are_sent),
        ("seq-mean-token-mean", update_over_whole_rows),
    ],
)
def test_wrong_twins_are_seen(toy, mode, wrong, monkeypatch):
    (full,), step = stock_and_ours(toy, *options_of(mode, ()), ours=(CUTS,))
    wrong(step, monkeypatch)
    assert bias(step.mean_of_cuts(), full) > SEEN


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_entropy_of_what_is_kept_stands_for_that_of_all(toy, mode):
    _, step = stock_and_ours(toy, *options_of(mode, KL), ours=(CUTS,))
    total = weights = 0.0
    for point in range(POINTS):  # a ratio: its two sums are each exact in expectation
        step.cut(point)
        rows = step.made.dispatched.rows
        weight_B = rows.weight_NT.sum(1)  # every completion token carries loss here
        weight = float((weight_B if mode == "token-mean" else weight_B / rows.scored_NT.sum(1)).sum())
        total, weights = total + step.metrics["actor/entropy"] * weight, weights + weight
    assert total / weights == pytest.approx(step.stock["actor/entropy"], rel=1e-5)


@pytest.mark.parametrize("level", ["token_prune_rate=0.5", "token_prune_rate=auto", "method=nat_rpc"])
def test_runs_train_and_log_what_was_left_out(toy, level):
    options = (*sized(4, 4, mini_batch=2), *KL, f"{PRUNING}.{level}")
    made = trainer(toy, "dynamic_pruning", *options)
    before = parameters(made)
    for logged in train(made, 2):
        assert 0 < logged["prune/token_kept_share"] <= 1 and logged["prune/head_share"] <= 1
        assert logged["prune/largest_token_weight"] >= 1 and logged["actor/grad_norm"] > 0
        assert logged["prune/tokens_trained"] > 0 and "prune/token_added_variance" in logged
        if "auto" not in level:
            assert logged["prune/token_rate"] == 0.5 and logged["rows/tokens_share"] < 1
    assert not torch.equal(parameters(made), before) and not any(STORE[name] for name in STORE if name != "train")


def test_images_are_refused(toy):
    made = trainer(toy, "dynamic_pruning", *ONE_STEP, CUTS)
    made.processor = object()
    with pytest.raises(ConfigError, match="token_prune_rate=0"):
        made.on_init_end()


def test_losses_that_are_refused_are_those_that_look_at_several_tokens(monkeypatch):
    summed = []
    monkeypatch.setattr(core_algos, "agg_loss", lambda loss_mat, **_: summed.append(loss_mat) or loss_mat.sum())
    clips = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}

    def loss_of(mode, **correction):
        """verl's loss of each token, before it is summed."""
        config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **clips)
        config.policy_loss.__dict__.update(loss_mode=mode, dro_beta=0.5, rollout_correction=correction)

        def loss(tokens):
            advantage_BT = tokens.advantage_B[:, None].expand_as(tokens.logp_BT)
            given = tokens.old_logp_BT, tokens.logp_BT, advantage_BT, tokens.mask_BT
            core_algos.get_policy_loss_fn(mode)(*given, "token-sum", config)
            return summed.pop()

        return loss

    assert {mode for mode in ROW_LOSSES if mixes_tokens(loss_of(mode))} == set(MIXING_LOSSES) == {"gspo"}
    assert mixes_tokens(loss_of("bypass_mode", rollout_is="sequence", loss_type="reinforce"))
    assert not mixes_tokens(loss_of("bypass_mode", rollout_is="token", loss_type="reinforce"))
