"""GSPO: ratios of whole completions, clipped much closer."""

from tiny_policy import GSPO_BY_HAND

from dppo.methods import METHODS

BY_HAND = {"gspo": GSPO_BY_HAND}
GSPO = METHODS["gspo"]


def test_its_loss_and_mean_are_its_own_and_its_advantages_are_anybodys():
    """With another normaliser the value of a completion would be summed over its tokens again."""
    assert GSPO.fixes == {"token_loss", "normaliser"} and GSPO.normaliser.per_sequence
    assert GSPO.advantages is METHODS["grpo"].advantages
