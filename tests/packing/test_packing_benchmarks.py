"""Benchmarks of packing count right, notice a layout that computes something else, and name what models do."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from packing_wrong import WRONG_IN_VALUE

from benchmarks.scale import models
from benchmarks.scale.steps import tokens_of_ranks
from benchmarks.speed import forward, layouts, workload
from dppo.packing.check import LayoutCheck
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.trl.grpo.rollouts import NOWHERE

SETTINGS = forward.SETTINGS["cpu", True]
CASE = forward.Case(settings=SETTINGS, model="tiny", group_size=8, rate=0.75)


@pytest.mark.parametrize("name", ["padded", "sorted", "packed", "shared"])
@pytest.mark.parametrize("max_tokens", [60, 200, 10_000])
def test_every_layout_holds_every_completion_once_and_counts_its_tokens(name, max_tokens):
    lengths = workload.Lengths(prompt=(5, 10), median=20.0, longest=50)
    batch = workload.generation_batch(3, prompts=12, group_size=4, vocabulary=100, lengths=lengths)
    kept = workload.prune(batch, 0.5, 0)
    forwards = layouts.layouts(max_tokens)[name](kept)
    assert sorted(i for each in forwards for i in each.index) == list(range(24))
    for each in forwards:
        part = kept.take(each.index)
        prompts, completions = list(map(len, part.prompts)), list(map(len, part.completions))
        trunks = {group: prompt - 1 for group, prompt in zip(part.group_N, prompts, strict=True)}
        wanted = {
            "padded": len(each.index) * (max(map(len, batch.prompts)) + max(map(len, batch.completions))),
            "sorted": len(each.index) * (max(prompts) + max(completions)),
            "packed": sum(prompts) - len(prompts) + sum(completions),
            "shared": sum(trunks.values()) + sum(completions),
        }
        assert each.tokens == wanted[name]


def without_the_last(work):
    return layouts.shared(work.take(range(len(work.group_N) - 1)), max_tokens=128)


def in_another_order(work):
    """As many tokens as before, but completions are taken for each other."""
    return [replace(forward, index=forward.index[::-1]) for forward in layouts.shared(work, max_tokens=128)]


def with_foreign_prompts(work):
    """As many tokens as before, each scored after the prompt of another completion."""
    return layouts.packed(replace(work, prompts=[*work.prompts[2:], *work.prompts[:2]]), max_tokens=128)


def test_a_layout_that_computes_something_else_is_flagged(monkeypatch):
    monkeypatch.setattr(forward, "in_own_process", lambda *_: 1.0)
    tried = (layouts.padded, without_the_last, in_another_order, with_foreign_prompts)
    compared = forward.compare(CASE, {layout.__name__: forward.Contender(layout=layout) for layout in tried})
    exactness = forward.exactness_rows(CASE, {layout.__name__: layout for layout in tried})
    for rows in (compared, exactness):
        assert [row["passed"] for row in rows] == [True, False, False, False]


def without_gradient_of_values(query, key, value, segments, scale, window):
    return SEGMENT_SDPA.attend(query, key, value.detach() + 0 * value, segments, scale, window)


def not_here(*_):
    raise NotImplementedError("no such kernel on this device")


def test_kernel_checks_flag_wrong_masks_wrong_gradients_and_absent_kernels():
    wrong = (WRONG_IN_VALUE["masks aligned at the top left"], without_gradient_of_values, not_here)
    kernels = [SEGMENT_SDPA] + [Kernel(name=f.__name__, attend=f) for f in wrong]
    rows = list(forward.kernel_rows(SETTINGS, kernels))
    assert [row["passed"] for row in rows] == [True, False, False, None]
    assert rows[1]["reason"].startswith("its output is off") and rows[2]["reason"].startswith("its dv is off")
    assert "NotImplementedError: no such kernel on this device" in forward.line(rows[3])


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1])
def test_the_command_runs_on_a_cpu_and_a_wrong_layout_is_an_exit_code(code, tmp_path, monkeypatch, capsys):
    output = tmp_path / "forward.json"
    if code:
        monkeypatch.setattr(forward, "measured", lambda _: [{"figure": "x", "layout": "x", "passed": False}])
    monkeypatch.setattr(sys, "argv", ["forward.py", "--quick", "--output", str(output)])
    assert forward.main() == code
    if code:
        assert "WRONG" in capsys.readouterr().out
        return
    rows = json.loads(output.read_text())["rows"]
    figures = ["kernel", "exactness", "kernel time", "tokens", "layouts", "head and row length", "left out"]
    assert list(dict.fromkeys(row["figure"] for row in rows)) == figures
    timed = [row for row in rows if row["figure"] == "layouts"]
    assert [row["layout"] for row in timed] == ["trl", "sorted", "packed", "shared"] * 3
    assert all(row["gradient_difference"] < 1e-5 and row["peak_mib"] > 0 for row in timed)
    left = {row["layout"]: row["scored"] for row in rows if row["figure"] == "left out"}
    for name, (kept, head) in forward.LEFT_OUT.items():
        # Tokens before a cut are more often those that the head wants: both together score more than the product.
        assert 0.7 * kept * head < left[name] / left["shared"] < 1.3 * min(kept, head), name


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["forward.py", "--device", "cuda"])
    assert forward.main() == 2


def test_a_rank_forwards_the_prompt_of_a_group_once():
    """The wrong twin has it once for each completion."""
    prompt_N, completion_N, group_N = torch.tensor([[7, 7, 7, 5], [1, 2, 3, 4], [0, 0, 0, 1]])
    found = tokens_of_ranks(prompt_N, completion_N, group_N, torch.tensor([0, 0, 1, NOWHERE]), 2)
    assert found.tolist() == [1 + 2 + 7, 3 + 7] and found.tolist() != [1 + 2 + 14, 3 + 7]


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("qwen3", "rows", "nats"),
        ("deepseek_v3", "rows", "nats"),
        ("doge", "padded", "drops keys beyond a window"),
        ("bloom", "padded", "cannot change the attention"),
        ("modernbert-decoder", "refused", "head: log-probabilities differ by"),
        ("ctrl", models.STOPS, "in-place"),
        ("fuyu", "not built", "AttributeError"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_verdicts(name, verdict, why, dtype):
    found, reason = models.verdict(name, dtype)
    assert found == verdict and why in reason


def test_rows_that_passed_and_are_wrong_are_seen(monkeypatch):
    wrong, choose = next(iter(WRONG_IN_VALUE.values())), models.choose_kernel
    passed = LayoutCheck(logp_difference=0.0, logp_tolerance=1.0, gradient_difference=0.0, gradient_tolerance=1.0)
    monkeypatch.setattr(models, "choose_kernel", lambda *asked: replace(choose(*asked), attend=wrong))
    assert models.verdict("qwen3", torch.float32)[0] == models.STOPS
    monkeypatch.setattr(models, "check_rows", lambda *args, **kwargs: passed)
    assert models.verdict("qwen3", torch.float32)[0] == "wrong"
