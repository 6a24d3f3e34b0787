"""GDPO with TRL: by TRL's own field or by its name, the gradient is TRL's, and what contradicts it is named."""

import pytest
from test_trl_contract import TOLERANCE, compare
from test_trl_fields import configured

from dppo.methods import METHODS
from dppo.methods.gdpo import DECOUPLED


def odd(prompts, completions, **_):
    return [float(len(text.split()) % 2) for text in completions]


def even(prompts, completions, **_):
    """Where ``odd`` gives 1 this gives 0: with equal weights every total would be 1, and no advantage other than 0."""
    return [float(1 - len(text.split()) % 2) for text in completions]


def test_each_reward_function_normalised_by_itself(tiny_path, tmp_path):
    options = dict(reward=[odd, even], multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5])
    differences, trainer = compare(tiny_path, tmp_path, **options)
    assert max(differences) < TOLERANCE and trainer.method.advantages is DECOUPLED


@pytest.mark.parametrize("name", ["gdpo", "dppo_gdpo"])
def test_its_name_is_enough(name):
    method = configured(method=name).build_method()
    assert method.advantages is DECOUPLED and bool(method.completions.rate) == bool(METHODS[name].completions.rate)
