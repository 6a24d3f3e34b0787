"""Forward passes of an optimizer step: as many as rows hold something, in three trainers, and out of memory in one."""

import re

import dpo_runs
import pytest
import torch
from refusals import refused, warned
from sft_runs import ours as sft
from sft_runs import solutions, trained
from tiny_runs import GENERATIONS, first_half_reward, length_reward, logged, relative_difference
from torch import nn
from trl_gradients import constant, dppo_run, trl_run

from dppo.errors import OutOfMemoryError
from dppo.packing import plan_rows
from dppo.trl.layouts import PaddedLayout, RowLayout
from dppo.trl.loop import fill_gradients

ROOM = 400
"""Tokens of a row that holds all that these runs keep of a step."""


@pytest.fixture
def passes(monkeypatch):
    """Forward passes with a gradient of both layouts: the self-check goes another way."""
    count = [0]
    for layout in (RowLayout, PaddedLayout):

        def counted(self, *args, run=layout.forward, **options):
            count[0] += torch.is_grad_enabled()
            return run(self, *args, **options)

        monkeypatch.setattr(layout, "forward", counted)
    return count


def grpo(path, folder, calls, **options):
    own = dict(per_device_train_batch_size=8 * GENERATIONS // calls, gradient_accumulation_steps=calls)
    own |= dict(max_tokens_per_row=ROOM, reward=first_half_reward, completion_prune_rate=0.5)
    return dppo_run(path, folder, **own | options)


def of_rows(make, data):
    def run(path, folder, calls, **options):
        own = dict(per_device_train_batch_size=32 // calls, gradient_accumulation_steps=calls, max_steps=1)
        return trained(make, path, folder, data=data, **own | {"max_tokens_per_row": 2 * ROOM} | options)

    return run


TRAINERS = {"grpo": grpo, "sft": of_rows(sft, solutions(32)), "dpo": of_rows(dpo_runs.ours, dpo_runs.pairs(32))}


@pytest.mark.parametrize("room", [{}, {"max_tokens_per_row": 30}], ids=["one row", "several rows"])
@pytest.mark.parametrize("run", TRAINERS.values(), ids=TRAINERS)
def test_passes_are_the_rows_of_a_step_at_any_accumulation(run, room, passes, tiny_path, tmp_path, monkeypatch):
    """Rows are counted by their planner. The gradient is the same too, up to the order of sums."""
    planned, first = [], None

    def plan(*args, **options):
        planned.append(plan_rows(*args, **options))
        return planned[-1]

    monkeypatch.setattr("dppo.trl.layouts.plan_rows", plan)
    for calls in (1, 4, 32):
        passes[0] = 0
        (gradient,), trainer = run(tiny_path, tmp_path / str(calls), calls, **room)
        needed = len(planned[-1])
        assert passes[0] == sum(logged(trainer, "rows/forwards")) == needed
        assert needed > 1 if room else needed == 1
        first = gradient if first is None else first
        assert relative_difference(gradient, first) < 1e-5


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_other_layouts_run_no_idle_pass_either(layout, passes, tiny_path, tmp_path):
    _, trainer = grpo(tiny_path, tmp_path, 32, layout=layout)
    assert passes[0] == sum(logged(trainer, "rows/forwards")) < 8


def moved(run, path, folder, **options):
    """Steps and averages of Adam after a step with a gradient and one without, and the gradients of the second."""
    turn = [0]

    def reward(prompts, completions, **_):
        turn[0] += 1
        return length_reward(prompts, completions) if turn[0] == 1 else constant(prompts, completions)

    options |= dict(per_device_train_batch_size=4 * GENERATIONS, gradient_accumulation_steps=2, learning_rate=1e-3)
    steps, trainer = run(path, folder, reward=reward, max_steps=2, optim="adamw_torch", **options)
    state = [trainer.optimizer.state[parameter] for parameter in trainer.model.parameters()]
    average = torch.cat([each["exp_avg"].flatten() for each in state])
    return {float(each["step"]) for each in state}, average, list(steps[-1].values())


def test_an_optimizer_moves_on_a_step_without_rows_as_with_trl(tiny_path, tmp_path, monkeypatch):
    steps, average, given = moved(dppo_run, tiny_path, tmp_path, completion_prune_rate=0.0)
    _, of_trl, of_its = moved(trl_run, tiny_path, tmp_path)
    assert len(given) == len(of_its) and not any(gradient.any() for gradient in given)
    assert steps == {2.0} and float((average - of_trl).norm() / of_trl.norm()) < 1e-4
    # The wrong twin: without gradients AdamW stands still.
    monkeypatch.setattr("dppo.trl.loop.fill_gradients", lambda model: None)
    steps, average, _ = moved(dppo_run, tiny_path, tmp_path, completion_prune_rate=0.0)
    assert steps == {1.0} and float((average - of_trl).norm() / of_trl.norm()) > 0.1


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


# Out of memory: the message names the number to lower, and nothing else is taken for it.

LAYOUTS = {"rows": RowLayout, "padded": PaddedLayout}
CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
OTHER = RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def exhausted(where, error, layout, path, folder, monkeypatch, **options):
    """A run of which the first pass with a gradient fails with ``error``: forward, or backward."""
    original = LAYOUTS[layout].forward

    def forward(self, model, batch, **asked):
        if where == "forward" and torch.is_grad_enabled():
            raise error
        scored = original(self, model, batch, **asked)
        if where == "backward" and scored.logp_BT.requires_grad:
            scored.logp_BT.register_hook(fail)
        return scored

    def fail(_):
        raise error

    monkeypatch.setattr(LAYOUTS[layout], "forward", forward)
    settings = dict(layout=layout, max_tokens_per_row=60, num_iterations=2, beta=0.1, max_steps=2)
    dppo_run(path, folder, **settings | options)


@pytest.mark.parametrize(
    ("where", "error", "layout"),
    [("forward", CUDA, "rows"), ("backward", CPU, "padded"), ("backward", CUDA, "rows")],
)
def test_the_number_to_lower_is_named(where, error, layout, tiny_path, tmp_path, monkeypatch):
    with refused(OutOfMemoryError, "max_tokens_per_row=60") as raised:
        exhausted(where, error, layout, tiny_path, tmp_path, monkeypatch)
    found = re.search(r"over (\d+) tokens .* Set max_tokens_per_row: (\d+)", str(raised.value))
    tokens, advised = map(int, found.groups())
    assert 30 < tokens <= 60 and advised == tokens // 2 and raised.value.__cause__ is error


def test_a_row_of_one_completion_needs_a_shorter_completion_not_a_shorter_row(tiny_path, tmp_path, monkeypatch):
    with warned("row"), refused(OutOfMemoryError, "max_tokens_per_row=8", "Set a lower max_completion_length"):
        exhausted("forward", CUDA, "rows", tiny_path, tmp_path, monkeypatch, max_tokens_per_row=8)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_other_errors_are_left_alone(where, tiny_path, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError) as raised:
        exhausted(where, OTHER, "rows", tiny_path, tmp_path, monkeypatch)
    assert raised.value is OTHER
