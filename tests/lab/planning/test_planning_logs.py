"""``dppo plan --log``: every format gives the same figures, and pass rates come back from what logs say of groups."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.planning.from_log import lines_of, pass_rates, plan_log
from dppo.lab.planning.logs import read_log

STEPS, GROUP = 12, 5
VERL = {
    "critic/score/mean": 0.4, "critic/score/max": 1.0, "critic/score/min": 0.0, "critic/advantages/max": 1.78885,
    "response_length/mean": 500.0, "prompt_length/mean": 100.0, "timing_s/gen": 40.0, "timing_s/old_log_prob": 10.0,
    "timing_s/ref": 0.0, "timing_s/update_actor": 45.0, "timing_s/step": 100.0,
}  # fmt: skip


def rows_of(**others):
    """Steps that vary by a few percent."""
    rng = np.random.default_rng(0)
    return [{name: v * (1 + 0.03 * rng.normal()) if "/m" not in name[6:] else v for name, v in (VERL | others).items()}
            for _ in range(STEPS)]  # fmt: skip


def write_console(folder, rows):
    lines = ["Training Progress: 3%|#    | 1/40", "step:0 - val-core/acc/mean@1:0.5"]
    for step, row in enumerate(rows, 1):
        values = [f"{name}:{value!r}" if step % 2 else f"{name}:np.float64({value})" for name, value in row.items()]
        lines.append(f"(TaskRunner pid=87031) step:{step} - actor/lr:1e-06 - " + " - ".join(values))
    path = folder / "verl.log"
    path.write_text("\n".join(lines))
    return path


def write_json_lines(folder, rows):
    path = folder / "verl.jsonl"
    path.write_text("".join(json.dumps({"step": n, "data": row}) + "\n" for n, row in enumerate(rows, 1)))
    return path


def write_csv(folder, rows):
    path = folder / "wandb.csv"
    with path.open("w") as file:
        table = csv.DictWriter(file, ["Step", *(f"my run - {name}" for name in rows[0])])
        table.writeheader()
        for step, row in enumerate(rows, 1):
            table.writerow({"Step": step, **{f"my run - {name}": value for name, value in row.items()}})
    return path


def write_tensorboard(folder, rows):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tb")) as writer:
        for step, row in enumerate(rows, 1):
            for name, value in row.items():
                writer.add_scalar(f"train/{name}", value, step)
    return folder / "tb"


FORMATS = {"console": write_console, "JSON lines": write_json_lines, "CSV": write_csv, "TensorBoard": write_tensorboard}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_figures(name, tmp_path):
    rows = rows_of()
    log = read_log(FORMATS[name](tmp_path, rows))
    assert name.split()[0] in log.kind and len(log.steps) == STEPS, "what is not training is left out"
    for step, row in zip(log.steps, rows, strict=True):
        assert step["update"] == pytest.approx(row["timing_s/update_actor"], rel=1e-5)
        assert step["reward"] == pytest.approx(0.4) and math.isnan(step["flat"])
    plan = plan_log(log)
    assert f"groups of {GROUP}" in plan.source, "the largest advantage tells"
    assert plan.phases["rollout"] == pytest.approx(0.4, abs=0.02) and plan.seconds == pytest.approx(100, rel=0.03)


def test_trls_state_is_read_and_what_it_lacks_is_said(tmp_path, capsys):
    path = tmp_path / "trainer_state.json"
    fixed = {"completions/mean_length": 300.0, "frac_reward_zero_std": 0.6, "step_time": 9.0}
    history = [{"step": n, "reward": 0.5 + 0.02 * (n % 3), **fixed} for n in range(1, 21)]
    path.write_text(json.dumps({"log_history": [*history, {"step": 20, "train_runtime": 200.0}]}))
    assert main(["plan", "--log", str(path), "--generations", "8"]) == 0
    text = capsys.readouterr().out
    assert "TRL's state, 20 steps, groups of 8; a step takes 9 s" in text and "silent groups 60%" in text
    assert "Where a step's time goes" in text
    assert "exact skipping         at least 0%, at most 60%" in text, "all rollout, or all update"
    assert "How many groups" not in text and "How many completions" not in text
    marked = "\ufeff"  # as Windows saves
    path.write_text(marked + json.dumps({"log_history": [each | {"kl": 0.01} for each in history]}))
    assert main(["plan", "--log", str(path)]) == 0
    text = capsys.readouterr().out
    assert "exact skipping         nothing" in text and "KL term" in text and "8 are assumed" in text


@pytest.mark.parametrize(("rate", "strength", "group"), [(0.5, 0.18, 8), (0.61, 0.49, 8), (0.3, 4.0, 4)])
def test_pass_rates_come_back_from_the_mean_and_the_share_of_equal_groups(rate, strength, group):
    rng = np.random.default_rng(0)
    rate_Q = rng.beta(rate * strength, (1 - rate) * strength, size=100_000)
    right_Q = rng.binomial(group, rate_Q)
    flat = np.mean((right_Q == 0) | (right_Q == group))
    found = np.array(pass_rates(right_Q.mean() / group, flat, group))
    assert found.mean() == pytest.approx(rate, abs=0.02)
    assert np.mean(found**group + (1 - found) ** group) == pytest.approx(flat, abs=0.02)
    assert np.mean(found * (1 - found)) == pytest.approx(np.mean(rate_Q * (1 - rate_Q)), abs=0.02)
    alike = np.full(24, rate)  # the wrong twin: all prompts alike
    assert abs(np.mean(alike**group + (1 - alike) ** group) - flat) > 0.1


def test_what_is_saved_follows_from_shares_of_signal_and_of_time(tmp_path):
    def plan(**others):
        return plan_log(read_log(write_json_lines(tmp_path, rows_of(**others))), generations=8).saved

    half = plan(frac_reward_zero_std=0.5)["exact skipping"]
    assert half.value == pytest.approx(0.5 * 0.55, abs=0.01) and half.low < half.value < half.high
    assert half.high - half.low < 0.1, "what is in the log is known well"
    assert plan(frac_reward_zero_std=0.9)["exact skipping"].value > 1.6 * half.value
    unknown = plan()["exact skipping"]
    alike = 0.4**8 + 0.6**8  # of groups, if all prompts have the mean reward of .4
    assert unknown.low == pytest.approx(alike * 0.55, abs=0.01) and unknown.high == pytest.approx(0.55, abs=0.01)
    slow = {"timing_s/gen": 400.0, "timing_s/step": 460.0}
    rare = plan(frac_reward_zero_std=0.8, **slow)
    assert rare["exact skipping"].value < half.value and rare["prompts"].value > rare["completions"].value >= 0


def test_rewards_of_minus_one_and_one_bound_the_silent_groups_by_their_pass_rate(tmp_path):
    """Half right: groups of 8 are silent in 2 of 256 if all prompts are alike. The wrong twin, a rate of 0: all."""
    signed = {"critic/score/mean": 0.0, "critic/score/min": -1.0}
    plan = plan_log(read_log(write_json_lines(tmp_path, rows_of(**signed))), generations=8)
    assert plan.pass_rate == pytest.approx(0.5) and plan.flat.low == pytest.approx(2 / 256)


def test_a_run_that_skips_already_is_planned_from_what_it_forwarded(tmp_path):
    """Nine of ten groups are silent and skipped, a tenth of the update is left: the plan is the same."""

    def plan(**others):
        told = {"timing_s/old_log_prob": 0.0, "timing_s/step": 0.0, "frac_reward_zero_std": 0.9}
        log = read_log(write_json_lines(tmp_path, rows_of(**told, **others)))
        return plan_log(
            replace(log, steps=tuple(each | {"whole": math.nan} for each in log.steps)), generations=8
        ).saved

    stock, tenth = plan(**{"timing_s/update_actor": 400.0}), {"timing_s/update_actor": 40.0}
    skipped = plan(**tenth, **{"prune/kept_share": 0.1})
    assert "exact skipping" in stock and "exact skipping" not in skipped
    assert (
        skipped["prompts"].value == pytest.approx(stock["prompts"].value, abs=0.04) and skipped["prompts"].value > 0.08
    )
    dropping = [row | {"prune/completion_rate": 0.3} for row in rows_of()]
    assert "has dropped completions already" in " ".join(
        plan_log(read_log(write_json_lines(tmp_path, dropping))).unknown
    )
    assert abs(plan(**tenth)["prompts"].value - stock["prompts"].value) > 0.04, "the wrong twin: all were forwarded"


def test_a_run_that_has_pruned_prompts_is_not_offered_them_again(tmp_path):
    pruned = plan_log(read_log(write_json_lines(tmp_path, rows_of(**{"prune/prompt_rate": 0.5}))))
    assert "prompts" not in pruned.saved and any("pruned prompts already" in each for each in pruned.unknown)
    cut = plan_log(read_log(write_json_lines(tmp_path, rows_of(**{"prune/token_rate": 0.5}))))
    assert "prompts" in cut.saved and any("cut tokens already" in each for each in cut.unknown)
    assert lines_of(pruned)


def test_a_share_that_is_0_whatever_the_groups_hold_is_not_believed(tmp_path):
    """TRL's with ``scale_rewards: batch``; ours is one of groups, and may be 0."""

    def plan(**others):
        return plan_log(read_log(write_json_lines(tmp_path, rows_of(**others))))

    blind, seen = plan(frac_reward_zero_std=0.0), plan(**{"candidates/zero_variance_groups": 0.0})
    assert (
        blind.flat.low < 0.1 and blind.flat.high > 0.9 and any("scale_rewards: batch" in each for each in blind.unknown)
    )
    both = plan(**{"candidates/zero_variance_groups": 0.0, "frac_reward_zero_std": 0.0})
    assert both.flat == seen.flat, "a log of ours has both"
    assert seen.flat.high == 0 and seen.saved["exact skipping"].value < 0.1


