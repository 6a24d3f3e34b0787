"""vLLM itself, in processes of its own: its CPU worker replaces functions of torch for good."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import torch

from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions

HERE = Path(__file__).parent
ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""One gigabyte for vLLM's cache, one thread, no network."""
LIMIT_SECONDS = 900
torch.set_num_threads(1)


def run(*words: str | Path) -> None:
    """Run Python in the environment of these tests; what it wrote to stderr is shown where it fails."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | ON_CPU, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def result(script: str, folder: Path, *words: str | Path) -> dict:
    """What a script of this folder left behind in ``result.json`` of the folder that is its first argument."""
    run(HERE / script, folder, *words)
    return json.loads((folder / "result.json").read_text())


@contextmanager
def serving(model: Path, log: Path) -> Iterator[str]:
    """The address of a server of a model, which takes new weights by file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    options += ["--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "file"}']
    command = [sys.executable, str(HERE / "weights_by_file.py"), "--model", str(model), *options]
    environment = os.environ | ON_CPU | {"VLLM_SERVER_DEV_MODE": "1"}
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        address, started = f"http://127.0.0.1:{port}", time.monotonic()
        while not answers(address):
            late = time.monotonic() > started + LIMIT_SECONDS
            assert server.poll() is None and not late, f"the server is not up:\n{log.read_text()[-4000:]}"
            time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except requests.RequestException:
        return False


def question(number: int) -> str:
    return f"{number}+{number % 3}=?"


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """A folder with the untrained embedded policy, float32, its head tied to its embeddings."""
    folder = tmp_path_factory.mktemp("untrained")
    build_model(0).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def answering(tmp_path_factory):
    """A folder with a policy that knows the answers of eight questions by heart."""
    folder, model, tokenizer = tmp_path_factory.mktemp("answering"), build_model(0), build_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    asked = torch.tensor(encode_questions(tokenizer, [question(i) for i in range(8)]))
    said = [tokenizer(f"\\boxed{{{i + i % 3}}}<eos>", add_special_tokens=False)["input_ids"] for i in range(8)]
    ids = torch.cat([asked, torch.tensor(said)], 1)
    labels = ids.clone()
    labels[:, : asked.shape[1]] = -100
    for _ in range(150):
        model(ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
