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


def check_weights_and_requests(found):
    """The sampler has the trainer's weights in each step, older ones would be seen, and later steps ask for less."""
    differences = {call["steps_taken"]: call["difference"] for call in found["seen"]}
    print("nats by steps taken:", differences, "one step behind:", found["difference_one_step_behind"])
    assert list(differences) == list(range(STEPS + 1)) and max(differences.values()) < BOUND
    assert max(row["sampling/sampling_logp_difference/max"] for row in found["logged"]) < BOUND
    assert found["difference_one_step_behind"] > 100 * BOUND, "weights that were not sent would be seen"
    asked = [len(call["prompts"]) for call in found["seen"][:STEPS]]
    print("requests:", asked)
    assert asked[:2] == [PER_GENERATION] * 2 and max(asked[2:]) < PER_GENERATION, "prompts with a history are pruned"


def test_sampler_and_trainer_agree_before_the_first_step_and_after_every_one(straight):
    found, _ = straight
    check_weights_and_requests(found)
    assert len(found["logged"]) == STEPS and all(row["grad_norm"] > 0 for row in found["logged"])
    assert max(row["sampling/sampling_logp_difference/max"] for row in found["logged"]) > 0
    shifted = [call["difference_shifted"] for call in found["seen"]]
    print("shifted:", shifted)
    assert min(shifted) > 100 * BOUND, "log-probabilities of the token before would be seen"


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


def test_a_resumed_run_asks_the_same_prompts_and_gets_the_same_completions(straight, untrained, tmp_path):
    found, folder = straight
    checkpoint = folder / "run" / "checkpoint-2"
    again = result("training.py", tmp_path, untrained, "--checkpoint", checkpoint)["seen"]
    rest = found["seen"][2:]
    assert [call["steps_taken"] for call in again] == [2, 3, 4, 5]
    for name in ("prompts", "completions"):
        assert [call[name] for call in again] == [call[name] for call in rest], name
    assert max(call["difference"] for call in again) < BOUND
