"""Benchmarks of packing count right, notice a layout that computes something else."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packing_wrong import WRONG_IN_VALUE
from refusals import refused
from trl.trainer.utils import add_fused_lm_head

from benchmarks.scale import models
from benchmarks.scale.growth import with_growth
from benchmarks.scale.steps import record, tokens_of_ranks
from benchmarks.shared import met, spread_with_ends
from benchmarks.speed import activations, cases, dense, gpu, gpu_checks, layouts, workload
from dppo.packing.attention import DROPOUTS, unsupported
from dppo.packing.check import LayoutCheck
from dppo.packing.head import add_scored_head
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.trl.grpo.rollouts import NOWHERE, Lengths

ROOT = Path(__file__).parents[2]
SHORT = workload.Lengths(prompt=(5, 10), median=20.0, longest=50)
SMALLEST = dense.Settings(
    repetitions={"2x64": 2},
    group_sizes=(8,),
    rates=(0.75,),
    lengths=SHORT,
    max_tokens=128,
    row_lengths=(64,),
    batches=2,
)
CASE = cases.Case(model="2x64", group_size=8, rate=0.75, lengths=SHORT)


@pytest.fixture
def batch():
    return workload.generation_batch(3, prompts=12, group_size=4, vocabulary=100, lengths=SHORT)


def sequences(work):
    """(group, prompt tokens, completion tokens) of each completion."""
    lengths = zip(work.group_N, work.prompts, work.completions, strict=True)
    return [(group, len(prompt), len(completion)) for group, prompt, completion in lengths]


def test_lengths_are_as_stated():
    work = workload.generation_batch(0, group_size=16, vocabulary=2)
    completions = torch.tensor(work.completion_tokens)
    assert len(completions) == 64 * 16 and work.completion_width == int(completions.max()) == 1024
    assert min(work.prompt_tokens) >= 100 and max(work.prompt_tokens) == work.prompt_width <= 200
    assert abs(float(completions.double().median()) - 400) < 40
    assert abs(float(completions.double().log().std()) - 0.5) < 0.05


def test_the_same_seed_gives_the_same_work_and_pruning_keeps_the_width(batch):
    again = workload.generation_batch(3, prompts=12, group_size=4, vocabulary=100, lengths=SHORT)
    assert all(torch.equal(a, b) for a, b in zip(batch.completions, again.completions, strict=True))
    kept = workload.prune(batch, 0.75, 0)
    assert len(kept.completions) == 12 and set(sequences(kept)) <= set(sequences(batch))
    assert (kept.prompt_width, kept.completion_width) == (batch.prompt_width, batch.completion_width)


def test_typical_prompts_are_neighbours_and_as_many_as_asked_for(batch):
    kept = workload.prune(batch, 0.5, 0)
    part = workload.typical_prompts(kept, 2, 4)
    assert len(part.completions) == 4 and max(part.group_N) - min(part.group_N) <= 1
    with refused(ValueError, "2", "99"):
        workload.typical_prompts(kept, 2, 99)


@pytest.mark.parametrize("name", ["padded", "sorted", "packed", "shared"])
@pytest.mark.parametrize("max_tokens", [60, 200, 10_000])
def test_every_layout_holds_every_completion_once_and_counts_its_tokens(batch, name, max_tokens):
    kept = workload.prune(batch, 0.5, 0)
    forwards = layouts.layouts(max_tokens)[name](kept)
    assert sorted(i for forward in forwards for i in forward.index) == list(range(24))
    widest = max(p for _, p, _ in sequences(batch)) + max(c for _, _, c in sequences(batch))
    for forward in forwards:
        part = [sequences(kept)[i] for i in forward.index]
        trunks = {group: prompt - 1 for group, prompt, _ in part}
        wanted = {
            "padded": len(part) * widest,
            "sorted": len(part) * (max(p for _, p, _ in part) + max(c for _, _, c in part)),
            "packed": sum(prompt - 1 + completion for _, prompt, completion in part),
            "shared": sum(trunks.values()) + sum(completion for *_, completion in part),
        }
        assert forward.tokens == wanted[name]


def test_pairs_of_a_row_are_those_a_query_can_see(batch):
    kept = workload.prune(batch, 0.5, 0)
    (packed,), (shared,) = (layouts.layouts(10_000)[name](kept) for name in ("packed", "shared"))

    def pairs(first, end):
        """Of tokens at these positions, each of which sees itself and all before it."""
        return sum(position + 1 for position in range(first, end))

    trunks = {group: prompt - 1 for group, prompt, _ in sequences(kept)}
    branches = sum(pairs(prompt - 1, prompt - 1 + completion) for _, prompt, completion in sequences(kept))
    assert shared.pairs == branches + sum(pairs(0, trunk) for trunk in trunks.values())
    assert packed.pairs == branches + sum(pairs(0, prompt - 1) for _, prompt, _ in sequences(kept))


@pytest.mark.slow
def test_records_of_the_smallest_run():
    records = dense.measure(SMALLEST)
    lengths = [row["layout"] for row in records if row["figure"] == "head and row length"]
    assert lengths == ["trl", "padded", "shared 64"]
    work = CASE.work()
    timed = {row["layout"]: row for row in records if row["figure"] == "layouts"}
    assert list(timed) == ["trl", "sorted", "packed", "shared"]
    assert timed["trl"]["tokens"] == 8 * (work.prompt_width + work.completion_width)
    for row in timed.values():
        assert row["same"] and row["gradient_difference"] < 1e-5 and row["peak_mib"] > 0
        assert row["loss"] == pytest.approx(timed["trl"]["loss"], rel=1e-5)
        assert row["scored"] == sum(work.completion_tokens)
        assert row["fewer_tokens"] == pytest.approx(timed["trl"]["tokens"] / row["tokens"])


def without_the_last(work):
    return layouts.shared(work.take(range(len(work.group_N) - 1)), max_tokens=128)


def in_another_order(work):
    """As many tokens as before, but completions are taken for each other."""
    return [replace(forward, index=forward.index[::-1]) for forward in layouts.shared(work, max_tokens=128)]


def with_foreign_prompts(work):
    """As many tokens as before, each scored after the prompt of another completion."""
    return layouts.packed(replace(work, prompts=[*work.prompts[2:], *work.prompts[:2]]), max_tokens=128)


@pytest.mark.parametrize("wrong", [without_the_last, in_another_order, with_foreign_prompts])
def test_a_layout_that_computes_something_else_is_flagged(wrong):
    named = {"trl": cases.TRL, "wrong": replace(cases.PADDED, layout=wrong)}
    models = {c.prepare: CASE.prepared(c.prepare) for c in named.values()}
    measured = cases.exactness(CASE.work(), named, models)
    assert measured["trl"]["same"] and not measured["wrong"]["same"]


@pytest.mark.parametrize(("same", "code"), [(True, 0), (False, 1)])
def test_a_wrong_layout_is_an_exit_code(same, code, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dense.py"])
    monkeypatch.setattr(dense, "measure", lambda _: [{"same": same}, {"figure": "tokens"}])
    assert dense.main() == code
    assert [dense.judged("time", ratio, 2.5)["time_met"] for ratio in (2.49, 2.5)] == [False, True]


def without_gradient_of_values(query, key, value, segments, scale, window):
    return SEGMENT_SDPA.attend(query, key, value.detach() + 0 * value, segments, scale, window)


def not_here(*_):
    raise NotImplementedError("no such kernel on this device")


def test_kernel_checks_flag_wrong_masks_wrong_gradients_and_absent_kernels():
    wrong = (WRONG_IN_VALUE["masks aligned at the top left"], without_gradient_of_values, not_here)
    kernels = [SEGMENT_SDPA] + [Kernel(name=f.__name__, attend=f) for f in wrong]
    rows = list(gpu_checks.kernel_rows(torch.device("cpu"), torch.float32, (4, 2), 16, kernels))
    assert [row["passed"] for row in rows] == [True, False, False, None]
    assert rows[1]["reason"].startswith("its output is off") and rows[2]["reason"].startswith("its dv is off")
    assert "does not run here: NotImplementedError: no such kernel" in gpu.kernel_line(rows[3])


def test_layout_checks_flag_a_dropped_completion():
    work = workload.generation_batch(0, prompts=2, group_size=4, vocabulary=512, lengths=SHORT)
    config = gpu.MODELS["tiny"]()
    named = {"padded": layouts.padded, "shared": layouts.layouts(64)["shared"], "wrong": without_the_last}
    for dtype in (torch.float32, torch.bfloat16):
        rows = list(gpu_checks.layout_rows(lambda d: gpu.prepared(config, torch.device("cpu"), d), dtype, work, named))
        assert [row["passed"] for row in rows] == [True, True, False]


def test_operations_of_qwen3_4b_are_those_computed_by_hand():
    """Per token 36 layers of 2560 x (2 x 4096 + 2 x 1024 + 3 x 9728) weights, per pair 4 x 32 x 128 x 36 operations."""
    config = gpu.MODELS["4B"]()
    weights = 36 * 2560 * (8192 + 2048 + 29_184)
    assert layouts.body(config) == weights == pytest.approx(3.63e9, rel=1e-3)
    assert layouts.flops(config, 1000, 0, 0, again=0) == 6 * weights * 1000
    assert layouts.flops(config, 0, 10, 0, again=0) == pytest.approx(3.5 * 0.589824e6 * 10)
    assert layouts.flops(config, 0, 0, 7, again=1) == 8 * 2560 * 151_936 * 7
    tiny = gpu.MODELS["tiny"]()
    model = gpu.prepared(tiny, torch.device("cpu"), torch.float32)
    assert sum(p.numel() for p in model.parameters() if p.ndim == 2) == layouts.body(tiny) + 64 * 512


def test_tokens_left_out_of_the_gpu_benchmark_are_those_that_are_scored():
    settings = gpu.SETTINGS["cpu", True]
    device, shape = torch.device("cpu"), gpu.MODELS["tiny"]()
    found = {row["case"]: row for row in gpu.token_rows(settings, "tiny", SEGMENT_SDPA, device)}
    whole = found[gpu.FUSED]
    assert all(row["passed"] for row in found.values()) and set(found) == set(gpu.TOKEN_CASES)
    assert found["plain head"]["loss"] == pytest.approx(whole["loss"], rel=1e-5), "the same by another head"
    assert found["plain head"]["scored"] == whole["scored"]
    for case, (kept, head) in gpu.TOKEN_CASES.items():
        # Tokens before a cut are more often those that the head wants: both together score more than the product.
        low, high = kept * head, min(kept, head)
        assert 0.85 * low < found[case]["scored"] / whole["scored"] < 1.15 * high, case
    assert found["head 0.15"]["tokens"] > 0.8 * whole["tokens"] > found["cuts 0.5"]["tokens"]
    work = workload.generation_batch(0, prompts=2, group_size=4, vocabulary=512, lengths=SHORT)
    sampled = workload.tokens_left_out(work, 1.0, 0.15, 0)
    shared = layouts.layouts(64)["shared"]
    build = lambda dtype: gpu.prepared(shape, device, dtype)  # noqa: E731
    (right,) = gpu_checks.head_rows(build, work, sampled, shared)
    turned = replace(sampled, keep_N=[keep.flip(0) for keep in sampled.keep_N])
    (wrong,) = gpu_checks.head_rows(build, work, turned, lambda given: shared(sampled if given.keep_N else given))
    assert right["passed"] and not wrong["passed"] and right["layout"] in gpu.exactness_line(right)


def test_the_gpu_benchmark_has_the_head_of_training_if_trl_is_there(monkeypatch):
    gpu_device, half = torch.device("cuda"), torch.bfloat16
    assert gpu.head_for(gpu_device, half) == ("TRL's fused head", add_fused_lm_head)
    assert gpu.head_for(gpu_device, torch.float32)[1] is gpu.head_for(torch.device("cpu"), half)[1] is add_scored_head
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", None)
    assert gpu.head_for(gpu_device, half) == ("in blocks, because TRL is not installed", add_scored_head)


@pytest.mark.slow
def test_the_gpu_benchmark_runs_without_trl_on_a_cpu(tmp_path):
    output = tmp_path / "gpu.json"
    blocked = (
        "import runpy, sys; sys.modules['trl'] = None; "
        f"sys.argv = ['gpu.py', '--device', 'cpu', '--quick', '--output', {str(output)!r}]; "
        "runpy.run_module('benchmarks.speed.gpu', run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=True, cwd=ROOT)
    rows = json.loads(output.read_text())["rows"]
    figures = {"kernel", "exactness", "matrix rate", "kernel time", "layouts", "row length", "tokens"}
    assert {row["figure"] for row in rows} == figures
    tokens = {row["case"]: row for row in rows if row["figure"] == "tokens"}
    assert list(tokens) == list(gpu.TOKEN_CASES) and tokens[gpu.FUSED]["ratio_median"] == 1
    assert all(row.get("passed") is not False for row in rows)
    timed = [row for row in rows if row["figure"] == "layouts"]
    assert [row["layout"] for row in timed] == ["padded", "sorted", "packed", "shared"] * 3
    for row in timed:
        assert row["gradient_difference"] < 1e-5 and row["tokens"] <= timed[0]["tokens"]
        assert 0 < row["share_needed"] < row["share_done"]


@pytest.mark.parametrize("arguments", [[], ["--device", "cpu"]])
def test_the_gpu_benchmark_refuses_a_cpu(arguments, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    assert gpu.main() == 2


def test_saved_bytes_of_a_layer_are_the_tensors_that_its_backward_needs():
    model = activations.build_model(
        activations.MODELS["tiny"](layers=1), activations.SEED, device="cpu", dtype=torch.float32
    )
    few, many = (activations.saved_bytes(model, tokens) for tokens in (16, 32))
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    assert many - few >= 16 * 4 * (4 * hidden + 3 * inner), "inputs of four projections, and three products of the MLP"
    with torch.no_grad():
        assert activations.saved_bytes(model, 16) == 0


def test_a_token_holds_as_much_in_each_layer():
    rows = json.loads((ROOT / "benchmarks" / "results" / "activations.json").read_text())["rows"]
    assert [row["model"] for row in rows] == list(activations.SHAPES)
    assert all(row["per_token"] == pytest.approx(row["layers"] * row["per_layer"]) for row in rows)


MEASURES = {"unit", "median", "quartile_low", "quartile_high", "repeats", "per_completion", "growth", "bar"}


def of_size(size, milliseconds):
    return record("x", size, {"unit": "ms", **spread_with_ends([milliseconds])})


def test_growth_is_the_exponent_between_sizes_and_over_all():
    """By hand: from 10 to 100 linear, from 100 to 1,000 as the square; over all three the slope is 1.5."""
    first, second, third, fit = with_growth([of_size(10, 1.0), of_size(100, 10.0), of_size(1000, 1000.0)])
    assert first["growth"] is None and second["growth"] == pytest.approx(1) and third["growth"] == pytest.approx(2)
    assert fit["figure"] == "growth_of_x" and fit["median"] == pytest.approx(1.5) and fit["repeats"] == 3
    assert second["per_completion"] == 100 and second["per_completion_unit"] == "us"
    assert met(fit) == "1.2 MISSED" and met({**fit, "median": 1.1}) == "1.2 met" and met(first) == ""


def test_a_rank_forwards_the_prompt_of_a_group_once():
    """The wrong twin has it once for each completion."""
    lengths = Lengths(
        prompt_N=torch.tensor([7, 7, 7, 5]),
        completion_UN=torch.tensor([[1, 2, 3, 4]]),
        group_N=torch.tensor([0, 0, 0, 1]),
    )
    found = tokens_of_ranks(lengths, torch.tensor([0, 0, 1, NOWHERE]), 2)
    assert found.tolist() == [1 + 2 + 7, 3 + 7] and found.tolist() != [1 + 2 + 14, 3 + 7]


@pytest.mark.slow
def test_one_command_writes_flat_records(tmp_path: Path):
    output = tmp_path / "metrics.json"
    command = [sys.executable, "-m", "benchmarks.scale.growth", "--quick", "--output", str(output)]
    subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    rows = json.loads(output.read_text())["rows"]
    for row in rows:
        assert {"figure", "size"} | MEASURES <= set(row)
        assert all(value is None or isinstance(value, str | int | float) for value in row.values())
    fits = {row["figure"]: row["median"] for row in rows if row["unit"] == "exponent"}
    for part in ("draw", "bins", "plan_rows", "layout", "plan_step", "deal_to_8_ranks", "history_block"):
        assert f"growth_of_{part}" in fits
    assert all(0.9 < fits[f"growth_of_memory_of_{part}"] < 1.1 for part in ("history", "all_rows"))
    shares = {(row["figure"], row["size"]): row["median"] for row in rows if row["unit"] == "share"}
    at_home, dealt = (shares[f"idle_share_{which}_8_prompts_a_rank", 8] for which in ("at_home", "dealt"))
    assert 0 <= dealt < 0.5 * at_home < 1, "dealing saves at least half of what ranks wait"


FLOAT32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("qwen3", "rows", "nats"),
        ("deepseek_v3", "rows", "nats"),
        ("doge", "padded", "drops keys beyond a window"),
        ("bloom", "padded", "cannot change the attention"),
        ("modernbert-decoder", "refused", "from those of its own logits"),
        ("ctrl", models.STOPS, "in-place"),
        ("fuyu", "not built", "AttributeError"),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT32, BF16], ids=str)
def test_verdicts(name, verdict, why, dtype):
    found = models.judged(name, dtype)
    assert found.verdict == verdict and why in found.why


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_of_attention_weights_is_seen_under_every_name(name):
    model = models.tiny("qwen3")
    assert unsupported(model) == ""
    setattr(model.config, name, 0.1)
    assert "it drops attention weights at random" in unsupported(model)


def test_rows_that_passed_and_are_wrong_are_seen(monkeypatch):
    wrong, choose = next(iter(WRONG_IN_VALUE.values())), models.choose_kernel
    passed = LayoutCheck(logp_difference=0.0, logp_tolerance=1.0, gradient_difference=0.0, gradient_tolerance=1.0)
    monkeypatch.setattr(models, "choose_kernel", lambda *asked: replace(choose(*asked), attend=wrong))
    assert models.judged("qwen3", FLOAT32).verdict == models.STOPS
    monkeypatch.setattr(models, "check_rows", lambda *args, **kwargs: passed)
    assert models.judged("qwen3", FLOAT32).verdict == "wrong"
