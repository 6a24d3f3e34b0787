"""Training with vLLM in a server of its own: all of it but NCCL, in whose place weights pass by file."""

import pytest
from conftest import result, serving
from test_vllm_training import BOUND, PER_GENERATION, STEPS


@pytest.fixture(scope="module")
def served(untrained, tmp_path_factory):
    """A run of five steps against a server."""
    folder = tmp_path_factory.mktemp("served")
    with serving(untrained, folder / "server.log") as address:
        return result("training.py", folder, untrained, "--server", address)


def test_the_server_has_the_trainers_weights_before_the_first_step_and_after_every_one(served):
    differences = {call["steps_taken"]: call["difference"] for call in served["seen"]}
    print("nats by steps taken:", differences)
    assert list(differences) == list(range(STEPS + 1)) and max(differences.values()) < BOUND
    assert max(row["sampling/sampling_logp_difference/max"] for row in served["logged"]) < BOUND


def test_weights_that_were_not_sent_would_be_seen(served):
    print("one step behind:", served["difference_one_step_behind"])
    assert served["difference_one_step_behind"] > 100 * BOUND


def test_a_server_is_asked_for_fewer_completions_once_prompts_have_a_history(served):
    asked = [len(call["prompts"]) for call in served["seen"][:STEPS]]
    print("completions:", asked)
    assert asked[:2] == [PER_GENERATION] * 2 and max(asked[2:]) < PER_GENERATION


def test_a_server_in_float32_needs_no_word(served):
    assert not any("vLLM samples" in line for line in served["warned"])
