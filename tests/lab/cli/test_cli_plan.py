"""``dppo plan``: from the records of a run, from a pilot; and what it refuses."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import yaml
from refusals import refused
from small_runs import lines_of, write_lines

from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.planning.pilot import pilot_fields, run_pilot
from dppo.lab.planning.run_plan import pilot_size, pruning_method
from dppo.lab.runs.parsing import parse_given
from dppo.methods import METHODS
from dppo.trl import DPPOConfig

CPU = {"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none"}
EMBEDDED = str(Path(__file__).parents[3] / "examples" / "embedded.yaml")
MEANS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.0)


@pytest.fixture
def run(tmp_path):
    """Records of a run of 8 prompts by 4 completions whose rollouts take 1 ms a token and updates 2 ms."""
    facts = {"format": 1, "method": "dppo", "status": "finished", "task": {"prompts": 192}, "environment": {}}
    (tmp_path / "run.json").write_text(json.dumps(facts | {"config": {"num_generations": 4}}))
    logs, prompts = [], []
    seconds = rollouts = tokens = both = 0.0
    for step in range(1, 13):
        made, forwarded = 32 * (20 + step), 500.0 + 40 * (step % 3)
        rollouts, tokens, both = rollouts + 32, tokens + made, both + made + 32 * 11
        seconds += 1e-3 * made + 2e-3 * forwarded + 0.1
        logs.append(
            {
                "step": step, "total/seconds": seconds, "total/rollouts": rollouts, "total/rollout_tokens": tokens,
                "num_tokens": both, "time/rollout": 1e-3 * made, "time/reward": 0.0, "time/prune": 0.0,
                "time/forward_backward": 2e-3 * forwarded, "time/optimizer": 0.05, "rows/tokens": forwarded,
                "rows/padded_tokens": 16 * 64.0, "prune/kept_share": 0.5, "reward": sum(MEANS) / 8,
                "candidates/zero_variance_groups": sum(mean in (0, 1) for mean in MEANS) / 8,
            }
        )  # fmt: skip
        prompts.append(
            {
                "step": step, "generation": step - 1, "rows": [step * 8 + p for p in range(8)],
                "probability": [1.0] * 8, "rolled_out": [True] * 8, "epoch": None,
                "rewards": [[float(k < 4 * mean) for k in range(4)] for mean in MEANS],
                "tokens": [[20 + step] * 4] * 8,
            }
        )  # fmt: skip
    write_lines(tmp_path / "metrics.jsonl", logs)
    write_lines(tmp_path / "prompts.jsonl", prompts)
    return tmp_path


def test_records_of_a_run_are_read(run, capsys):
    output = run / "plan.json"
    assert main(["plan", EMBEDDED, "--run", str(run), "--output", str(output)]) == 0
    text, saved = capsys.readouterr().out, json.loads(output.read_text())
    costs = saved["figures"]["costs"]
    assert costs["rollout_token"] == pytest.approx(1e-3) and costs["token"] == pytest.approx(2e-3)
    assert costs["rest"] == pytest.approx(0.1)
    work = saved["figures"]["workload"]
    assert (work["prompt_tokens"], work["padded_tokens"]) == pytest.approx((11, 64))
    assert "96 groups, 11 timed steps" in text and "is taken to cost the same in the other layout" in text
    assert "…" not in text, "nothing is cut off"
    exact = next(row for row in saved["rows"] if row["option"]["name"] == "without zero advantages")
    assert exact["per_step"]["low"] < exact["per_step"]["value"] < exact["per_step"]["high"]


@pytest.mark.parametrize("own", [{}, {"method": "dr_grpo", "prompt_prune_rate": 0, "completion_prune_rate": 0}])
def test_a_plan_ends_with_lines_that_the_configuration_takes(run, capsys, own):
    """Also of methods that prune nothing, whose objective stays, and of one with a block ``compare``."""
    base = yaml.safe_load(Path(EMBEDDED).read_text()) | own
    path = run / "own.yaml"
    path.write_text(yaml.safe_dump(base | {"compare": {"methods": {"grpo": {}}}}))
    assert main(["plan", str(path), "--run", str(run)]) == 0
    fields = yaml.safe_load(capsys.readouterr().out.split("to paste into the configuration:\n")[1])
    rates = {"prompt_prune_rate", "completion_prune_rate"}
    assert fields.keys() in (rates, rates | {"method", "loss_type", "scale_rewards"})
    assert parse_given({**base, **fields}).training.prompt_prune_rate == fields["prompt_prune_rate"]


def test_the_pruning_method_of_a_plan_keeps_the_objective():
    for name, method in METHODS.items():
        given = pruning_method(name)
        if given and "normaliser" in method.fixes and not method.needs_reference:
            assert DPPOConfig(**CPU, **given).build_method().normaliser == method.normaliser, name


def test_a_pilot_has_32_prompts_or_as_many_as_there_are():
    assert [pilot_size(asked, 500) for asked in (None, 4, 64)] == [32, 4, 64] and pilot_size(None, 11) == 10
    for asked, prompts, named in ((12, 10, "Try --pilot 10"), (None, 3, "--pilot 2"), (5, 10, "even")):
        with refused(ConfigError, named):
            pilot_size(asked, prompts)


@pytest.mark.parametrize(("span", "code"), [((-1.0, 1.0), 0), ((0.0, 4.0), 2)])
def test_the_range_of_rewards_is_the_recorded_one_or_0_to_1(run, capsys, span, code):
    """The wrong twin takes 0 to 1 whatever was recorded: rewards of -1 and 1, half right, are all wrong."""
    low, high = span
    logs, prompts = lines_of(run / "metrics.jsonl"), lines_of(run / "prompts.jsonl")[0]
    write_lines(run / "metrics.jsonl", [log | {"reward": low + (high - low) * log["reward"]} for log in logs])
    made = {"rewards": [[low, high]] * 8, "tokens": [[30, 20]] * 8} if code == 0 else {"rewards": [], "tokens": []}
    write_lines(run / "prompts.jsonl", [prompts | made])
    output = run / "plan.json"
    assert main(["plan", EMBEDDED, "--run", str(run), "--output", str(output)]) == code
    if code:
        assert "outside of [0, 1]" in capsys.readouterr().err
        return
    found = json.loads(output.read_text())["figures"]["workload"]
    assert sum(found["pass_rates"]) / 24 == pytest.approx(0.5625, abs=0.02)
    assert (found["right_tokens"], found["wrong_tokens"]) == (20, 30)


def test_a_pilot_times_steps_of_two_sizes_and_one_larger_than_the_data_is_refused(untrained):
    """Seconds are made up: the clock counts how often it is read, and costs are recovered from seconds put in."""
    fields = yaml.safe_load(Path(EMBEDDED).read_text()) | {
        "model_name_or_path": str(untrained), "rollout_func": "embedded", "num_generations": 4,
        "max_completion_length": 8, "embedded_problems": 64, "reward_funcs": ["small_runs.odd_length"],
    }  # fmt: skip
    seen = run_pilot(fields, 4, now=map(float, count()).__next__)
    assert len(seen.timed) == 5 and seen.groups == 4
    assert all(each.update > 0 and each.rest > 0 for each in seen.timed), "every phase was timed, by the clock given"
    whole, *pruned = sorted({each.completions for each in seen.timed if each.completions}, reverse=True)
    assert whole == 2 * 4 and pruned and max(pruned) < whole, "steps of two sizes"
    timed = tuple(replace(each, rollout=1e-3 * each.generated, update=2e-3 * each.forwarded) for each in seen.timed)
    costs = replace(seen, timed=timed).figures().costs
    assert costs.rollout_token == pytest.approx(1e-3) and costs.token == pytest.approx(2e-3)
    with refused(ConfigError, "8 prompts", "6"):
        run_pilot(fields | {"embedded_problems": 6}, 8)


def test_a_run_whose_timings_are_noise_is_refused_with_what_was_measured(run, capsys):
    logs = lines_of(run / "metrics.jsonl")
    for log in logs:
        log |= {"time/rollout": 1 / log["step"], "time/forward_backward": 1 / log["rows/tokens"]}
    write_lines(run / "metrics.jsonl", logs)
    assert main(["plan", EMBEDDED, "--run", str(run)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "too noisy" in error and "rollout took" in error and "--pilot 64" in error


def test_a_pilot_publishes_nothing_and_evaluates_nothing(tmp_path):
    """transformers makes the repository with the trainer, TRL that of completions: a plan would make both."""
    asked = {"push_to_hub": True, "log_completions": True, "log_completions_hub_repo": "me/mine", "eval_on_start": True}
    asked |= {"lr_scheduler_kwargs": {"min_lr": 1e-5}, "warmup_steps": 5}
    made = pilot_fields({**CPU, "model_name_or_path": "m", **asked}, 8, tmp_path)
    assert made["lr_scheduler_type"] == "constant", "at a learning rate of 0 others divide by it"
    assert made.keys() & asked.keys() == {"log_completions"} and made["model_name_or_path"] == "m"