def test_a_folder_with_a_log_is_that_log(tmp_path, capsys):
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    fixed = {"completions/mean_length": 300.0, "reward": 0.5, "frac_reward_zero_std": 0.6, "step_time": 9.0}
    history = [{"step": n, **fixed} for n in range(1, 21)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert main(["plan", "--log", str(folder), "--generations", "8"]) == 0
    assert "TRL's state, 20 steps" in capsys.readouterr().out
    assert len(read_log(tmp_path).steps) == 20, "the output_dir of a run has the state of its checkpoint"
    (tmp_path / "checkpoint-3").mkdir()  # older, and copied later
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text(json.dumps({"log_history": history[:3]}))
    (tmp_path / "checkpoint-latest").symlink_to(tmp_path / "gone")
    assert len(read_log(tmp_path).steps) == 20


def test_trls_profile_says_where_a_steps_time_goes(tmp_path):
    """Of 10 s generation takes 3 and rewards 1, so exact skipping of half of the groups saves half of 6.

    Where vLLM is handed the weights in 2 of them, half of 4 are saved.
    """
    of_trl = "profiling/Time taken: GRPOTrainer"
    profile = {f"{of_trl}.transformers.generate": 3.0, f"{of_trl}._calculate_rewards": 1.0, "step_time": 10.0}
    row = {"reward": 0.5, "completions/mean_length": 300.0, "frac_reward_zero_std": 0.5} | profile
    found = plan_log(read_log(write_json_lines(tmp_path, [row] * STEPS)), generations=8)
    assert found.saved["exact skipping"].value == pytest.approx(0.5 * 0.6, abs=0.01)
    assert not any("Where a step's time goes" in each for each in found.unknown)
    vllm = {f"{of_trl}.vLLM.generate": 3.0, f"{of_trl}.sync_weights": 2.0}
    for engine, saved in ((vllm, 0.5 * 0.4), ({f"{of_trl}.transformers.generate_batch": 3.0}, 0.5 * 0.6)):
        other = {name: value for name, value in row.items() if "generate" not in name} | engine
        found = plan_log(read_log(write_json_lines(tmp_path, [other] * STEPS)), generations=8)
        assert found.saved["exact skipping"].value == pytest.approx(saved, abs=0.01)


def test_a_profile_of_every_call_beside_a_log_of_every_tenth_step(tmp_path):
    """Ten calls between two rows of figures, as wandb has them. The wrong twin adds them up: more than the step."""
    call = {"profiling/Time taken: GRPOTrainer.transformers.generate": 4.0}
    figures = {"train/reward": 0.5, "train/completions/mean_length": 300.0, "train/step_time": 10.0}
    rows = [row for step in range(STEPS) for row in (figures | {"train/global_step": 10.0 * step}, *[call] * 10)]
    path = tmp_path / "history.json"

    def read_without(unwanted):
        kept = [{name: value for name, value in row.items() if name != unwanted} for row in rows]
        path.write_text(json.dumps([row | {"_step": place} for place, row in enumerate(kept)]))
        return read_log(path)

    log, where = read_without(None), "Where a step's time goes"
    assert log.steps[0]["rollout"] == pytest.approx(4.0)
    assert not any(where in each for each in plan_log(log).unknown)
    said = plan_log(read_without("train/global_step")).unknown
    assert any(where in each for each in said), "40 s of generation in 10 s are not believed"


def test_steps_on_one_rollout_count_as_the_one_that_made_it(tmp_path):
    """40 s of generation in two steps of 100 and 60 s. The wrong twin forgets the second: 40%."""
    once, again = rows_of()[0], {"timing_s/update_actor": 45.0, "timing_s/step": 60.0}
    once |= {"timing_s/gen": 40.0, "timing_s/step": 100.0}
    log = read_log(write_json_lines(tmp_path, [once, again] * STEPS))
    assert len(log.steps) == STEPS and plan_log(log).phases["rollout"] == pytest.approx(0.25)


def test_what_cannot_be_read_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "other.log"
    path.write_text("nothing of use\n")
    with refused(ConfigError, str(path), "0 steps", "trainer_state.json"):
        read_log(path)
    with refused(ConfigError, "no such file"):
        read_log(tmp_path / "missing")
    assert (
        main(["plan", "examples/embedded.yaml", "--log", str(path)]) == 2 and "stands alone" in capsys.readouterr().err
    )
    assert main(["plan", "examples/embedded.yaml", "--generations", "8"]) == 2
    assert main(["plan", "--log", str(path), "--generations", "1"]) == 2


def test_rewards_that_are_no_pass_rates_leave_the_share_of_silent_groups_as_it_is(tmp_path):
    """A second reward function moves the mean out of [0, 1]: clipped to it, half of the groups would look silent."""
    fixed = {"completions/mean_length": 300.0, "frac_reward_zero_std": 0.3, "step_time": 9.0}
    plans = {}
    for shift in (0.0, 1.0):
        path = tmp_path / f"state{shift}.json"
        rows = [{"step": n, "reward": 0.42 + shift + 0.02 * (n % 3), **fixed} for n in range(1, 41)]
        path.write_text(json.dumps({"log_history": rows}))
        plans[shift] = plan_log(read_log(path), generations=8)
    saved = [plan.saved["exact skipping"].value for plan in plans.values()]
    assert saved[1] == pytest.approx(saved[0], abs=0.03)
    assert any("beyond 0 to 1" in line for line in plans[1.0].unknown)
    assert not any("beyond 0 to 1" in line for line in plans[0.0].unknown)


def test_what_trl_prints_is_read_behind_a_progress_bar(tmp_path):
    fixed = {"completions/mean_length": 300.0, "reward": 0.5, "frac_reward_zero_std": "0.6", "step_time": 9.0}
    bar = "  5%|5         | 1/20 [00:09<02:51,  9.0s/it]"
    path = tmp_path / "train.log"
    odd = ["nan", "np.float64(0.5)", "-inf", "0.5"]
    printed = [f"{str(fixed | {'epoch': n / 20})[:-1]}, 'grad_norm': {odd[n % 4]}}}" for n in range(20)]
    lines = [f"{bar * (n % 2)}\x1b[1m{line}\x1b[0m" for n, line in enumerate(printed)]
    path.write_text("\n".join([*lines, "{'train_runtime': 180.0}", "{'no dictionary'}", "{'x': " + "9" * 400 + "}"]))
    log = read_log(path)
    assert log.kind == "a console's output" and len(log.steps) == 20 and log.steps[0]["flat"] == 0.6


def test_a_filter_of_silent_groups_leaves_none_to_skip(tmp_path):
    """verl's ``filter_groups``. The wrong twin goes through all shares of silent groups."""
    rows = rows_of(**{"training/filter_groups/evicted_samples": 300.0})
    plan = plan_log(read_log(write_json_lines(tmp_path, rows)))
    assert plan.saved["exact skipping"].value < 0.1
    assert any("algorithm.filter_groups" in each for each in plan.unknown)
    assert not any("How many groups" in each for each in plan.unknown)


def test_numbers_and_files_that_cannot_be_are_no_traceback(tmp_path):
    path = tmp_path / "odd.json"
    rows = [{"step": n, "reward": 0.5, "response_length/mean": 9.0, "total": 10**400} for n in range(3)]
    path.write_text(json.dumps(rows))
    assert len(read_log(path).steps) == 3
    path.write_text("[" * 100_000)
    with refused(ConfigError, path, "0 steps"):
        read_log(path)
    path.unlink()
    path.symlink_to("/proc/self/mem")
    with refused(ConfigError, path, "cannot be read"):
        read_log(path)


def test_an_export_of_two_runs_is_not_read_as_one(tmp_path):
    """The wrong twin takes each figure from the last run that has it: a pass rate of 45% that neither had."""
    path = write_csv(tmp_path, rows_of())
    header, *lines = path.read_text().splitlines()
    second = header.removeprefix("Step").replace("my run", "other - run")
    path.write_text("\n".join([header + second, *(line + line[line.index(",") :] for line in lines)]))
    with refused(ConfigError, path, "2 runs (my run, other - run)", "Export one"):
        read_log(path)


def test_a_kl_term_in_the_reward_leaves_no_group_silent(tmp_path):
    """verl's use_kl_in_reward. The wrong twin skips half of the groups, whose scores alone are equal."""
    half = {"frac_reward_zero_std": 0.5}
    saved = {}
    for penalty in (0.0, 0.002):
        rows = rows_of(**half, **{"actor/reward_kl_penalty": penalty})
        plan = plan_log(read_log(write_json_lines(tmp_path, rows)))
        saved[penalty] = plan.saved["exact skipping"].value, any("KL term" in each for each in plan.unknown)
    assert saved[0.0][0] > 0.2 and not saved[0.0][1]
    assert saved[0.002] == (0.0, True)
