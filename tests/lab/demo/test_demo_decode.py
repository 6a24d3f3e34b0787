"""The decoder against transformers: token by token when greedy, log-probability by log-probability when sampling."""

import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.demo.decode import sample
from dppo.lab.demo.task import make_split
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer, encode_questions


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def forward_logps(model, prompt, completion, temperature=1.0):
    """(T,) log-probabilities of a completion by a plain forward pass of its text alone."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(1).gather(1, torch.tensor(completion)[:, None])[:, 0].detach()


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
    width, pad = max(map(len, prompts)), TOKENS.index("<pad>")
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
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


def test_a_model_it_does_not_compute_is_refused(model):
    changed = build_model(0)
    changed.model.layers[1].self_attn.q_proj.bias = torch.nn.Parameter(torch.zeros(128))
    with refused(ConfigError, "model=Qwen3ForCausalLM", "without bias"):
        sample(changed, [[1]], draws(), max_new_tokens=2)
