"""Training with vLLM in a server of its own: all of it but NCCL, in whose place weights pass by file."""

from conftest import result, serving
from test_vllm_training import check_weights_and_requests


def test_the_server_has_the_trainers_weights_before_the_first_step_and_after_every_one(untrained, tmp_path):
    with serving(untrained, tmp_path / "server.log") as address:
        served = result("training.py", tmp_path, untrained, "--server", address)
    check_weights_and_requests(served)
    assert not any("vLLM samples" in line for line in served["warned"])  # in float32
