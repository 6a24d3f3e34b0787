"""GDPO with TRL: by TRL's own field or by its name, the gradient is TRL's, and what contradicts it is named."""

import pytest
from test_trl_contract import TOLERANCE, compare
from test_trl_fields import configured

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.methods.gdpo import DECOUPLED
from dppo.trl.grpo.plan import step_plan


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


def test_another_aggregation_contradicts_it():
    with pytest.raises(ConfigError, match="any objective: method: grpo"):
        configured(method="gdpo", multi_objective_aggregation="sum_then_normalize")


def test_the_plan_says_that_the_deviation_of_the_batch_moves_with_pruned_prompts():
    config = configured(method="dppo_gdpo", prompt_prune_rate=0.5, loss_type="grpo")
    (line,) = [line for line in step_plan(config, config.build_method(), prompts_in_dataset=None) if "biased:" in line]
    assert "decoupled advantage is biased under prompt pruning" in line
