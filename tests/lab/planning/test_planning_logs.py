"""``dppo plan --log``: every format gives the same figures, and pass rates come back from what logs say of groups."""

import json
import math

import numpy as np
import pytest
from refusals import refused
from small_runs import write_lines

from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.planning.from_log import plan_log
from dppo.lab.planning.logs import read_log

STEPS = 12
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
    (folder / "verl.log").write_text("\n".join(lines))
    return folder / "verl.log"


def write_json_lines(folder, rows):
    write_lines(folder / "verl.jsonl", [{"step": n, "data": row} for n, row in enumerate(rows, 1)])
    return folder / "verl.jsonl"


@pytest.mark.parametrize("write", [write_console, write_json_lines])
def test_every_format_gives_the_same_figures(write, tmp_path):
    rows = rows_of()
    log = read_log(write(tmp_path, rows))
    assert len(log.steps) == STEPS, "what is not training is left out"
    for step, row in zip(log.steps, rows, strict=True):
        assert step["update"] == pytest.approx(row["timing_s/update_actor"], rel=1e-5)
        assert step["reward"] == pytest.approx(0.4) and math.isnan(step["flat"])
    plan = plan_log(log)
    assert "groups of 5" in plan.source, "the largest advantage tells"
    assert plan.phases["rollout"] == pytest.approx(0.4, abs=0.02) and plan.seconds == pytest.approx(100, rel=0.03)


def saved_by(tmp_path, *, generations=8, **others):
    return plan_log(read_log(write_json_lines(tmp_path, rows_of(**others))), generations=generations)


SHIFTED = {"critic/score/mean": 1.42, "critic/score/max": math.nan, "frac_reward_zero_std": 0.3}
NONE = {"candidates/zero_variance_groups": 0.0}
NONE_OF_TRL = {"frac_reward_zero_std": 0.0}


@pytest.mark.parametrize(
    ("others", "saved", "said"),
    [
        ({"frac_reward_zero_std": 0.5}, 0.5 * 0.55, ""),
        ({"frac_reward_zero_std": 0.5, "timing_s/gen": 400.0, "timing_s/step": 460.0}, 0.5 * 55 / 460, ""),
        (NONE, 0.0, ""),
        (NONE | NONE_OF_TRL, 0.0, ""),  # a log of ours has both
        ({"training/filter_groups/evicted_samples": 300.0}, 0.0, "algorithm.filter_groups"),
        ({"frac_reward_zero_std": 0.5, "actor/reward_kl_penalty": 0.002}, 0.0, "KL term"),
        (SHIFTED, 0.3 * 0.55, "beyond 0 to 1"),
    ],
)
def test_skipping_saves_the_share_of_groups_times_that_of_the_update(tmp_path, others, saved, said):
    plan = saved_by(tmp_path, **others)
    assert plan.saved == (pytest.approx(saved, abs=0.01),) * 2
    for words in ("algorithm.filter_groups", "KL term", "beyond 0 to 1", "Zero-variance groups ("):
        assert any(words in each for each in plan.unknown) == (words == said)


@pytest.mark.parametrize(
    ("others", "least"),
    [
        ({}, 0.4**8 + 0.6**8),  # if all prompts have the mean reward
        ({"critic/score/mean": 0.0, "critic/score/min": -1.0}, 2 / 256),  # half right, and not a rate of 0
        (NONE_OF_TRL, 0.4**8 + 0.6**8),  # TRL's is 0 with ``scale_rewards: batch``, whatever the groups hold
    ],
)
def test_an_unknown_share_of_groups_has_bounds(tmp_path, others, least):
    plan = saved_by(tmp_path, **others)
    assert plan.zero_variance == (pytest.approx(least), 1.0)
    assert plan.saved == (pytest.approx(least * 0.55, abs=0.01), pytest.approx(0.55, abs=0.01))
    assert any("scale_rewards: batch" in each for each in plan.unknown)


FIXED = {"completions/mean_length": 300.0, "frac_reward_zero_std": 0.6, "step_time": 9.0, "reward": 0.5}


def test_trls_state_is_read_and_what_it_lacks_is_said(tmp_path, capsys):
    for number in (20, 3):  # the older one was copied later
        (tmp_path / f"checkpoint-{number}").mkdir()
        history = [{"step": n, **FIXED} for n in range(1, number + 1)] + [{"step": number, "train_runtime": 200.0}]
        path = tmp_path / f"checkpoint-{number}" / "trainer_state.json"
        path.write_text("\ufeff" + json.dumps({"log_history": history}))
    assert main(["plan", "--log", str(tmp_path), "--generations", "8"]) == 0
    text = capsys.readouterr().out
    assert "trainer_state.json, 20 steps, groups of 8; a step takes 9 s" in text and "zero-variance groups 60%" in text
    assert "exact skipping would have saved at least 0%, at most 60% of" in text, "all rollout, or all update"
    assert "Seconds by phase" in text and "Zero-variance groups (" not in text
    path.write_text(json.dumps({"log_history": [each | {"kl": 0.01} for each in history]}))
    assert main(["plan", "--log", str(path)]) == 0
    text = capsys.readouterr().out
    assert "exact skipping would have saved nothing" in text and "8 are assumed" in text


def test_what_trl_prints_is_read_behind_a_progress_bar(tmp_path):
    bar = "  5%|5         | 1/20 [00:09<02:51,  9.0s/it]"
    path, odd = tmp_path / "train.log", ["nan", "np.float64(0.5)", "-inf", "0.5"]
    printed = [f"{str(FIXED | {'epoch': n / 20})[:-1]}, 'grad_norm': {odd[n % 4]}}}" for n in range(20)]
    lines = [f"{bar * (n % 2)}\x1b[1m{line}\x1b[0m" for n, line in enumerate(printed)]
    path.write_text("\n".join([*lines, "{'train_runtime': 180.0}", "{'no dictionary'}", "{'x': " + "9" * 400 + "}"]))
    log = read_log(path)
    assert len(log.steps) == 20 and log.steps[0]["flat_of_trl"] == 0.6


def test_steps_on_one_rollout_count_as_the_one_that_made_it(tmp_path):
    """40 s of generation in two steps of 100 and 60 s. The wrong twin forgets the second: 40%."""
    once, again = rows_of()[0], {"timing_s/update_actor": 45.0, "timing_s/step": 60.0}
    once |= {"timing_s/gen": 40.0, "timing_s/step": 100.0}
    log = read_log(write_json_lines(tmp_path, [once, again] * STEPS))
    assert len(log.steps) == STEPS and plan_log(log).phases["rollout"] == pytest.approx(0.25)


def test_what_cannot_be_read_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "other.log"
    for text in ("nothing of use\n", "[" * 100_000):
        path.write_text(text)
        with refused(ConfigError, str(path), "0 steps", "trainer_state.json"):
            read_log(path)
    with refused(ConfigError, tmp_path / "missing", "cannot be read"):
        read_log(tmp_path / "missing")
    with refused(ConfigError, "prunes already", "--run FOLDER"):
        saved_by(tmp_path, **{"prune/kept_share": 0.1, "frac_reward_zero_std": 0.9})
    for words in (["examples/embedded.yaml", "--log", str(path)], ["--log", str(path), "--generations", "1"]):
        assert main(["plan", *words]) == 2 and "--log FILE --generations 8" in capsys.readouterr().err
    assert main(["plan", "examples/embedded.yaml", "--generations", "8"]) == 2
