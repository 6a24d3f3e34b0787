"""``dppo plan --log``: every format gives the same figures, and pass rates come back from what logs say of groups."""

import json
import math

import numpy as np
import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.planning.from_log import plan_log
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


@pytest.mark.parametrize("write", [write_console, write_json_lines])
def test_every_format_gives_the_same_figures(write, tmp_path):
    rows = rows_of()
    log = read_log(write(tmp_path, rows))
    assert len(log.steps) == STEPS, "what is not training is left out"
    for step, row in zip(log.steps, rows, strict=True):
        assert step["update"] == pytest.approx(row["timing_s/update_actor"], rel=1e-5)
        assert step["reward"] == pytest.approx(0.4) and math.isnan(step["flat"])
    plan = plan_log(log)
    assert f"groups of {GROUP}" in plan.source, "the largest advantage tells"
    assert plan.phases["rollout"] == pytest.approx(0.4, abs=0.02) and plan.seconds == pytest.approx(100, rel=0.03)


def saved_by(tmp_path, *, generations=8, **others):
    return plan_log(read_log(write_json_lines(tmp_path, rows_of(**others))), generations=generations)


def exact(plan):
    low, high = plan.saved
    assert low == high, "the log has all"
    return low


def said(plan, words):
    return any(words in each for each in plan.unknown)


def test_trls_state_is_read_and_what_it_lacks_is_said(tmp_path, capsys):
    path = tmp_path / "trainer_state.json"
    fixed = {"completions/mean_length": 300.0, "frac_reward_zero_std": 0.6, "step_time": 9.0}
    history = [{"step": n, "reward": 0.5 + 0.02 * (n % 3), **fixed} for n in range(1, 21)]
    path.write_text("\ufeff" + json.dumps({"log_history": [*history, {"step": 20, "train_runtime": 200.0}]}))
    assert main(["plan", "--log", str(path), "--generations", "8"]) == 0
    text = capsys.readouterr().out
    assert "trainer_state.json, 20 steps, groups of 8; a step takes 9 s" in text and "zero-variance groups 60%" in text
    assert "exact skipping would have saved at least 0%, at most 60% of" in text, "all rollout, or all update"
    assert "Seconds by phase" in text and "Zero-variance groups (" not in text
    path.write_text(json.dumps({"log_history": [each | {"kl": 0.01} for each in history]}))
    assert main(["plan", "--log", str(path)]) == 0
    text = capsys.readouterr().out
    assert "exact skipping would have saved nothing" in text and "KL term" in text and "8 are assumed" in text


def test_what_is_saved_follows_from_shares_of_signal_and_of_time(tmp_path):
    half = exact(saved_by(tmp_path, frac_reward_zero_std=0.5))
    assert half == pytest.approx(0.5 * 0.55, abs=0.01)
    assert exact(saved_by(tmp_path, frac_reward_zero_std=0.9)) > 1.6 * half
    alike = 0.4**8 + 0.6**8  # of groups, if all prompts have the mean reward of .4
    assert saved_by(tmp_path).saved == (pytest.approx(alike * 0.55, abs=0.01), pytest.approx(0.55, abs=0.01))
    assert (
        exact(saved_by(tmp_path, **{"frac_reward_zero_std": 0.8, "timing_s/gen": 400.0, "timing_s/step": 460.0})) < half
    )


def test_rewards_of_minus_one_and_one_bound_the_equal_groups_by_their_pass_rate(tmp_path):
    """Half right: groups of 8 are equal in 2 of 256 if all prompts are alike. The wrong twin, a rate of 0: all."""
    plan = saved_by(tmp_path, **{"critic/score/mean": 0.0, "critic/score/min": -1.0})
    assert plan.pass_rate == pytest.approx(0.5) and plan.zero_variance[0] == pytest.approx(2 / 256)


def test_a_run_that_prunes_already_is_refused(tmp_path):
    """What it forwarded is not what it rolled out: the wrong twin takes it for an unpruned run."""
    with refused(ConfigError, "prunes already", "--run FOLDER"):
        saved_by(tmp_path, **{"prune/kept_share": 0.1, "frac_reward_zero_std": 0.9})


