"""The benchmark of a step on a GPU, run on a CPU: its work is what lengths need, and timed steps have no clock."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from pages import ROOT

from benchmarks.speed import gpu_expected, gpu_report, gpu_step, gpu_versions, gpu_watch
from benchmarks.speed.gpu_watch import Stages, Work
from dppo.trl.metrics import wall

SMALL = gpu_step.Setting(**{**gpu_step.DRY, "prompts": 2, "sizes": (4,), "betas": (0.04,)})
SCRIPT = ROOT / "benchmarks" / "speed" / "gpu_calls.sh"


@pytest.fixture(scope="module")
def waits():
    """Stages in which something waited for the device, and in which a file of the benchmarks asked for a number."""
    return {"device": [], "item": []}


@pytest.fixture(scope="module")
def small(tmp_path_factory, waits):
    """TRL and the control, measured on four calls of the loss each."""
    stage, patched = ["before"], pytest.MonkeyPatch()
    now, item = torch.accelerator.current_accelerator, torch.Tensor.item

    def asked(*args, **kwargs):
        if sys._getframe(1).f_code is wall.__code__:  # others ask for the device too, and do not wait
            waits["device"].append(stage[0])
        return now(*args, **kwargs)

    def number(self):
        if "benchmarks" in sys._getframe(1).f_code.co_filename:
            waits["item"].append(stage[0])
        return item(self)

    class Staged(gpu_watch.StepWatch):
        def on_step_begin(self, args, state, control, **kwargs):
            stage[0] = SMALL.stages.at(state.global_step + 1)

        def on_step_end(self, args, state, control, **kwargs):
            stage[0] = "between"
            super().on_step_end(args, state, control, **kwargs)

    patched.setattr(torch.accelerator, "current_accelerator", asked)
    patched.setattr(torch.Tensor, "item", number)
    patched.setattr(gpu_step, "StepWatch", Staged)
    given, folder = gpu_step.Given(SMALL), tmp_path_factory.mktemp("gpu_step")
    stock, control, *_ = SMALL.contestants
    found = [gpu_step.measured(each, SMALL, given, 0.04, folder) for each in (stock, control)]
    patched.undo()
    return found


def test_passes_tokens_and_norms_are_what_the_lengths_need(small):
    stock, control = gpu_report.compared(small, torch.float32)
    assert [row["reason"] for row in (stock, control)] == ["", ""] and stock["passed"] and control["passed"]
    assert stock["passes"] == stock["passes_no_grad"] == 4.0 and stock["same_prompts"] and control["same_prompts"]
    assert 1.0 <= control["passes"] == control["passes_no_grad"] < stock["passes"]
    assert control["tokens"] == control["tokens_no_grad"] < stock["tokens"]
    assert control["norm_ratio_lowest"] == pytest.approx(1, abs=1e-4) and min(small[1].norms) > 0
    assert {"median", "lowest", "peak_gib", "phase_forward_backward", "busy_share", "trl_over_this"} <= control.keys()
    assert all(value is None or isinstance(value, str | int | float) for value in control.values())
    for row in (stock, control):
        assert row["phase_forward_backward"] > 0 and row["phase_log_probs"] > 0 and row["phase_optimizer"] > 0
        assert 0 < row["busy_seconds"] <= row["profiled_seconds"] and row["kernels"] > 100


def test_nothing_waits_for_the_device_in_a_timed_step(small, waits):
    assert gpu_watch.PHASED in waits["device"], "the twin: steps measured by phase do wait"
    assert gpu_watch.TIMED not in waits["device"]
    assert gpu_watch.TIMED not in waits["item"] and gpu_watch.WARM_UP not in waits["item"]


def test_an_idle_pass_another_gradient_and_other_prompts_are_found(small):
    stock, control = small
    one = Work(passes=1, passes_no_grad=1, tokens=10, tokens_no_grad=10)
    assert gpu_expected.differences([one], [one]) == []
    assert len(gpu_expected.differences([replace(one, passes=2)], [one])) == 1
    wrong = replace(control, norms=[1.01 * norm for norm in control.norms])
    assert gpu_report.compared([stock, wrong], torch.bfloat16)[1]["passed"]
    other = replace(control, prompts=[[9, 9], *control.prompts[1:]])
    broken = replace(control, norms=[float("nan")] * len(control.norms))
    for each, reason in ((wrong, "1.0100 times TRL's"), (other, "prompts"), (broken, "not finite")):
        assert reason in gpu_report.compared([stock, each], torch.float32)[1]["reason"]


def row_of(name, median, norms=(2.0, 3.0)):
    own = {"contestant": name, "reason": "", "passed": True} | ({"median": median} if norms else {})
    return gpu_report.Measured(row=own, norms=norms, prompts=[[0, 1]] if norms else (), is_trl=name.startswith("TRL"))


def test_the_best_batch_size_of_trl_is_the_base_of_ratios():
    rows = [row_of("TRL, 16", 3.0), row_of("control", 1.0), row_of("0.8 dropped", 0.5, (9.0, 9.0)), row_of("TRL, 8", 2)]
    found = gpu_report.compared([*rows, row_of("TRL, 32", None, ())], torch.float32)
    assert [row.get("trl_best") for row in found] == [False, False, False, True, None]
    assert [row["trl_over_this"] for row in found[:4]] == [2 / 3, 2.0, 4.0, 1.0]
    assert [row["control_over_this"] for row in found[1:3]] == [1.0, 2.0]
    assert all(row["passed"] for row in found), "a pruned gradient has another norm, and that is no fault"
    (alone,) = gpu_report.compared([row_of("control", 1.0)], torch.float32)
    assert alone["trl_over_this"] is None and alone["passed"]


def test_work_by_hand():
    lengths = [(3, [2, 4]), (5, [1, 1])]
    padded = gpu_expected.work_of_padding(lengths, 2, reference=False)
    assert padded == Work(passes=2, tokens=4 * (5 + 4))
    rows, kept = [1, 1, 0, 0], [True, False, True, True]
    asked = {"lengths": lengths, "rows": rows, "kept": kept}
    whole = gpu_expected.work_of_rows(**asked, row_tokens_most=100, reference=True)
    assert whole == Work(passes=1, tokens=13, passes_no_grad=1, tokens_no_grad=13)  # 4 + 1, and 2 + 2 + 4
    assert gpu_expected.work_of_rows(**asked, row_tokens_most=8, reference=False) == Work(passes=2, tokens=13)
    nothing = gpu_expected.work_of_rows(lengths, rows, [False] * 4, row_tokens_most=8, reference=True)
    assert nothing == Work()


def test_stages_follow_each_other_and_busy_time_is_a_union():
    stages = Stages(warm_up=1, timed=2, phased=1, profiled=1)
    names = [stages.at(step) for step in range(1, stages.steps + 2)]
    assert names == ["warm-up", "timed", "timed", "phased", "profiled", "over"]
    assert gpu_watch.covered([(7, 9), (0, 4), (2, 5), (3, 4)]) == 7 and gpu_watch.covered([]) == 0
    spans = np.random.default_rng(0).integers(0, 50, (20, 2)).cumsum(1)
    marked = np.zeros(200, bool)
    for start, end in spans:
        marked[start:end] = True
    assert gpu_watch.covered(map(tuple, spans.tolist())) == marked.sum()


def test_memory_that_runs_out_is_a_finding(monkeypatch, tmp_path):
    def exhausted(*args):
        raise torch.OutOfMemoryError("no room\nmore")

    monkeypatch.setattr(gpu_step, "build_trainer", exhausted)
    found = gpu_step.measured(SMALL.contestants[0], SMALL, gpu_step.Given(SMALL), 0.0, tmp_path)
    assert found.row["reason"] == "OutOfMemoryError: no room" and found.row["passed"] is None


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--betas", "0", "0.04"), ("--betas", "0.04", "--lora", "--no-checkpointing")])
def test_the_whole_command_is_dry_run(more, tmp_path, monkeypatch, capsys):
    output = tmp_path / "gpu_step.json"
    arguments = ["gpu_step.py", "--dry-run", "--prompts", "4", "--sizes", "16", "8", *more, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert gpu_step.main() == 0
    written, printed = json.loads(output.read_text()), capsys.readouterr().out
    assert written["environment"]["seeds"] == [gpu_step.SEED] and written["environment"]["versions"]
    rows = {(row["beta"], row["contestant"]): row for row in written["rows"]}
    names = ["TRL, 16", "control", "default", "0.8 dropped", "TRL, 8"]
    assert [name for _, name in rows] == names * len({beta for beta, _ in rows})
    assert all(row["passed"] and row["same_prompts"] for row in rows.values())
    for beta in {beta for beta, _ in rows}:
        tokens = [rows[beta, name]["tokens"] for name in ("0.8 dropped", "default", "control", "TRL, 8")]
        assert tokens == sorted(tokens) and tokens[0] < tokens[1] and tokens[2] < tokens[3]
        assert all(bool(rows[beta, name]["passes_no_grad"]) is (beta > 0) for name in names)
    assert printed.count("0.8 dropped") == len({beta for beta, _ in rows})


def calls_of(number, tmp_path):
    """Command lines that the script gives to Python in a dry run, by module."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/lines\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    given = {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT), number, "--dry-run"], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / f"call_{number}.txt").read_text() == done.stdout
    return [line.split()[1:] for line in (tmp_path / "lines").read_text().splitlines()]


SHAPES = {
    "1": {("0.6B", gpu_step.QUICK_LAYERS, torch.float32, 0), ("0.6B", None, torch.float32, 0)},
    "2": {("1.7B", None, torch.bfloat16, 0), ("4B", None, torch.bfloat16, 16)},
}


@pytest.mark.parametrize("number", SHAPES)
def test_the_two_calls_are_what_the_command_takes(number, tmp_path):
    lines = [words for module, *words in calls_of(number, tmp_path) if module == "benchmarks.speed.gpu_step"]
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


def test_versions_that_do_not_fit_are_named(monkeypatch, capsys):
    needed = ["numpy<1", "torch>=2", "absent-package", "x; extra=='a'"]
    monkeypatch.setattr(gpu_versions, "requires", lambda name: needed)
    monkeypatch.setattr(gpu_versions, "IMPORTS", ("json", "no_such_module"))
    assert gpu_versions.main(["trl", "not-there"]) == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("numpy<1", "absent-package", "not-there", "import no_such_module"))
    assert "needs torch" not in printed
