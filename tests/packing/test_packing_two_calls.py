"""Attention in two calls is exact with any exact kernel, copies no key, and its wrong twins do not pass the probe."""

import sys
import types
from inspect import signature

import packing_varlen
import pytest
import torch
from packing_models import Setting, make_batch, prepare_rows, reference, run_layout, shared_row
from packing_varlen import Exact, OwnSums
from refusals import refused

from dppo.errors import ShapeError
from dppo.packing import cuda_kernels, two_calls
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import LONGER, PROBED, Kernel, probe, segment_sdpa
from dppo.packing.rows import Segments
from dppo.packing.two_calls import Pieces, in_two_calls

CPU = torch.device("cpu")


def probed(varlen, gathering=segment_sdpa, **options):
    """What the probe finds wrong with two calls of a kernel: output and gradients, against plain SDPA."""
    kernel = Kernel(name="two calls", attend=in_two_calls(varlen, gathering))
    return probe(kernel, CPU, torch.float64, 16, windows=(None,), **options)


def no_gather(*_):
    pytest.fail("gathered")


@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (6, 1)], ids=str)
@pytest.mark.parametrize("segments", [PROBED, LONGER, Segments(length_S=(3, 1, 2), trunk_S=(-1, 0, 0))], ids=str)
def test_outputs_and_gradients_are_those_of_sdpa(segments, heads):
    assert probed(Exact(), no_gather, segments=segments, heads=heads) == ""


def test_keys_are_slices_of_the_row_and_each_is_seen_in_place():
    varlen = Exact()
    assert probed(varlen, no_gather) == ""
    (query, key, value, causal), (forked, shared, shared_value, second) = varlen.calls
    assert causal and not second
    assert (len(key), len(shared), len(forked)) == (PROBED.total, 7 + 5, 1 + 9 + 4 + 3 + 8)
    for part, whole in ((forked, query), (shared, key), (shared_value, value)):
        assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def half_of_each(output, lse, other, other_lse):
    """Merged without their log-sum-exps."""
    return (output + other) / 2, torch.logaddexp(lse, other_lse)


def of_the_first_call(output, lse, other, other_lse):
    """Merged output, and the log-sum-exp of one call."""
    return RIGHT_MERGED(output, lse, other, other_lse)[0], lse


RIGHT_MERGED, RIGHT_CALLS = two_calls.merged, two_calls.two_calls


def on_every_trunk(segments, device):
    """Branches see the trunks of all prompts."""
    calls = RIGHT_CALLS(segments, device)
    counts = [calls.forked.stop - calls.forked.start], [calls.shared.stop]
    return calls._replace(across=Pieces.of_counts(*counts, device))


def on_another_trunk(segments, device):
    """Keys are cut where the trunks would end in another order."""
    calls = RIGHT_CALLS(segments, device)
    lengths = calls.across.cu_seqlens_k.diff().flip(0)
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    return calls._replace(across=calls.across._replace(cu_seqlens_k=ends))


WRONG = {
    "half of each output": ("merged", half_of_each, "output"),
    "the log-sum-exp of one call": ("merged", of_the_first_call, "dq"),
    "every trunk is seen": ("two_calls", on_every_trunk, "output"),
    "another trunk is seen": ("two_calls", on_another_trunk, "output"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_do_not_pass_the_probe(name, monkeypatch):
    part, wrong, off = WRONG[name]
    monkeypatch.setattr(two_calls, part, wrong)
    assert f"its {off} is off by" in probed(Exact())
    monkeypatch.undo()
    assert "its dq is off by" in probed(OwnSums()), "a kernel whose backward takes its own sums"


@pytest.mark.parametrize("name, called", [("qwen3", 4), ("gemma3", 2)])
def test_a_model_gives_the_same_and_sliding_layers_gather(name, called):
    """One layer in three of gemma3 has full attention, and both layers of qwen3."""
    gathered = []

    def gathering(*arguments):
        gathered.append(arguments[-1])
        return segment_sdpa(*arguments)

    setting, varlen, batch = Setting(name), Exact(), make_batch()
    model, (row, index) = setting.model(prepare_rows), shared_row(batch)
    kernel = Kernel(name="two calls", attend=in_two_calls(varlen, gathering))
    logp = row_log_probs(model, row, batch.width, kernel=kernel)[0]
    difference = run_layout(model, iter([(index, logp)]), batch).difference(reference(setting))
    assert max(difference) < 1e-13
    assert len(varlen.calls) == called and gathered == ([] if name == "qwen3" else [8, 8])


def test_a_row_that_shares_nothing_is_one_call():
    segments = Segments(length_S=(5, 3), trunk_S=(-1, -1))
    query, key, value = (torch.randn(1, heads, 8, 16) for heads in (4, 2, 2))
    found = in_two_calls(Exact(), lambda *_: query)(query, key, value, segments, None, None)
    assert found is query


@pytest.mark.parametrize("trunks", [(-1, 0, -1, 2), (-1, -1, 1, 0), (-1, -1, 0, -1, 1)], ids=str)
def test_segments_in_another_order_are_refused(trunks):
    segments = Segments(length_S=(2,) * len(trunks), trunk_S=trunks)
    with refused(ShapeError, "trunk_S=", "build_row"):
        two_calls.two_calls(segments, CPU)


def of_torch(monkeypatch, flash):
    for name, function in (("forward", packing_varlen.aten_forward), ("backward", packing_varlen.aten_backward)):
        real = getattr(torch.ops.aten, f"_flash_attention_{name}").default._schema
        assert signature(function).parameters.keys() <= {argument.name for argument in real.arguments}
        monkeypatch.setattr(torch.ops.aten, f"_flash_attention_{name}", function)


def of_flash2(monkeypatch, flash):
    forward, backward = packing_varlen.flash2_forward, packing_varlen.flash2_backward
    flash(_flash_attn_varlen_forward=forward, _flash_attn_varlen_backward=backward)


def of_flash3(monkeypatch, flash):
    """flash-attn 3 from the hub: the package itself is not installed."""
    forward, backward = packing_varlen.flash3_forward, packing_varlen.flash3_backward
    functions = types.SimpleNamespace(_flash_attn_forward=forward, _flash_attn_backward=backward)
    hub = types.ModuleType("kernels")
    vars(hub)["get_kernel"] = lambda name, version: types.SimpleNamespace(flash_attn_interface=functions)
    monkeypatch.setitem(sys.modules, "kernels", hub)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@pytest.mark.parametrize(
    ("varlen", "install"),
    [(cuda_kernels.TorchVarlen, of_torch), (cuda_kernels.Flash2, of_flash2), (cuda_kernels.Flash3, of_flash3)],
)
def test_kernels_get_what_they_document(varlen, install, flash, monkeypatch):
    """They need CUDA: stand-ins with their signatures take their place."""
    assert probed(varlen()) != "", "not here, without the stand-in"
    install(monkeypatch, flash)
    assert probed(varlen()) == ""


def test_flash_attn_3_is_not_downloaded_for_another_gpu(flash, monkeypatch):
    of_flash3(monkeypatch, flash)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(sys.modules["kernels"], "get_kernel", lambda *_, **__: pytest.fail("downloaded"))
    assert "needs a GPU of compute capability 9.0" in probed(cuda_kernels.Flash3())
