"""With nothing pruned, the gradient is TRL's own, for everything we say we serve."""

from dataclasses import replace

import pytest
from cases import one_in, parameters
from tiny_runs import relative_difference, scripted
from trl_gradients import TOLERANCE, compare, gradients, split, trl_run

from dppo.trl import DPPOConfig, DPPOTrainer


def with_tools(prompts, trainer):
    """A part of every completion is a tool's."""
    output = scripted(prompts, trainer)
    output["env_mask"] = [
        [1, *[0] * (len(ids) // 2 - 1), *[1] * (len(ids) - len(ids) // 2)] for ids in output["completion_ids"]
    ]
    return output


def sometimes_none(prompts, completions, **_):
    """A reward that cannot judge every completion."""
    return [None if len(text.split()) % 4 == 0 else float(len(text) % 2) for text in completions]


def odd(prompts, completions, **_):
    return [float(len(text.split()) % 2) for text in completions]


def even(prompts, completions, **_):
    """The opposite of ``odd``: with equal weights every total would be 1, and every advantage 0."""
    return [1.0 - reward for reward in odd(prompts, completions)]


CASES = {
    "each reward function normalised by itself": dict(
        reward=[odd, even], multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5]
    ),
    "tools": dict(rollout=with_tools),
    "not scored": dict(reward=sometimes_none),
    "small rows": dict(ours={"max_tokens_per_row": 24}, loss_type="dapo"),
    "kl, second pass": dict(beta=0.2, num_iterations=2, max_steps=2, loss_type="grpo"),
    "bnpo": dict(loss_type="bnpo"),
    "dapo, accumulation": split(dict(loss_type="dapo"), 4),
    "grpo, accumulation": split(dict(loss_type="grpo"), 4),
    "dr_grpo, accumulation": split(dict(loss_type="dr_grpo"), 2),
    "no std": dict(scale_rewards="none"),
    "batch std": dict(scale_rewards="batch"),
    "checkpointing": dict(gradient_checkpointing=True),
    "clip-higher and delta": dict(epsilon=0.1, epsilon_high=0.3, delta=1.5, num_iterations=2, max_steps=2),
    "high entropies": dict(top_entropy_quantile=0.3, loss_type="vespo"),
    "high entropies, kl": split(dict(top_entropy_quantile=0.3, beta=0.1, shuffle_dataset=False), 4),
    "masked truncation": dict(mask_truncated_completions=True),
}


OFF_POLICY = {
    "sequence ratio": dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    "cispo": dict(loss_type="cispo", epsilon_high=1.02),
    "cispo, sequence ratio": dict(loss_type="cispo", importance_sampling_level="sequence", epsilon_high=1.02),
    "sapo": dict(loss_type="sapo"),
    "sapo, sequence ratio": dict(loss_type="sapo", importance_sampling_level="sequence"),
    "luspo": dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    "vespo": dict(loss_type="vespo"),
    "entropy bonus": dict(loss_type="grpo", entropy_coef=0.1),
    "entropy bonus, mean over tokens": dict(loss_type="dapo", entropy_coef=0.1),
    "entropy bonus and kl": dict(loss_type="dr_grpo", entropy_coef=0.1, beta=0.1),
    "off-policy mask": dict(loss_type="dapo", off_policy_mask_threshold=0.01),
}


SECOND = dict(num_iterations=2, max_steps=2, learning_rate=0.3)
"""Two passes: in the second one ratios differ from 1, so every term of the loss shows."""
OFF_POLICY = one_in(2, {name: SECOND | options for name, options in OFF_POLICY.items()})


@pytest.mark.parametrize("options", [*parameters(CASES), *OFF_POLICY])
def test_gradient_equals_trl(options, tiny_path, tmp_path):
    differences, _ = compare(tiny_path, tmp_path, **options)
    assert len(differences) == options.get("max_steps", 1) and max(differences) < TOLERANCE


def test_the_contract_can_fail(tiny_path, tmp_path):
    class CountsSurvivors(DPPOTrainer):
        def _plan(self, *args):
            plan = super()._plan(*args)
            kept = float((plan.weight_UN[0] * plan.completions.tokens_N).sum())
            return replace(plan, sizes=plan.sizes._replace(denominator=kept))

    stock, _ = trl_run(tiny_path, tmp_path)
    wrong, _ = gradients(CountsSurvivors, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0)
    assert relative_difference(wrong[0], stock[0]) > 1e-2  # zero-advantage rows were dropped and not counted
