"""The policy of the embedded task: a Qwen3 of about 594 thousand parameters."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_tokenizer import EOS, PAD, TOKENS


def build_model(seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised float32 policy, a function of the seed alone: normal matrices, norms of one."""
    config = Qwen3Config(
        vocab_size=len(TOKENS),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,  # a question of 12 operands with all steps takes at most 120 tokens
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        pad_token_id=TOKENS.index(PAD),
        eos_token_id=TOKENS.index(EOS),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):  # transformers initialises from the global generator: leave no trace there
        model = Qwen3ForCausalLM(config)
    draws = torch_generator(seed, Purpose.MODEL)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, model.config.initializer_range, generator=draws)
            else:
                parameter.fill_(1.0)
    return model
