"""A policy and a task so small that verl's trainer steps in a second: 64 sums of two digits, characters as tokens."""

from pathlib import Path

import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<pad>", "<eos>", "<user>", "<bot>", "<unk>"]
CHARACTERS = list("0123456789+=- abcdefghijklmnopqrstuvwxyz?.")
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<user>{{ m['content'] }}{% else %}{{ m['content'] }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    whole = {token: number for number, token in enumerate(SPECIAL + CHARACTERS)}
    inner = Tokenizer(models.WordLevel(whole, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=["<user>", "<bot>"], **names)
    made.chat_template = TEMPLATE
    return made


def model(*, hidden_size: int = 32, **larger: int) -> Qwen3ForCausalLM:
    """Two layers, random but repeatable; far enough from uniform that completions differ in length and gradient."""
    torch.manual_seed(0)
    sizes = {"intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 256} | larger
    config = Qwen3Config(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        hidden_size=hidden_size,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.2,
        **sizes,
    )
    return Qwen3ForCausalLM(config)


def write(folder: Path, **larger: int) -> Path:
    """The model, its tokenizer and the task in a folder, which is returned."""
    model(**larger).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "reward_model": {"style": "rule", "ground_truth": str((a + b) % 10)},
            "extra_info": {"index": 8 * a + b},
        }
        for a in range(8)
        for b in range(8)
    ]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    pd.DataFrame(rows[:8]).to_parquet(folder / "val.parquet")
    return folder


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    """1 where the first character has an odd code: so even an untrained policy is sometimes right."""
    return float(ord(solution_str[0]) % 2) if solution_str else 0.0


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1]))
