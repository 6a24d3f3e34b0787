"""GSPO: ratios of whole completions, clipped much closer."""

import pytest
import torch
from one_step import ratio_loss
from tiny_policy import GSPO_BY_HAND

from dppo.methods import METHODS
from dppo.objective import Tokens

UNBIASED = {"gspo": True}
BY_HAND = {"gspo": GSPO_BY_HAND}
GSPO = METHODS["gspo"]


def loss(log_ratio, advantage):
    logp = torch.tensor([log_ratio], dtype=torch.float64)
    return GSPO.loss(
        Tokens(
            logp_BT=logp,
            old_logp_BT=torch.zeros_like(logp),
            advantage_B=torch.tensor([advantage], dtype=torch.float64),
            mask_BT=torch.ones_like(logp),
        )
    )[0].tolist()


@pytest.mark.parametrize(("log_ratio", "ratio"), [([0.1, -0.2, 0.3], 1.0689391), ([0.5, 0.5], 1.6487213)])
def test_every_token_has_the_geometric_mean_of_the_ratios(log_ratio, ratio):
    assert loss(log_ratio, -1.0) == pytest.approx([ratio] * len(log_ratio), abs=5e-8)
    assert loss(log_ratio, 1.0) == pytest.approx([-1.0004] * len(log_ratio)), "clipped above"


def test_ratios_are_clipped_at_a_few_ten_thousandths():
    assert ratio_loss(GSPO, 1.0, 1.0) == pytest.approx(-1.0004, abs=1e-12)
    assert ratio_loss(GSPO, -1.0, -1.0) == pytest.approx(0.9997, abs=1e-12)


def test_its_loss_and_mean_are_its_own_and_its_advantages_are_anybodys():
    """With another normaliser the value of a completion would be summed over its tokens again."""
    assert GSPO.fixes == {"token_loss", "normaliser"} and GSPO.normaliser.per_sequence
    assert GSPO.advantages is METHODS["grpo"].advantages
