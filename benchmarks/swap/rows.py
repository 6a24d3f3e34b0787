"""Rows, models and rewards for ``trl_tests``: small, local, and in the text formats that TRL's trainers take."""

import tempfile
from functools import cache
from typing import Any

import torch
import transformers
from datasets import Dataset, DatasetDict
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template

from benchmarks.scale.models import tiny
from benchmarks.swap import pictures

ROWS = 9


def row(name: str, i: int) -> dict[str, Any]:
    """One row in a format."""
    asked = f"What is {i} and {i + 1}{' again' * (i % 3)}?"
    said = f"It is {2 * i + 1}{', of course' * (i % 4)}."
    question, answer, other = (
        {"role": role, "content": text}
        for role, text in (("user", asked), ("assistant", said), ("assistant", "No idea" + "!" * (i + 1)))
    )
    both = [question, answer]
    formats: dict[str, dict[str, Any]] = {
        "text": {"text": asked + " " + said},
        "messages": {"messages": both},
        "completions": {"prompt": asked, "completion": " " + said},
        "message_completions": {"prompt": [question], "completion": [answer]},
        "long_completions": {"prompt": [question], "completion": [answer, question, answer]},
        "two_answers": {"chosen": said, "rejected": "No."},
        "from_value": {"conversations": [{"from": each["role"], "value": each["content"]} for each in both]},
        "masks": {"input_ids": [5, 6, 7 + i, 8], "assistant_masks": [0, 0, 1, 1]},
        "labelled": {"input_ids": [5, 6, 7 + i], "labels": [-100, -100, 7 + i], "assistant_masks": [1, 1, 1]},
        "masked": {"input_ids": [5, 6, 7, 8, 9], "assistant_masks": [int(not i)] * 3 + [1, 1]},
        "pairs": {"prompt": asked, "chosen": " " + said, "rejected": " No" + "!" * (i + 1)},
        "message_pairs": {"prompt": [question], "chosen": [answer], "rejected": [other]},
        "pairs_without_prompt": {"chosen": asked + " " + said, "rejected": asked + " No"},
        "message_pairs_without_prompt": {"chosen": both, "rejected": [question, other]},
        "long_prompt_pairs": {"prompt": "Hi" + asked * 2 * bool(i), "chosen": " there", "rejected": " bye"},
        "prompts": {"prompt": asked},
        "pictures": {"prompt": [{"role": "user", "content": f"w{i} w{i + 1}"}], "image": pictures.picture(i)},
        "several_pictures": {
            "prompt": [{"role": "user", "content": f"w{i} w{i + 1}"}],
            "images": [pictures.picture(3 * i + j) for j in range(i % 3)],
        },
        "message_prompts": {"prompt": [question]},
        "numbered_prompts": {"prompt": asked, "some_values": i},
    }
    return formats[name]


def rows(name: str, *, count: int = ROWS, streamed: bool = False) -> Any:
    """A dataset in a format, or what is given in place of one."""
    if name == "none":
        return None
    if name == "dataset_dict":
        return DatasetDict({"train": rows("text")})
    if name == "tokens":
        return Dataset.from_list(
            [{"input_ids": tokenizer()(row("text", i)["text"])["input_ids"]} for i in range(count)]
        )
    made = Dataset.from_list([row(name, i) for i in range(18 if name == "prompts" else count)])
    return made.to_iterable_dataset() if streamed else made


@cache
def tokenizer() -> Any:
    """Bytes and what TRL's template of Qwen3 is made of."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    learn = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator([qwen3_chat_template, *(row("text", i)["text"] for i in range(ROWS))], learn)
    bpe.add_special_tokens([AddedToken(token) for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")])
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")])
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, padding_side="left", **ends)
    made.chat_template = qwen3_chat_template
    return made


@cache
def model_folder(name: str) -> str:
    """A folder with a model of a type, or a reward model, and its tokenizer."""
    folder, encode = tempfile.mkdtemp(prefix=f"{name}-"), tokenizer()
    if name in pictures.KINDS:
        pictures.seeded(name)[0].save_pretrained(folder)
        return folder
    ids = dict(vocab_size=len(encode), eos_token_id=encode.eos_token_id, pad_token_id=encode.pad_token_id)
    kind = "qwen2" if name == "reward" else name
    model = tiny(kind, max_position_embeddings=2048, bos_token_id=None, **ids)
    if kind != name:
        torch.manual_seed(1)
        config = type(model.config).from_dict(model.config.to_dict() | {"num_labels": 1})
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    encode.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(str(each))) for each in completions]


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(str(each)))) for each in completions]


def nothing(completions: list[Any], **_: Any) -> list[None]:
    return [None] * len(completions)


def near(completions: list[Any], some_values: list[int], **_: Any) -> list[float]:
    return [float(abs(len(each) - value)) for each, value in zip(completions, some_values, strict=True)]


def said_length(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    return [float(len(each[0]["content"])) for each in completions]


def state(completions: list[Any], trainer_state: Any, **_: Any) -> list[float]:
    return [float(len(str(each)) * trainer_state.global_step) for each in completions]


REWARDS = {each.__name__: each for each in (length, letters, nothing, near, said_length, state)}


def reward(name: str) -> Any:
    """A reward function, or the folder of a reward model."""
    return REWARDS.get(name) or model_folder("reward")
