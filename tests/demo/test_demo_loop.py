"""The loop on one screen: the same gradient as the formula, unbiased when pruned, and races that are fair."""

import copy
from dataclasses import replace

import pytest
import torch

from dppo.demo.decode import sample
from dppo.demo.loop import GENERATIONS, PROMPTS, Loop, everything
from dppo.demo.model import build_model
from dppo.demo.race import Setting, contestants, race
from dppo.demo.run import seconds_to
from dppo.demo.task import make_split
from dppo.demo.tokenizer import build_tokenizer, encode_prompts
from dppo.methods import DPPO, GRPO
from dppo.rng import torch_generator


@pytest.fixture(scope="module")
def start():
    torch.manual_seed(0)
    return build_model(0).eval(), build_tokenizer(), make_split(0, train=32, held_out=6)


def coin(seed):
    """Rewards by coin flip in place of right answers, which an untrained policy never gives: groups get a signal."""

    def rewards(self, rows, rollout):
        return torch.randint(2, (len(rows), GENERATIONS), generator=torch_generator(seed, self.steps)).float()

    return rewards


def gradient_of_step(start, monkeypatch, method, seed=0, draw_seed=None, live=None):
    model, tokenizer, split = start
    monkeypatch.setattr(Loop, "_rewards", coin(1))
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a, **k: None)
    loop = Loop(copy.deepcopy(model), tokenizer, split.train, method, seed=seed, live=live)
    captured = []
    monkeypatch.setattr(
        loop.optimizer, "step", lambda: captured.append([p.grad.clone() for p in loop.model.parameters()])
    )
    if draw_seed is not None:
        import dppo.demo.loop as module

        original = module.generator
        monkeypatch.setattr(module, "generator", lambda *key: original(draw_seed, *key[1:]))
    report = loop.step(1e-3)
    monkeypatch.undo()
    return torch.cat([g.flatten() for g in captured[0]]).double(), report


def test_log_probs_are_those_the_decoder_sampled_with(start):
    model, tokenizer, split = start
    loop = Loop(copy.deepcopy(model), tokenizer, split.train, GRPO, seed=0)
    prompts = encode_prompts(tokenizer, [p.question for p in split.train[:2]])
    rollout = sample(model, prompts, torch_generator(3), samples=GENERATIONS, max_new_tokens=20)
    kept = [6, 1, 2, 9]
    seen = []
    for logp_BT, batch in loop._log_probs(kept, [prompts[i // GENERATIONS] for i in kept], rollout):
        torch.testing.assert_close(logp_BT, rollout.logp_NT[batch], rtol=0, atol=1e-4)
        seen += batch.tolist()
    assert sorted(seen) == sorted(kept)


def test_dropping_completions_without_gradient_is_exact(start, monkeypatch):
    """Plain GRPO forwards everything; leaving out zero advantages, over the same denominator, changes nothing."""
    full, everything_kept = gradient_of_step(start, monkeypatch, GRPO, live=everything)
    less, report = gradient_of_step(start, monkeypatch, GRPO)
    assert everything_kept.completions_trained == PROMPTS * GENERATIONS >= report.completions_trained
    torch.testing.assert_close(less, full, rtol=1e-4, atol=1e-7)


def test_pruned_gradient_is_right_on_average(start, monkeypatch):
    full, _ = gradient_of_step(start, monkeypatch, GRPO)
    pruned = DPPO.with_rates(completion=0.5, prompt=0.0)
    draws = torch.stack([gradient_of_step(start, monkeypatch, pruned, draw_seed=s)[0] for s in range(1, 25)])
    error = (draws.mean(0) - full).square().sum() / (draws - full).square().sum(1).mean()
    assert error < 4 / len(draws)  # 1 / draws is expected; 4 times that has probability below 1e-3

    forgotten = replace(pruned, completions=replace(pruned.completions, weighting=lambda keep, prob: keep.double()))
    draws = torch.stack([gradient_of_step(start, monkeypatch, forgotten, draw_seed=s)[0] for s in range(1, 25)])
    error = (draws.mean(0) - full).square().sum() / (draws - full).square().sum(1).mean()
    assert error > 8 / len(draws)


def test_prompts_are_pruned_once_they_have_a_history(start, monkeypatch):
    model, tokenizer, split = start
    monkeypatch.setattr(Loop, "_rewards", coin(2))
    loop = Loop(copy.deepcopy(model), tokenizer, split.train, DPPO.with_rates(prompt=0.5), seed=0)
    rollouts = [loop.step(1e-4).rollouts for _ in range(3)]
    assert rollouts == [PROMPTS * GENERATIONS, PROMPTS * GENERATIONS, PROMPTS * GENERATIONS // 2]


def test_a_race_starts_equal_and_stops_at_equal_seconds(start):
    model, tokenizer, split = start
    before = copy.deepcopy(model.state_dict())
    seen = []
    runners = race(
        model,
        tokenizer,
        split,
        contestants(0.3, 0.5),
        Setting(steps=3, evaluations=3, samples=1),
        seed=0,
        report=lambda runner, share: seen.append((runner.name, share)),
    )
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    grpo, dppo = runners
    assert grpo.curve[0] == dppo.curve[0] and grpo.loop.steps == 3
    assert dppo.seconds >= grpo.seconds and dppo.loop.steps >= 1
    assert [len(r.curve) for r in runners] == [4, 4]
    assert seen[:2] == [("grpo", 1 / 3), ("dppo", 1 / 3)]
    assert grpo.completions_trained == grpo.rollouts == 3 * PROMPTS * GENERATIONS


def test_time_to_target_interpolates():
    curve = [{"seconds": s, "accuracy": a} for s, a in ((0, 0.2), (10, 0.4), (20, 0.3), (30, 0.6))]
    assert seconds_to(curve, 0.1) == 0 and seconds_to(curve, 0.3) == pytest.approx(5.0)
    assert seconds_to(curve, 0.5) == pytest.approx(20 + 10 * 2 / 3) and seconds_to(curve, 0.7) is None
