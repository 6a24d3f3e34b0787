"""Benchmarks of whole steps, run on a CPU: trainers do the same work, and timed steps have no clock inside."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pages import ROOT

from benchmarks.speed import gpu_step, harness, step
from dppo.trl.metrics import wall

SMALL = gpu_step.Setting(**{**gpu_step.DRY, "prompts": 2, "sizes": (4,), "betas": (0.04,)})
SCRIPT = ROOT / "benchmarks" / "speed" / "gpu_calls.sh"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """TRL and the control, measured on four calls of the loss each.

    Also the steps in which something waited for the device, or a file of the benchmarks asked for a number.
    """
    number, waits = [0], {"device": [], "item": []}
    now, item = torch.accelerator.current_accelerator, torch.Tensor.item

    def asked(*args, **kwargs):
        if sys._getframe(1).f_code is wall.__code__:  # others ask for the device too, and do not wait
            waits["device"].append(number[0])
        return now(*args, **kwargs)

    def as_number(self):
        if "benchmarks" in sys._getframe(1).f_code.co_filename:
            waits["item"].append(number[0])
        return item(self)

    class Staged(harness.StepWatch):
        def on_step_begin(self, args, state, control, **kwargs):
            number[0] = state.global_step + 1

        def on_step_end(self, args, state, control, **kwargs):
            number[0] = 0
            super().on_step_end(args, state, control, **kwargs)

    given, folder = gpu_step.Given(SMALL), tmp_path_factory.mktemp("gpu_step")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.accelerator, "current_accelerator", asked)
        patched.setattr(torch.Tensor, "item", as_number)
        patched.setattr(gpu_step, "StepWatch", Staged)
        return [gpu_step.measured(each, SMALL, given, 0.04, folder) for each in SMALL.contestants[:2]], waits


def test_passes_tokens_and_norms_of_both_trainers_and_no_wait_in_a_timed_step(ran):
    small, waits = ran
    stock, control = harness.compared(small, torch.float32)
    assert [row["reason"] for row in (stock, control)] == ["", ""] and stock["passed"] and control["passed"]
    assert stock["passes"] == stock["passes_no_grad"] == 4.0 and control["same_completions"]
    assert 1.0 <= control["passes"] == control["passes_no_grad"] < stock["passes"]
    assert control["tokens"] == control["tokens_no_grad"] < stock["tokens"]
    assert control["norm_ratio_lowest"] == pytest.approx(1, abs=1e-4) and min(small[1].watch.norms) > 0
    assert all(value is None or isinstance(value, str | int | float) for value in control.values())
    for row in (stock, control):
        assert row["phase_forward_backward"] > 0 and row["phase_log_probs"] > 0 and row["phase_optimizer"] > 0
    assert SMALL.stages.steps in waits["device"], "the twin: steps measured by phase do wait"
    timed = range(1, SMALL.stages.warm_up + SMALL.stages.timed + 1)
    assert not {*timed} & {*waits["device"]} and not {*timed} & {*waits["item"]}


def test_another_gradient_and_other_completions_are_found(ran):
    stock, control = ran[0]

    def reason(**changed):
        watch: Any = SimpleNamespace(**{**vars(control.watch), "record": control.watch.record, **changed})
        return harness.compared([stock, replace(control, watch=watch)], torch.float32)[1]["reason"]

    assert reason() == ""
    assert "1.0100 times TRL's" in reason(norms=[1.01 * norm for norm in control.watch.norms])
    other = [{prompt: each[::-1] for prompt, each in seen.items()} for seen in control.watch.seen]
    assert "completions are not TRL's" in reason(seen=other)
    assert "not finite" in reason(norms=[float("nan")] * len(control.watch.norms))


def of(name, seconds, exact=True):
    """A contestant by hand, whose gradient norms are 2 if they must be TRL's."""
    pruning = {"TRL, 16": None, "TRL, 8": None, "control": {"method": "grpo"}}.get(name, {})
    contestant = harness.Contestant(name=name, batch_size=1, pruning=pruning, exact=exact)
    watch: Any = SimpleNamespace(seconds=seconds, norms=[2.0 if exact else 9.0] * 2, seen=[{}] * 2)
    watch.stages, watch.record = harness.Stages(warm_up=0), lambda: {"median": sum(seconds) / 2}
    return harness.Measured(contestant=contestant, row={}, watch=watch)


def test_the_best_batch_size_of_trl_is_the_base_of_ratios_step_by_step():
    given = [of("TRL, 16", (3.0, 3.0)), of("control", (1.0, 2.0)), of("half", (0.5, 0.5), False), of("TRL, 8", (2, 4))]
    lost = replace(given[0], watch=None, row={"reason": "no memory"})
    *rows, without = harness.compared([*given, lost], torch.float32)
    assert [row["trl_over_this_median"] for row in rows] == [1.0, 2.25, 6.0, 1.125]
    assert [row["control_over_this_highest"] for row in rows[1:3]] == [1.0, 4.0]
    assert all(row["passed"] for row in rows), "a pruned gradient has another norm, and that is no fault"
    assert without["passed"] is None and without["reason"] == "no memory"


