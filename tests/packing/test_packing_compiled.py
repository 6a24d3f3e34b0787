"""Compiled models: the graphs stay few, whatever the rows are, and the results stay those of the eager model."""

import pytest
import torch
from packing_models import build, prepare_rows
from torch._dynamo.testing import CompileCounterWithBackend

from dppo.packing import attention, head
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import build_row

SHAPES = [([3, 4], [2, 5, 7, 3]), ([4, 6], [9, 2, 2, 8]), ([7, 3], [1, 1, 6, 4])]
"""Tokens of two prompts and of their completions, two of each: no two rows have the same shape."""
MOST = 12
"""Six pieces of a model between attention and head. Each is compiled for one shape, then for all."""


@pytest.fixture
def model():
    torch._dynamo.reset()
    model = build("qwen3", num_hidden_layers=3)
    prepare_rows(model)
    yield model.train()
    torch._dynamo.reset()


def graphs(model):
    """A counter of the graphs that forward and backward passes over the rows compile."""
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter)
    weight = model.model.embed_tokens.weight
    for lengths, completions in SHAPES:
        prompts = [torch.arange(1, 1 + lengths[group]) for group in (0, 0, 1, 1)]
        row = build_row(prompts, [torch.arange(2, 2 + n) for n in completions], [0, 0, 1, 1])
        of_both = []
        for each in (compiled, model):
            logp = row_log_probs(each, row, 12).logp_BT
            of_both.append((logp, *torch.autograd.grad(logp.sum(), weight)))
        (found, gradient), (wanted, wanted_gradient) = of_both
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-4, atol=1e-4)
    return counter


@pytest.mark.slow
def test_neither_rows_nor_layers_add_graphs(model):
    counter = graphs(model)
    assert counter.frame_count <= MOST
    operations = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert "scaled_dot_product_attention" not in str(operations)


@pytest.mark.slow
@pytest.mark.parametrize("part, name", [(attention, "_attend"), (head, "_score")], ids=["attention", "head"])
def test_attention_or_the_head_in_the_graph_is_noticed(part, name, model, monkeypatch):
    monkeypatch.setattr(part, name, getattr(part, name)._torchdynamo_orig_callable)
    assert graphs(model).frame_count > MOST
