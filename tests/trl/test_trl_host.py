"""The host between two backward passes of a step: it asks the device for nothing, so work is queued ahead."""

import warnings
from functools import partial

import dpo_runs
import pytest
import torch
from accelerate import Accelerator
from sft_runs import ours as sft
from sft_runs import solutions, trained
from tiny_runs import GENERATIONS, logged
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from trl_gradients import dppo_run

from dppo.trl.forwards import ForwardPasses
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import LossMetrics, PhaseClock

ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
"""Operations whose result the host needs: each waits for all that the device has still to do."""


class Questions(TorchDispatchMode):
    """Questions of the host to a device, as if every tensor were on one, in the open part of a run."""

    def __init__(self):
        super().__init__()
        self.on, self.inside, self.found = False, 0, []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        indices = args[1] if name == "index" else ()
        if name in ASKS or any(index is not None and index.dtype == torch.bool for index in indices):
            self.add(name)
        return op(*args, **(kwargs or {}))

    def add(self, name):
        if self.on and not self.inside:
            self.found.append(name)

    def quiet(self, function):
        """The function, in which no question counts."""

        def called(*args, **options):
            self.inside += 1
            try:
                return function(*args, **options)
            finally:
                self.inside -= 1

        return called


@pytest.fixture
def questions(monkeypatch):
    """Questions between the first backward pass of a step and its last, but for those of models and of autograd."""
    mode = Questions()
    tolist, original, backward = torch.Tensor.tolist, TrainingLoop.backward_but_last, mode.quiet(Accelerator.backward)

    def asked(self):
        mode.add("tolist")
        return tolist(self)

    def begun(self, loss, **options):
        backward(self, loss, **options)
        mode.on = True

    def watched(self, *args):
        with mode, monkeypatch.context() as patch:
            patch.setattr(Accelerator, "backward", begun)
            last = original(self, *args)
        mode.on = False
        return last

    monkeypatch.setattr(torch.Tensor, "tolist", asked)
    monkeypatch.setattr(PreTrainedModel, "__call__", mode.quiet(PreTrainedModel.__call__))
    monkeypatch.setattr(ForwardPasses, "check_once", lambda self: None)
    monkeypatch.setattr(TrainingLoop, "backward_but_last", watched)
    return mode


ROWS = dict(per_device_train_batch_size=16, max_steps=1)
grpo = partial(dppo_run, per_device_train_batch_size=8 * GENERATIONS, completion_prune_rate=0.0)
RUNS = {
    "grpo": (grpo, {}),
    "kl and entropy": (grpo, {"beta": 0.1, "entropy_coef": 0.1, "loss_type": "dr_grpo"}),
    "cut": (grpo, {"token_prune_rate": 0.4, "head_prune_rate": 0.3, "loss_type": "dr_grpo"}),
    "packed": (grpo, {"layout": "packed"}),
    "sft": (partial(trained, sft, data=solutions(16), **ROWS), {}),
    "dpo": (partial(trained, dpo_runs.ours, data=dpo_runs.pairs(16), **ROWS), {}),
}


@pytest.mark.parametrize("kind", RUNS)
def test_nothing_is_asked_between_two_backward_passes(kind, questions, tiny_path, tmp_path):
    run, options = RUNS[kind]
    _, trainer = run(tiny_path, tmp_path, max_tokens_per_row=30, **options)
    assert sum(logged(trainer, "rows/forwards")) > 2
    assert questions.found == []


def test_a_metric_that_is_read_at_once_is_seen(questions, tiny_path, tmp_path, monkeypatch):
    """The wrong twins: a number, and rows that are chosen by what the device has."""
    add = LossMetrics.add

    def eager(self, tokens, *others):
        float(tokens.logp_BT.detach().mean())
        tokens.advantage_B[tokens.advantage_B > 0]
        return add(self, tokens, *others)

    monkeypatch.setattr(LossMetrics, "add", eager)
    grpo(tiny_path, tmp_path, max_tokens_per_row=30)
    assert {"_local_scalar_dense", "index"} <= set(questions.found)


def test_clocks_wait_for_no_pass_but_the_last(tiny_path, tmp_path, monkeypatch):
    """In a step of several calls with a pass each, the clock is read without a wait until the last is queued."""
    events, read, backward = [], PhaseClock._read, Accelerator.backward

    def reads(self, wait):
        events.append("wait" if wait else "read")
        return read(self, wait)

    def passes(self, loss, **options):
        events.append("backward" if loss.grad_fn is not None and not loss.is_leaf else "empty")
        return backward(self, loss, **options)

    monkeypatch.setattr(PhaseClock, "_read", reads)
    monkeypatch.setattr(Accelerator, "backward", passes)
    calls = {"per_device_train_batch_size": 2 * GENERATIONS, "gradient_accumulation_steps": 4}
    grpo(tiny_path, tmp_path, max_tokens_per_row=30, **calls)
    last = len(events) - 1 - events[::-1].index("backward")
    between = events[events.index("backward") : last]
    assert between.count("backward") > 2 and between.count("read") > 2 and "wait" not in between


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", RUNS)
def test_a_gpu_is_not_waited_for(kind, tiny_path, tmp_path, monkeypatch):  # pragma: no cover
    original, waits = TrainingLoop.backward_but_last, []

    def watched(self, model, micro_batches, loss_of):
        def quiet(batch):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    return loss_of(batch)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                    waits.extend(str(each.message) for each in caught if "synchroniz" in str(each.message))

        return original(self, model, micro_batches, quiet)

    monkeypatch.setattr(TrainingLoop, "backward_but_last", watched)
    run, options = RUNS[kind]
    run(tiny_path, tmp_path, max_tokens_per_row=30, use_cpu=False, **options)
    assert waits == []
