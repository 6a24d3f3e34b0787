"""Rows in a training step: one layout for all log-probabilities, a budget that changes nothing else, odd batches."""

import warnings

import pytest
import torch
from tiny_runs import PADDED_TOO, logged, scripted
from trl_gradients import TOLERANCE, compare, constant, dppo_run, gradients

from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.batch import fill_tokens
from dppo.trl.forwards import ForwardPasses
from dppo.trl.layouts import PaddedLayout


class Unchanged(DPPOTrainer):
    """Keeps the largest difference of each log-probability from the old and the reference policy's."""

    def _micro_batch_loss(self, model, batch, draw, metrics):
        with torch.no_grad():
            logp = self.forwards(model, batch).logp_BT
        others = {"old": batch.rank_batch.old_logp if draw else None, "ref": batch.rank_batch.ref_logp}
        for name, other in others.items():
            if other is not None:
                difference = (logp.float() - batch.completion(other)) * batch.completion(batch.rank_batch.loss_mask)
                self.differences = [*getattr(self, "differences", []), (name, float(difference.abs().max()))]
        return super()._micro_batch_loss(model, batch, draw, metrics)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16 autocast"])
def test_log_probabilities_of_a_model_that_does_not_change_are_equal(bf16, tiny_path, tmp_path, monkeypatch):
    """Old, new and reference policy: ratio 1, divergence 0. The wrong twin has two layouts in one step."""
    still = dict(num_iterations=2, max_steps=2, beta=0.1, learning_rate=0.0, completion_prune_rate=0.0, bf16=bf16)
    _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **still)
    assert trainer.differences == [("ref", 0.0), ("old", 0.0), ("ref", 0.0)] and logged(trainer, "kl") == [0.0, 0.0]

    def by_padding(self, whole, weight_B, model):
        layout = PaddedLayout(padded_forward=self._trainer.padded_forward, reason="")
        places = layout.places(whole, weight_B.nonzero().flatten().tolist(), 10_000)
        batches = layout.micro_batches(whole, weight_B, places)
        return fill_tokens(
            whole, batches, lambda each: layout.forward(model, each, entropy=False, router=False).logp_BT
        )

    monkeypatch.setattr(ForwardPasses, "log_probs", by_padding)
    if bf16:
        _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **still)
        assert min(figure for _, figure in trainer.differences) > 1e-3 and min(logged(trainer, "kl")) > 1e-7


@pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
def test_no_row_is_over_the_budget_but_a_completion_alone(budget, tiny_path, tmp_path, forwarded):
    """``max_tokens_per_row`` decides how much one forward pass computes, and nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"ours": {"max_tokens_per_row": budget}, "beta": 0.1, "loss_type": "grpo", "max_steps": 2}
        differences, trainer = compare(tiny_path, tmp_path, **options)
    assert max(differences) < TOLERANCE
    trained = [row for row, gradient in forwarded if gradient]
    assert sum(logged(trainer, "rows/forwards")) == len(trained)
    assert sum(logged(trainer, "rows/tokens")) == sum(row.input_ids.numel() for row in trained)
    over = [row for row in trained if row.input_ids.numel() > budget]
    assert all(row.completions == 1 for row in over)
    said = [str(each.message) for each in caught if "a row of its own" in str(each.message)]
    assert len(said) == bool(over) == (budget < 17)
    assert all(
        f"one completion with its prompt is 16 tokens, over max_tokens_per_row={budget}" in text for text in said
    )


def places(prompts):
    """Of each completion its place in its group: both trainers shuffle, so a place in the batch means nothing."""
    seen = {}
    return [seen.setdefault(prompt, []).append(0) or len(seen[prompt]) - 1 for prompt in prompts]


def changed(every=1, prompt_tokens=99, completion_tokens=99, tool=False, truncated=False):
    """Rollouts of which every so many of a group are cut to a few tokens, are tool output, or have no end token."""

    def rollout(prompts, trainer):
        output = scripted(prompts, trainer)
        chosen = [place % every == 0 for place in places(prompts)]
        for name in ("completion_ids", "logprobs"):
            rows = zip(output[name], chosen, strict=True)
            output[name] = [values[: completion_tokens if mine else 99] for values, mine in rows]
        output["prompt_ids"] = [ids[:prompt_tokens] for ids in output["prompt_ids"]]
        pairs = [*zip(output["completion_ids"], chosen, strict=True)]
        if truncated:
            output["completion_ids"] = [[*ids[:-1], 5] if mine else ids for ids, mine in pairs]
        if tool:  # the other completions begin with it
            output["env_mask"] = [
                [int(not mine and t >= len(ids) // 2) for t in range(len(ids))] for ids, mine in pairs
            ]
        return output

    return rollout


def by_place(prompts, completions, answer, **_):
    """Rewards that differ in every group, whatever was written."""
    return [float((place + int(number)) % 3) for place, number in zip(places(prompts), answer, strict=True)]


ODD = {
    "prompts of one token": changed(prompt_tokens=1),
    "completions of one token": changed(completion_tokens=1),
    "some completions of one token": changed(every=3, completion_tokens=1),
    "some all tool output": changed(every=3, tool=True),
    "some truncated": changed(every=3, truncated=True),
}


@pytest.mark.parametrize("budget", [None, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ODD)
def test_the_gradient_of_an_odd_batch_is_trls(kind, budget, tiny_path, tmp_path, forwarded):
    """Old and reference log-probabilities of such rollouts count too."""
    options = dict(reward=by_place, num_iterations=2, max_steps=2, beta=0.1, loss_type="grpo", rollout=ODD[kind])
    options["mask_truncated_completions"] = "truncated" in kind
    differences, _ = compare(tiny_path, tmp_path, ours={"max_tokens_per_row": budget}, **options)
    assert max(differences) < TOLERANCE and forwarded


CALLS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
NOTHING = {
    "equal rewards": dict(reward=constant),
    "all tool output": dict(rollout=changed(tool=True), beta=0.1, num_iterations=2),
    "accumulation": dict(rollout=changed(truncated=True), mask_truncated_completions=True, **CALLS),
}


@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("options", NOTHING.values(), ids=NOTHING)
def test_nothing_left_is_a_gradient_of_exactly_zero(options, layout, tiny_path, tmp_path, forwarded):
    steps, trainer = dppo_run(tiny_path, tmp_path, layout=layout, max_steps=2, **options)
    assert len(steps) == trainer.state.global_step == 2
    assert all(len(step) == len(list(trainer.model.parameters())) for step in steps), "no gradient is missing"
    assert {float(g.abs().max()) for step in steps for g in step.values()} == {0.0}
    assert logged(trainer, "loss") == [0.0, 0.0] and logged(trainer, "skipped_step_share") == [0.0, 0.0]
    assert logged(trainer, "rows/forwards") == logged(trainer, "rows/tokens") == [0.0, 0.0] and not forwarded


def test_a_draw_may_leave_nothing(tiny_path, tmp_path):
    """With independent draws of a few completions some steps keep none."""
    options = dict(prompts=1, sampling_design="poisson", completion_prune_rate=0.8, max_steps=8, reward=by_place)
    steps, trainer = dppo_run(tiny_path, tmp_path, **options)
    kept = logged(trainer, "prune/kept_share")
    assert len(steps) == 8 and 0 < kept.count(0.0) < 8
    for step, share in zip(steps, kept, strict=True):
        assert (max(float(g.abs().max()) for g in step.values()) == 0.0) == (share == 0.0)