def test_a_share_that_is_0_whatever_the_groups_hold_is_not_believed(tmp_path):
    """TRL's with ``scale_rewards: batch``; ours is one of groups, and may be 0."""
    blind, seen = (saved_by(tmp_path, **{n: 0.0}) for n in ("frac_reward_zero_std", "candidates/zero_variance_groups"))
    assert blind.zero_variance[0] < 0.1 and blind.zero_variance[1] > 0.9 and said(blind, "scale_rewards: batch")
    assert seen.zero_variance == (0, 0) and exact(seen) < 0.1
    both = saved_by(tmp_path, **{"candidates/zero_variance_groups": 0.0, "frac_reward_zero_std": 0.0})
    assert both.zero_variance == seen.zero_variance, "a log of ours has both"


def test_a_folder_with_a_log_is_that_log(tmp_path):
    fixed = {"completions/mean_length": 300.0, "reward": 0.5, "frac_reward_zero_std": 0.6, "step_time": 9.0}
    for number in (20, 3):  # the older one was copied later
        (tmp_path / f"checkpoint-{number}").mkdir()
        history = [{"step": n, **fixed} for n in range(1, number + 1)]
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (tmp_path / "checkpoint-latest").symlink_to(tmp_path / "gone")
    for folder in (tmp_path, tmp_path / "checkpoint-20"):
        assert len(read_log(folder).steps) == 20


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
    with refused(ConfigError, tmp_path / "missing", "cannot be read"):
        read_log(tmp_path / "missing")
    path.write_text("[" * 100_000)
    with refused(ConfigError, path, "0 steps"):
        read_log(path)
    row = {"reward": 0.5, "response_length/mean": 9.0, "x": 10**400}
    path.write_text("\n".join(json.dumps(row | {"step": n}) for n in "123"))
    assert len(read_log(path).steps) == 3, "a number beyond floats"
    for words in (["examples/embedded.yaml", "--log", str(path)], ["--log", str(path), "--generations", "1"]):
        assert main(["plan", *words]) == 2 and "stands alone" in capsys.readouterr().err
    assert main(["plan", "examples/embedded.yaml", "--generations", "8"]) == 2


def test_rewards_that_are_no_pass_rates_leave_the_share_of_equal_groups_as_it_is(tmp_path):
    """A second reward function moves the mean out of [0, 1]: clipped to it, half of the groups would look equal."""
    found = []
    for shift in (0.0, 1.0):
        others = {"critic/score/mean": 0.42 + shift, "critic/score/max": math.nan, "frac_reward_zero_std": 0.3}
        found.append(saved_by(tmp_path, **others))
    assert exact(found[1]) == pytest.approx(exact(found[0]), abs=0.03)
    assert [said(plan, "beyond 0 to 1") for plan in found] == [False, True]


def test_what_trl_prints_is_read_behind_a_progress_bar(tmp_path):
    fixed = {"completions/mean_length": 300.0, "reward": 0.5, "frac_reward_zero_std": "0.6", "step_time": 9.0}
    bar = "  5%|5         | 1/20 [00:09<02:51,  9.0s/it]"
    path = tmp_path / "train.log"
    odd = ["nan", "np.float64(0.5)", "-inf", "0.5"]
    printed = [f"{str(fixed | {'epoch': n / 20})[:-1]}, 'grad_norm': {odd[n % 4]}}}" for n in range(20)]
    lines = [f"{bar * (n % 2)}\x1b[1m{line}\x1b[0m" for n, line in enumerate(printed)]
    path.write_text("\n".join([*lines, "{'train_runtime': 180.0}", "{'no dictionary'}", "{'x': " + "9" * 400 + "}"]))
    log = read_log(path)
    assert len(log.steps) == 20 and log.steps[0]["flat_of_trl"] == 0.6


def test_a_filter_of_equal_groups_leaves_none_to_skip(tmp_path):
    """verl's ``filter_groups``. The wrong twin goes through all shares of equal groups."""
    plan = saved_by(tmp_path, **{"training/filter_groups/evicted_samples": 300.0})
    assert exact(plan) < 0.1 and said(plan, "algorithm.filter_groups") and not said(plan, "Zero-variance groups (")


def test_a_kl_term_in_the_reward_gives_every_group_a_gradient(tmp_path):
    """verl's use_kl_in_reward. The wrong twin skips half of the groups, whose scores alone are equal."""
    plans = [saved_by(tmp_path, **{"frac_reward_zero_std": 0.5, "actor/reward_kl_penalty": kl}) for kl in (0.0, 0.002)]
    assert [exact(plan) > 0.2 for plan in plans] == [True, False] and exact(plans[1]) == 0
    assert [said(plan, "KL term") for plan in plans] == [False, True]
