import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

LONGEST = 160
SPECIAL = ("<pad>", "<user>", "<assistant>", "<eos>")
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}{{ raise_exception('roles are user and assistant') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def for_transformers(core):
    """A tokenizer with the template above; ``core`` must have its special tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A byte-level tokenizer with a chat template, which can encode any text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["What is 1 + 1? Please reason step by step. Problem: Solution: \\boxed{2}"] * 3, trainer)
    return for_transformers(core)


@pytest.fixture(scope="session")
def digits_tokenizer():
    """A tokenizer that knows figures alone: a letter is outside its vocabulary, and raises."""
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate([*SPECIAL, *"0123456789+"])}))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return for_transformers(core)


@pytest.fixture(scope="session")
def tiny_model(tiny_tokenizer):
    """An untrained Qwen3 whose outputs are far from uniform, so that sampling has something to get wrong."""
    config = Qwen3Config(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        pad_token_id=tiny_tokenizer.pad_token_id,
        eos_token_id=tiny_tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tiny_model, tiny_tokenizer):
    """The same, saved."""
    path = tmp_path_factory.mktemp("tiny")
    tiny_model.save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path
