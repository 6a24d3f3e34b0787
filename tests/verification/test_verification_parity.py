"""One step of each trainer on the same completions: equal where they must be, different where the code is wrong."""

import pytest
import torch

from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.verification import parity


@pytest.fixture(scope="module")
def script():
    return parity.tiny_script(prompts=3)


def test_the_gradient_is_the_weighted_sum_no_weight_of_the_model_moves_and_nothing_is_printed(script, capfd):
    before = {name: value.clone() for name, value in script.model.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    step = parity.one_step(DPPOTrainer, DPPOConfig, script, completion_prune_rate=0.5, **parity.LOSSES["grpo"])
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in step.trainer.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert parity.relative_difference(step.gradient, parity.weighted_sum_of_completions(step)) < 1e-5


def test_gradients_of_other_parameters_are_not_equal():
    one = {"a": torch.ones(2)}
    assert parity.relative_difference(one, {"b": torch.ones(2)}) == float("inf")
    assert parity.relative_difference({}, {}) == float("inf")
    assert parity.relative_difference({"a": torch.tensor([1.0, 2.0])}, one) == pytest.approx(0.5**0.5)


def test_the_script_of_a_subject_is_its_own_rollouts_where_rewards_differ_most(subject, monkeypatch):
    script = parity.script_of(subject, prompts=2)
    spread = subject.reward_PG.std(1)
    chosen = [subject.prompt_tokens.index(tokens) for tokens in script.prompt_tokens]
    assert spread[chosen].min() >= spread.sort().values[-2]
    assert torch.equal(script.reward_PG, subject.reward_PG[chosen])
    for row, group in zip(chosen, script.completion_tokens, strict=True):
        assert group == subject.completion_tokens[4 * row : 4 * row + 4]
    monkeypatch.setattr(parity, "SMALL", 1000)
    assert parity.script_of(subject).title == "a tiny Qwen3"