def test_memory_that_runs_out_is_a_finding(monkeypatch, tmp_path):
    def exhausted(*args):
        raise torch.OutOfMemoryError("no room\nmore")

    monkeypatch.setattr(gpu_step, "build_trainer", exhausted)
    found = gpu_step.measured(SMALL.contestants[0], SMALL, gpu_step.Given(SMALL), 0.0, tmp_path)
    assert found.row["reason"] == "OutOfMemoryError: no room" and found.watch is None


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--betas", "0", "0.04"), ("--betas", "0.04", "--lora", "--no-checkpointing")])
def test_the_whole_command_is_dry_run(more, tmp_path, monkeypatch, capsys):
    output = tmp_path / "gpu_step.json"
    arguments = ["gpu_step.py", "--dry-run", "--prompts", "4", "--sizes", "16", "8", *more, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert gpu_step.main() == 0
    written = json.loads(output.read_text())
    assert written["environment"]["seeds"] == [gpu_step.SEED] and written["environment"]["versions"]
    rows = {(row["beta"], row["contestant"]): row for row in written["rows"]}
    names = ["TRL, 16", "control", "default", "0.8 dropped", "TRL, 8"]
    betas = list(dict.fromkeys(beta for beta, _ in rows))
    assert [name for _, name in rows] == names * len(betas)
    assert all(row["passed"] and row["same_completions"] for row in rows.values())
    for beta in betas:
        tokens = [rows[beta, name]["tokens"] for name in ("0.8 dropped", "default", "control", "TRL, 8")]
        assert tokens == sorted(tokens) and tokens[0] < tokens[1] and tokens[2] < tokens[3]
        assert all(bool(rows[beta, name]["passes_no_grad"]) is (beta > 0) for name in names)
    assert capsys.readouterr().out.count("0.8 dropped") == len(betas)


@pytest.mark.slow
def test_on_a_cpu_trainers_take_turns_on_the_same_completions(tmp_path, monkeypatch):
    short = replace(step.QUICK, easy=(2,), middle=(2,), hard=(3,))
    sizes = {"warm_up_steps": 60, "prompts": 4, "generations": 4, "dataset": 8, "repetitions": 2, "max_new_tokens": 24}
    monkeypatch.setattr(step, "QUICK_SETTING", step.Setting(task=short, **sizes))
    output = tmp_path / "step.json"
    monkeypatch.setattr(sys, "argv", ["step.py", "--quick", "--output", str(output)])
    assert step.main() == 0
    first, _, exact, *_ = rows = json.loads(output.read_text())["rows"]
    assert exact["passed"] and exact["same_completions"] and exact["tokens"] < first["tokens"]
    for row in rows:
        assert row["repeats"] == 2 and row["lowest"] <= row["median"] <= row["highest"]
        phases = sum(value for name, value in row.items() if name.startswith("phase_"))
        assert phases == pytest.approx(row["median"], rel=0.2), "phases are the whole of a step"


SHAPES = {
    "1": {("0.6B", gpu_step.QUICK_LAYERS, torch.float32, 0), ("0.6B", None, torch.float32, 0)},
    "2": {("1.7B", None, torch.bfloat16, 0), ("4B", None, torch.bfloat16, 16)},
}


@pytest.mark.parametrize("number", SHAPES)
def test_the_two_calls_are_what_the_command_takes(number, tmp_path):
    """A stand-in for Python keeps the command lines of the script's dry run."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/lines\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    given = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT), number, "--dry-run"], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / f"call_{number}.txt").read_text() == done.stdout
    calls = [line.split()[1:] for line in (tmp_path / "lines").read_text().splitlines()]
    lines = [words for module, *words in calls if module == "benchmarks.speed.gpu_step"]
    asked = [gpu_step.parser().parse_args(words) for words in lines]
    assert len(asked) == 2 and all(each.dry_run and each.output.parent == tmp_path / "out" for each in asked)
    settings = [gpu_step.setting_of(each) for each in asked]
    assert all(setting.completions % size == 0 for setting in settings for size in setting.sizes)
    on_a_gpu = [gpu_step.parser().parse_args([word for word in words if word != "--dry-run"]) for words in lines]
    assert {(s.model, s.layers, s.dtype, s.lora) for s in map(gpu_step.setting_of, on_a_gpu)} == SHAPES[number]


def test_wheels_are_the_versions_that_everything_is_measured_with():
    pinned = set((ROOT / "constraints.txt").read_text().split())
    (wheels,) = [line for line in SCRIPT.read_text().splitlines() if line.startswith("wheels=(")]
    named = wheels.removeprefix("wheels=(").rstrip(")").split()
    assert {wheel for wheel in named if wheel.split("==")[0] in ("trl", "transformers", "datasets")} < pinned
    assert len(named) == 5 and ".whl/" in (ROOT / ".gitignore").read_text().split()
