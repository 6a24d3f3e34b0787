"""Training with vLLM beside the trainer, on the CPU in float32: five steps of both prunings, TRL's own weight sync."""

import pytest
from conftest import result

STEPS, PER_GENERATION = 5, 16
BOUND = 1e-4
"""Nats between sampler and trainer: with the trainer's weights in the sampler, rounding alone."""


@pytest.fixture(scope="module")
def straight(untrained, tmp_path_factory):
    """A run of five steps, and its folder."""
    folder = tmp_path_factory.mktemp("straight")
    return result("training.py", folder, untrained), folder


def test_sampler_and_trainer_agree_before_the_first_step_and_after_every_one(straight):
    found, _ = straight
    differences = {call["steps_taken"]: call["difference"] for call in found["seen"]}
    print("nats by steps taken:", differences)
    assert list(differences) == list(range(STEPS + 1)) and max(differences.values()) < BOUND


def test_the_alarm_in_the_logs_is_silent(straight):
    found, _ = straight
    logged = [row["sampling/sampling_logp_difference/max"] for row in found["logged"]]
    print("logged:", logged)
    assert len(logged) == STEPS and 0 < max(logged) < BOUND
    assert all(row["grad_norm"] > 0 for row in found["logged"])


def test_log_probabilities_shifted_by_a_token_would_be_seen(straight):
    found, _ = straight
    shifted = [call["difference_shifted"] for call in found["seen"]]
    print("shifted:", shifted)
    assert min(shifted) > 100 * BOUND


def test_weights_that_are_one_step_behind_would_be_seen(straight):
    found, _ = straight
    print("one step behind:", found["difference_one_step_behind"])
    assert found["difference_one_step_behind"] > 100 * BOUND


def test_a_stale_head_would_be_seen(untrained, tmp_path):
    found = result("training.py", tmp_path, untrained, "--steps", "2", "--head", "stale")
    before, *after = [call["difference"] for call in found["seen"]]
    logged = [row["sampling/sampling_logp_difference/max"] for row in found["logged"]]
    print("stale head:", before, after, logged)
    assert before < BOUND and len(after) == 2 and min(after) > 100 * BOUND
    assert logged[0] < BOUND < logged[1] / 10


def test_a_sampler_in_bfloat16_is_said_at_start_and_is_what_the_logs_show(straight, untrained, tmp_path):
    """TRL gives its ``LLM`` no dtype, and vLLM's ``auto`` takes float32 down."""
    found = result("training.py", tmp_path, untrained, "--steps", "2", "--sampler_dtype", "auto")
    said = [line for line in found["warned"] if "vLLM samples in bfloat16" in line]
    differences = [call["difference"] for call in found["seen"]]
    print("bfloat16:", said, differences)
    assert len(said) == 1 and min(differences) > BOUND
    assert not any("vLLM samples" in line for line in straight[0]["warned"])


def test_fewer_requests_are_made_once_prompts_have_a_history(straight):
    found, _ = straight
    asked = [len(call["prompts"]) for call in found["seen"][:STEPS]]
    print("requests:", asked)
    assert asked[:2] == [PER_GENERATION] * 2 and max(asked[2:]) < PER_GENERATION


def test_a_resumed_run_asks_the_same_prompts_and_gets_the_same_completions(straight, untrained, tmp_path):
    found, folder = straight
    checkpoint = folder / "run" / "checkpoint-2"
    again = result("training.py", tmp_path, untrained, "--checkpoint", checkpoint)["seen"]
    rest = found["seen"][2:]
    assert [call["steps_taken"] for call in again] == [2, 3, 4, 5]
    assert [call["prompts"] for call in again] == [call["prompts"] for call in rest]
    assert [call["completions"] for call in again] == [call["completions"] for call in rest]
    assert max(call["difference"] for call in again) < BOUND
