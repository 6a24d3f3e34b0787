"""Bytes of activations are counted per token, and the page has the counted metrics."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.speed import activations

ROOT = Path(__file__).parents[2]


def test_saved_bytes_of_a_layer_are_the_tensors_that_its_backward_needs():
    model = activations.build_model(
        activations.MODELS["tiny"](layers=1), activations.SEED, device="cpu", dtype=torch.float32
    )
    few, many = (activations.saved_bytes(model, tokens) for tokens in (16, 32))
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    assert many - few >= 16 * 4 * (4 * hidden + 3 * inner), "inputs of four projections, and three products of the MLP"
    with torch.no_grad():
        assert activations.saved_bytes(model, 16) == 0


def test_checkpointing_holds_one_input_a_layer_on_the_page_too():
    rows = json.loads((ROOT / "benchmarks" / "results" / "activations.json").read_text())["rows"]
    page = (ROOT / "docs" / "packing.md").read_text()
    held = ", ".join(f"{row['per_token_checkpointed'] / 1e3:.0f}" for row in rows)
    whole = ", ".join(f"{row['per_token'] / 1e6:.1f}" for row in rows)
    assert [row["model"] for row in rows] == list(activations.SHAPES)
    assert f"holds {held} kB in bfloat16 with gradient checkpointing, {whole} MB without" in page
    middle = next(row for row in rows if row["model"] == "1.7B")
    assert f"8,192 tokens of 1.7B: {8192 * middle['per_token'] / 2**30:.0f} GiB" in page
    assert all(row["per_token"] == pytest.approx(row["layers"] * row["per_layer"]) for row in rows)
