"""The sweep over model types: its verdicts on types of each kind, and that it would see rows that are wrong."""

from dataclasses import replace

import pytest
import torch
from packing_wrong import WRONG_IN_VALUE

from benchmarks.scale import models
from dppo.packing.attention import DROPOUTS, unsupported
from dppo.packing.check import LayoutCheck

FLOAT32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("qwen3", "rows", "nats"),
        ("deepseek_v3", "rows", "nats"),
        ("doge", "padded", "drops keys beyond a window"),
        ("bloom", "padded", "cannot change the attention"),
        ("modernbert-decoder", "refused", "from those of its own logits"),
        ("ctrl", models.STOPS, "in-place"),
        ("fuyu", "not built", "AttributeError"),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT32, BF16], ids=str)
def test_verdicts(name, verdict, why, dtype):
    found = models.judged(name, dtype)
    assert found.verdict == verdict and why in found.why


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_of_attention_weights_is_seen_under_every_name(name):
    """Rows have none: they would train another model than the one that is configured."""
    model = models.tiny("qwen3")
    assert unsupported(model) == ""
    setattr(model.config, name, 0.1)
    assert "it drops attention weights at random" in unsupported(model)


def test_rows_that_passed_and_are_wrong_are_seen(monkeypatch):
    """As if the self-check had let them through: that is what the reference is for."""
    wrong, choose = next(iter(WRONG_IN_VALUE.values())), models.choose_kernel
    passed = LayoutCheck(logp_difference=0.0, logp_tolerance=1.0, gradient_difference=0.0, gradient_tolerance=1.0)
    monkeypatch.setattr(models, "choose_kernel", lambda *asked: replace(choose(*asked), attend=wrong))
    assert models.judged("qwen3", FLOAT32).verdict == models.STOPS
    monkeypatch.setattr(models, "check_rows", lambda *args, **kwargs: passed)
    assert models.judged("qwen3", FLOAT32).verdict == "wrong"
