"""Forward passes of an optimizer step: as many as rows hold something, in three trainers, at any accumulation."""

import dpo_runs
import pytest
import torch
from sft_runs import ours as sft
from sft_runs import solutions, trained
from tiny_runs import GENERATIONS, first_half_reward, logged, relative_difference
from torch import nn
from trl import GRPOConfig, GRPOTrainer
from trl_gradients import dppo_run, gradients

from dppo.packing import plan_rows
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.forwards import ForwardPasses
from dppo.trl.loop import fill_gradients

ROOM = 400
"""Tokens of a row that holds all that these runs keep of a step."""
CALLS = (1, 2, 4, 8, 16, 32)


@pytest.fixture
def passes(monkeypatch):
    """Forward passes with a gradient, counted by a hook on every model that is trained."""
    count, enter = [0], ForwardPasses.enter
    hooked = {}  # holds the models: the number of a model that is gone may be given again

    def counted(module, *_):
        count[0] += torch.is_grad_enabled()

    def hook(self):
        enter(self)
        model = self._trainer.model
        if id(model) not in hooked:
            hooked[id(model)] = model
            model.register_forward_pre_hook(counted)

    monkeypatch.setattr(ForwardPasses, "enter", hook)
    monkeypatch.setattr(ForwardPasses, "check_once", lambda self: None)
    return count


def constant(prompts, completions, **_):
    return [1.0] * len(prompts)


def grpo(path, folder, calls, **options):
    own = dict(
        per_device_train_batch_size=8 * GENERATIONS // calls,
        gradient_accumulation_steps=calls,
        max_tokens_per_row=ROOM,
        reward=first_half_reward,
        completion_prune_rate=0.5,
    )
    return dppo_run(path, folder, **own | options)


def of_rows(make, data):
    def run(path, folder, calls, **options):
        own = dict(per_device_train_batch_size=32 // calls, gradient_accumulation_steps=calls, max_steps=1)
        return trained(make, path, folder, data=data, **own | {"max_tokens_per_row": 2 * ROOM} | options)

    return run


TRAINERS = {"grpo": grpo, "sft": of_rows(sft, solutions(32)), "dpo": of_rows(dpo_runs.ours, dpo_runs.pairs(32))}


@pytest.mark.parametrize("run", TRAINERS.values(), ids=TRAINERS)
def test_one_row_is_one_pass_at_any_accumulation(run, passes, tiny_path, tmp_path):
    """The gradient is the same too, up to the order of sums."""
    first = None
    for calls in CALLS:
        passes[0] = 0
        (gradient,), trainer = run(tiny_path, tmp_path / str(calls), calls)
        assert passes[0] == sum(logged(trainer, "rows/forwards")) == 1
        first = gradient if first is None else first
        assert relative_difference(gradient, first) < 1e-5


@pytest.mark.parametrize("run", TRAINERS.values(), ids=TRAINERS)
def test_passes_are_the_rows_that_a_budget_needs(run, passes, tiny_path, tmp_path, monkeypatch):
    """Counted by the planner of rows: with a small budget there are several, dealt to few or to many calls."""
    planned = []

    def plan(*args, **options):
        planned.append(plan_rows(*args, **options))
        return planned[-1]

    monkeypatch.setattr("dppo.trl.layouts.plan_rows", plan)
    for calls in (1, 4, 32):
        passes[0], planned[:] = 0, []
        _, trainer = run(tiny_path, tmp_path / str(calls), calls, max_tokens_per_row=30)
        needed = len(planned[-1])
        assert needed > 1 and passes[0] == sum(logged(trainer, "rows/forwards")) == needed


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_other_layouts_run_no_idle_pass_either(layout, passes, tiny_path, tmp_path):
    _, trainer = grpo(tiny_path, tmp_path, 32, layout=layout)
    assert passes[0] == sum(logged(trainer, "rows/forwards")) < 8


def test_passes_lie_in_the_last_calls(tiny_path, tmp_path, monkeypatch):
    """The last one, which synchronizes gradients, among them."""
    dealt, calls_of = [], ForwardPasses.calls

    def calls(self, *args, **options):
        parts, metrics = calls_of(self, *args, **options)
        dealt.append([len(part) for part in parts])
        return parts, metrics

    monkeypatch.setattr(ForwardPasses, "calls", calls)
    grpo(tiny_path, tmp_path, 16, max_tokens_per_row=30)
    (counts,) = dealt
    assert 1 < sum(counts) < 16 and counts == sorted(counts)


class Watched(torch.optim.AdamW):
    """AdamW that keeps the gradients that it was given."""

    def step(self, closure=None):
        self.given = [p.grad for group in self.param_groups for p in group["params"]]
        return super().step(closure)


def moved(kind, config, path, folder, **options):
    """Adam's state after a step with a gradient and one without, and the gradients of the second."""
    turn = [0]

    def reward(prompts, completions, **_):
        turn[0] += 1
        return [float(len(text.split()) % 3) if turn[0] == 1 else 1.0 for text in completions]

    model = {}

    class Kept(kind):
        def create_optimizer(self, *args):
            model["optimizer"] = self.optimizer = Watched(self.model.parameters(), lr=1e-3, weight_decay=0.0)
            return self.optimizer

    gradients(Kept, config, path, folder, reward=reward, max_steps=2, gradient_accumulation_steps=2,
              per_device_train_batch_size=4 * GENERATIONS, learning_rate=1e-3, **options)  # fmt: skip
    optimizer = model["optimizer"]
    state = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
    return [float(each["step"]) for each in state], torch.cat([e["exp_avg"].flatten() for e in state]), optimizer.given


def test_an_optimizer_moves_on_a_step_without_rows_as_with_trl(tiny_path, tmp_path, passes, monkeypatch):
    steps, average, given = moved(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0)
    assert all(gradient is not None and not gradient.any() for gradient in given)
    _, of_trl, _ = moved(GRPOTrainer, GRPOConfig, tiny_path, tmp_path)
    assert set(steps) == {2.0} and float((average - of_trl).norm() / of_trl.norm()) < 1e-4
    # The wrong twin: without gradients AdamW stands still.
    monkeypatch.setattr("dppo.trl.loop.fill_gradients", lambda model: None)
    steps, average, _ = moved(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0)
    assert set(steps) == {1.0} and float((average - of_trl).norm() / of_trl.norm()) > 0.1


def test_a_frozen_parameter_gets_no_gradient():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    fill_gradients(model)
    assert not model.weight.grad.any() and model.bias.grad is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="accelerate scales losses of fp16 on a GPU alone")
def test_a_loss_scaler_steps_where_nothing_is_left(tiny_path, tmp_path):  # pragma: no cover
    """It refuses to step when no parameter has a gradient."""
    _, trainer = grpo(tiny_path, tmp_path, 2, reward=constant, max_steps=2, use_cpu=False, fp16=True)
    assert trainer.state.global_step == 2
