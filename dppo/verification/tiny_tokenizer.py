"""A tokenizer of 28 tokens for the embedded task, built in memory."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, USER, ASSISTANT, EOS = "<pad>", "<user>", "<assistant>", "<eos>"
TOKENS = (PAD, USER, ASSISTANT, EOS, *"0123456789+-*=;,.?() \n", "\\boxed{", "}")
"""The vocabulary; a token's id is its position."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}{{ raise_exception('roles are user and assistant') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer of single characters and ``\\boxed{``, with the task's chat template; other characters raise."""
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate(TOKENS)}))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return chat_tokenizer(core)


def chat_tokenizer(core: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer for transformers with the chat template above; ``core`` must have its special tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """Token ids of each prompt; conversations in the chat template, ready for the assistant's turn."""
    return [
        tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if isinstance(prompt, str)
        else tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False)
        for prompt in prompts
    ]


def encode_questions(tokenizer: Any, questions: Sequence[str]) -> list[list[int]]:
    """Token ids of each question as the user's turn; see ``encode``."""
    return encode(tokenizer, [[{"role": "user", "content": question}] for question in questions])
