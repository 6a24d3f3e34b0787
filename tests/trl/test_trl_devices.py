"""No float64 goes to a device, of which Apple's have none; here the device is a CPU, and what is sent to it is seen."""

import dpo_runs as dpo
import pytest
import torch
from resumed_runs import TWO_PASSES, trainer
from sft_runs import ours
from torch.overrides import TorchFunctionMode

from dppo.pruning import uncertainty
from dppo.pruning.recorded import mean_loss


class Narrow(TorchFunctionMode):
    """A device without float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made, given = func(*args, **(kwargs or {})), [*args[1:], *(kwargs or {}).values()]
        if func is torch.Tensor.to and any(isinstance(each, torch.device | str) for each in given):
            assert made.dtype != torch.float64, "sent to a device"
        return made


@pytest.mark.parametrize("make", [ours, dpo.ours])
@pytest.mark.parametrize("score", ["norm", "loss"])
def test_rows(make, score, tiny_path, tmp_path):
    with Narrow():
        make(tiny_path, tmp_path, row_score=score, max_steps=2).train()


def test_a_generation_in_use(tiny_path, tmp_path):
    made = trainer(tiny_path, tmp_path, seen=[], **TWO_PASSES | {"max_steps": 3})
    with Narrow():
        made.train()
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("score", [uncertainty, mean_loss])
def test_scores_that_are_computed_there(score):
    logp_BT = torch.tensor([[-1.0, -2.0, -50.0]])
    found, exact = (score(each, torch.tensor([[1, 1, 0]])) for each in (logp_BT, logp_BT.double()))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact)
