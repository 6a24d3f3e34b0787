"""Out of memory: the message names the number to lower, and nothing else is taken for it."""

import re

import pytest
import torch
from refusals import refused, warned
from trl_gradients import dppo_run

from dppo.errors import OutOfMemoryError
from dppo.trl.layouts import PaddedLayout, RowLayout

LAYOUTS = {"rows": RowLayout, "padded": PaddedLayout}
RUN = dict(num_iterations=2, beta=0.1, max_steps=2)
EXHAUSTED = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
}


def exhaust(where, error, monkeypatch, layout):
    """Raise ``error`` in the first pass with a gradient: forward, or backward."""
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


@pytest.mark.parametrize(
    ("where", "kind", "layout"),
    [("forward", "cuda", "rows"), ("backward", "cpu", "padded"), ("backward", "cuda", "rows")],
)
def test_the_number_to_lower_is_named(where, kind, layout, tiny_path, tmp_path, monkeypatch):
    exhaust(where, EXHAUSTED[kind], monkeypatch, layout)
    with refused(OutOfMemoryError, "max_tokens_per_row=60") as raised:
        dppo_run(tiny_path, tmp_path, layout=layout, max_tokens_per_row=60, **RUN)
    found = re.search(r"over (\d+) tokens .* Set max_tokens_per_row: (\d+)", str(raised.value))
    tokens, advised = map(int, found.groups())
    assert 30 < tokens <= 60 and advised == tokens // 2
    assert raised.value.__cause__ is EXHAUSTED[kind]


def test_a_row_of_one_completion_needs_a_shorter_completion_not_a_shorter_row(tiny_path, tmp_path, monkeypatch):
    exhaust("forward", EXHAUSTED["cuda"], monkeypatch, "rows")
    with warned("row"), refused(OutOfMemoryError, "max_tokens_per_row=8", "Set a lower max_completion_length"):
        dppo_run(tiny_path, tmp_path, max_tokens_per_row=8)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_other_errors_are_left_alone(where, tiny_path, tmp_path, monkeypatch):
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    exhaust(where, error, monkeypatch, "rows")
    with pytest.raises(RuntimeError) as raised:
        dppo_run(tiny_path, tmp_path, **RUN)
    assert raised.value is error
