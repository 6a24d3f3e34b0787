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


STILL = dict(num_iterations=2, max_steps=2, beta=0.1, learning_rate=0.0)


class TestSameLayout:
    """Old, new and reference log-probabilities of a model that does not change are equal: ratio 1, divergence 0."""

    @pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16 autocast"])
    def test_the_same_rows_give_the_same_numbers(self, bf16, tiny_path, tmp_path):
        options = STILL | dict(bf16=bf16, completion_prune_rate=0.0)
        _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **options)
        assert trainer.differences == [("ref", 0.0), ("old", 0.0), ("ref", 0.0)]
        assert logged(trainer, "kl") == [0.0, 0.0]

    def test_two_layouts_in_one_step_are_seen(self, tiny_path, tmp_path, monkeypatch):
        def by_padding(self, whole, weight_B, model):
            layout = PaddedLayout(padded_forward=self._trainer.padded_forward, reason="")
            places = layout.places(whole, weight_B.nonzero().flatten().tolist(), 10_000)
            batches = layout.micro_batches(whole, weight_B, places)
            return fill_tokens(
                whole, batches, lambda batch: layout.forward(model, batch, entropy=False, router=False).logp_BT
            )

        monkeypatch.setattr(ForwardPasses, "log_probs", by_padding)
        options = STILL | dict(bf16=True, completion_prune_rate=0.0)
        _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **options)
        assert min(figure for _, figure in trainer.differences) > 1e-3 and min(logged(trainer, "kl")) > 1e-7


class TestBudget:
    """``max_tokens_per_row`` decides how much one forward pass computes, and nothing else."""

    @pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
    def test_no_row_is_over_it_but_a_completion_alone(self, budget, tiny_path, tmp_path, forwarded):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            differences, trainer = compare(
                tiny_path, tmp_path, ours={"max_tokens_per_row": budget}, beta=0.1, loss_type="grpo", max_steps=2
            )
        assert max(differences) < TOLERANCE
        trained = [row for row, gradient in forwarded if gradient]
        assert sum(logged(trainer, "rows/forwards")) == len(trained)
        assert sum(logged(trainer, "rows/tokens")) == sum(row.input_ids.numel() for row in trained)
        over = [row for row in trained if row.input_ids.numel() > budget]
        assert all(row.completions == 1 for row in over)
        said = [str(w.message) for w in caught if "a row of its own" in str(w.message)]
        assert len(said) == bool(over) == (budget < 17)
        assert all(
            f"one completion with its prompt is 16 tokens, over max_tokens_per_row={budget}" in text for text in said
        )


def places(prompts):
    """Of each completion its place in its group: both trainers shuffle, so a place in the batch means nothing."""
    seen = {}
    return [seen.setdefault(prompt, []).append(0) or len(seen[prompt]) - 1 for prompt in prompts]


def cut(prompt_tokens=99, completion_tokens=99, every=1):
    """Rollouts with every so many of a group cut to a few tokens."""

    def rollout(prompts, trainer):
        output = scripted(prompts, trainer)
        for name in ("completion_ids", "logprobs"):
            kept = [99 if place % every else completion_tokens for place in places(prompts)]
            output[name] = [values[:count] for values, count in zip(output[name], kept, strict=True)]
        return output | {"prompt_ids": [ids[:prompt_tokens] for ids in output["prompt_ids"]]}

    return rollout


def masked(every):
    """Rollouts that begin with the output of a tool, and every so many of a group hold nothing else."""

    def rollout(prompts, trainer):
        output = scripted(prompts, trainer)
        lengths = [len(ids) for ids in output["completion_ids"]]
        masks = [
            [int(place % every > 0 and t >= n // 2) for t in range(n)]
            for place, n in zip(places(prompts), lengths, strict=True)
        ]
        return output | {"env_mask": masks}

    return rollout


def truncated(every):
    """Rollouts of which every so many of a group end without an end token."""

    def rollout(prompts, trainer):
        output = scripted(prompts, trainer)
        pairs = zip(places(prompts), output["completion_ids"], strict=True)
        return output | {"completion_ids": [ids if place % every else [*ids[:-1], 5] for place, ids in pairs]}

    return rollout


def by_place(prompts, completions, answer, **_):
    """Rewards that differ in every group, whatever was written."""
    return [float((place + int(number)) % 3) for place, number in zip(places(prompts), answer, strict=True)]


ODD = {
    "prompts of one token": dict(rollout=cut(prompt_tokens=1)),
    "completions of one token": dict(rollout=cut(completion_tokens=1)),
    "some completions of one token": dict(rollout=cut(completion_tokens=1, every=3)),
    "some all tool output": dict(rollout=masked(every=3)),
    "some truncated": dict(rollout=truncated(every=3), mask_truncated_completions=True),
}
PASSES = dict(reward=by_place, num_iterations=2, max_steps=2, beta=0.1, loss_type="grpo")
"""So that old and reference log-probabilities of such rollouts count too."""


class TestOddBatches:
    """Whatever is rolled out, the gradient is TRL's; where nothing is left, it is zero and the run goes on."""

    @pytest.mark.parametrize("budget", [None, pytest.param(24, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("kind", ODD)
    def test_gradient_equals_trl(self, kind, budget, tiny_path, tmp_path, forwarded):
        differences, _ = compare(tiny_path, tmp_path, ours={"max_tokens_per_row": budget}, **ODD[kind], **PASSES)
        assert max(differences) < TOLERANCE and forwarded

    @pytest.mark.parametrize("layout", PADDED_TOO)
    @pytest.mark.parametrize(
        "options",
        [
            dict(reward=constant),
            dict(rollout=masked(every=1), beta=0.1, num_iterations=2),
            dict(rollout=truncated(every=1), mask_truncated_completions=True, per_device_train_batch_size=8,
                 gradient_accumulation_steps=4),
        ],
        ids=["equal rewards", "all tool output", "accumulation"],
    )  # fmt: skip
    def test_nothing_left_is_a_gradient_of_exactly_zero(self, options, layout, tiny_path, tmp_path, forwarded):
        steps, trainer = dppo_run(tiny_path, tmp_path, layout=layout, max_steps=2, **options)
        assert len(steps) == trainer.state.global_step == 2
        assert all(len(step) == len(list(trainer.model.parameters())) for step in steps), "no gradient is missing"
        assert {float(g.abs().max()) for step in steps for g in step.values()} == {0.0}
        assert logged(trainer, "loss") == [0.0, 0.0] and logged(trainer, "skipped_step_share") == [0.0, 0.0]
        assert logged(trainer, "rows/forwards") == logged(trainer, "rows/tokens") == [0.0, 0.0] and not forwarded

    def test_a_draw_may_leave_nothing(self, tiny_path, tmp_path):
        """With independent draws of a few completions some steps keep none."""
        options = dict(prompts=1, sampling_design="poisson", completion_prune_rate=0.8, max_steps=8, reward=by_place)
        steps, trainer = dppo_run(tiny_path, tmp_path, **options)
        kept = logged(trainer, "prune/kept_share")
        assert len(steps) == 8 and 0 < kept.count(0.0) < 8
        for step, share in zip(steps, kept, strict=True):
            assert (max(float(g.abs().max()) for g in step.values()) == 0.0) == (share == 0.0)
