"""The decoder against transformers: token by token when greedy, log-probability by log-probability when sampling."""

import pytest
import torch
from demo_forward import draws, forward_logps
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.demo.decode import sample
from dppo.lab.demo.task import make_split
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer, encode_questions

PAD, EOS = TOKENS.index("<pad>"), TOKENS.index("<eos>")


@pytest.fixture(scope="module")
def model():
    """Large random weights: far from uniform, sensitive to position, and ending at many different lengths."""
    policy, rng = build_model(0), draws(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=rng) * 0.2)
    return policy.eval()


@pytest.fixture(scope="module")
def prompts():
    questions = [problem.question for problem in make_split(0).train[:24]]
    found = [*encode_questions(build_tokenizer(), questions), [1], [1, 5]]
    assert len({len(prompt) for prompt in found}) > 8
    return found


def test_greedy_equals_generate_on_prompts_of_mixed_lengths(model, prompts):
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    expected = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=48)[:, width:]
    rollout = sample(model, prompts, None, max_new_tokens=48, temperature=0)
    assert torch.equal(rollout.token_NT, expected)
    lengths = rollout.length_N.tolist()
    assert min(lengths) < 48 == max(lengths) and len(set(lengths)) > 3  # rows were dropped on the way


def test_sampled_log_probabilities_are_of_the_temperature_and_the_prompt(model, prompts):
    rollout = sample(model, prompts, draws(), samples=2, max_new_tokens=40, temperature=0.7)
    for row, completion in enumerate(rollout.token_lists):
        expected = forward_logps(model, prompts[row // 2], completion, 0.7)
        torch.testing.assert_close(rollout.logp_NT[row, : len(completion)], expected, atol=1e-4, rtol=0)
    completion = rollout.token_lists[0]
    given = rollout.logp_NT[0, : len(completion)]
    for wrong in (forward_logps(model, prompts[0], completion), forward_logps(model, prompts[1], completion, 0.7)):
        assert (given - wrong).abs().max() > 1e-2


def test_completions_end_with_the_end_token_or_at_the_limit(model, prompts):
    rollout = sample(model, prompts, draws(), samples=4, max_new_tokens=30)
    ended = 0
    for row, completion in enumerate(rollout.token_lists):
        assert EOS not in completion[:-1]
        assert completion[-1] == EOS or len(completion) == 30
        assert (rollout.token_NT[row, len(completion) :] == PAD).all()
        assert (rollout.logp_NT[row, len(completion) :] == 0).all()
        ended += completion[-1] == EOS
    assert 0 < ended < len(rollout.length_N)
    assert torch.equal(rollout.mask_NT.sum(1), rollout.length_N)
    rollout = sample(model, prompts[:3], draws(), max_new_tokens=1)
    assert rollout.token_NT.shape == (3, 1) and rollout.length_N.tolist() == [1, 1, 1]


def test_a_model_it_does_not_compute_is_refused(model):
    changed = build_model(0)
    changed.model.layers[1].self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(128))
    with refused(ConfigError, "model=Qwen3ForCausalLM", "without bias"):
        sample(changed, [[1]], draws(), max_new_tokens=2)
