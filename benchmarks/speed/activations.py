"""Bytes that one token holds for the backward pass without gradient checkpointing, for the shapes of Qwen3.

python -m benchmarks.speed.activations [--output FILE.json]

Tensors that autograd saves in one more layer are counted as transformers computes it in bfloat16, each storage once and
weights left out. The head is left out, because it recomputes its logits. GPU kernels may save a little more or less.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.shared import Record, options, write
from benchmarks.speed.workload import MODELS, build_model

SEED = 0
SHAPES = ("0.6B", "1.7B", "4B")
LAYERS, TOKENS = (1, 2), (32, 64)
"""Differences over both leave what a token adds in a layer."""


def saved_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Bytes of the storages that a forward pass over one sequence saves, other than weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            saved[place] = tensor.untyped_storage().nbytes(), tensor  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return sum(size for size, _ in saved.values())


def of_shape(name: str) -> Record:
    """Bytes of a token, in a layer and in all layers."""
    found: dict[tuple[int, int], int] = {}
    for layers in LAYERS:
        config: Any = MODELS[name](layers=layers, vocabulary=512)
        model = build_model(config, SEED, device="cpu", dtype=torch.bfloat16)
        found |= {(layers, tokens): saved_bytes(model, tokens) for tokens in TOKENS}
    (one, two), (few, many) = LAYERS, TOKENS
    layer = (found[two, many] - found[one, many] - found[two, few] + found[one, few]) / (many - few)
    config = MODELS[name]()
    layers = config.num_hidden_layers
    kept = 2 * config.hidden_size * layers  # each layer keeps its input
    row = {"figure": "activations", "model": name, "layers": layers, "hidden": config.hidden_size, "unit": "bytes"}
    return {**row, "per_layer": layer, "per_token": layer * layers, "per_token_checkpointed": kept}


def main() -> None:
    """Count, print, and write the JSON file if one is named."""
    arguments = options(__doc__).parse_args()
    rows = [of_shape(name) for name in SHAPES]
    for row in rows:
        gib, kept = 8192 * row["per_token"] / 2**30, row["per_token_checkpointed"] / 1e3
        print(
            f"Qwen3-{row['model']}: {row['per_layer'] / 1e3:.0f} kB a token and layer, {row['per_token'] / 1e6:.1f} MB "
            f"a token, {gib:.0f} GiB for 8,192; checkpointed {kept:.0f} kB a token"
        )
    write(arguments.output, rows, [SEED])


if __name__ == "__main__":
    main()
