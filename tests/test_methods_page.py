"""docs/methods.md is drawn from the methods' own records."""

from itertools import chain

from docs import methods_table as made
from dppo.methods import METHODS


def test_every_method_is_in_one_row_and_biased_ones_are_marked():
    """At their own rates, or with prompts pruned if they prune completions."""
    assert sorted(chain(*made.GROUPS)) == sorted(METHODS)
    for name, method in METHODS.items():
        biased = bool(method.biases())
        assert (made.biased(method) == "**yes**") == biased, name
        if "prompts" in made.dropped(method).split("; "):
            further = len(method.with_rates(prompt=0.5).biases()) > len(method.biases())
            assert (made.biased(method) == "**yes**, if prompts are pruned") == (further and not biased), name
