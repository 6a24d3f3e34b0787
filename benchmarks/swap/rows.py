"""Rows, models and rewards for ``trl_tests``: small, local, and in every format that TRL's trainers take."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, DatasetDict
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import qwen3_chat_template

from benchmarks.scale.models import tiny

ROWS = 9
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
LOOP = (
    "{%% for m in messages %%}{{ '<|im_start|>' + m['role'] + '\\n' }}%s{{ '<|im_end|>\\n' }}{%% endfor %%}"
    "{%% if add_generation_prompt %%}{{ '<|im_start|>assistant\\n' }}{%% endif %%}"
)
TEMPLATE = LOOP % "{{ m['content'] }}"
PICTURES = LOOP % (
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{{ '<image>' if p['type'] == 'image' else p['text'] }}{% endfor %}{% endif %}"
)


def asked(number: int) -> str:
    return f"What is {number} and {number + 1}{' again' * (number % 3)}?"


def said(number: int) -> str:
    return f"It is {2 * number + 1}{', of course' * (number % 4)}."


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def row(name: str, i: int) -> dict[str, Any]:
    """One row in a format."""
    question, answer, other = (
        message("user", asked(i)),
        message("assistant", said(i)),
        message("assistant", "No idea" + "!" * (i + 1)),
    )
    both, picture = [question, answer], {"images": [Image.new("RGB", (32, 32), (9 * i, 80, 160))]}
    call = {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": i}}}],
    }
    formats: dict[str, dict[str, Any]] = {
        "text": {"text": asked(i) + " " + said(i)},
        "messages": {"messages": both},
        "completions": {"prompt": asked(i), "completion": " " + said(i)},
        "message_completions": {"prompt": [question], "completion": [answer]},
        "long_completions": {"prompt": [question], "completion": [answer, question, answer]},
        "two_answers": {"chosen": said(i), "rejected": "No."},
        "from_value": {"conversations": [{"from": each["role"], "value": each["content"]} for each in both]},
        "template_kwargs": {"messages": both, "chat_template_kwargs": {"enable_thinking": bool(i % 2)}},
        "tools_text": {"messages": [question, call], "tools": json.dumps(TOOLS)},
        "tools": {"messages": [question, call], "tools": TOOLS},
        "masks": {"input_ids": [5, 6, 7 + i, 8], "assistant_masks": [0, 0, 1, 1]},
        "labelled": {"input_ids": [5, 6, 7 + i], "labels": [-100, -100, 7 + i], "assistant_masks": [1, 1, 1]},
        "masked": {"input_ids": [5, 6, 7, 8, 9], "assistant_masks": [int(not i)] * 3 + [1, 1]},
        "pairs": {"prompt": asked(i), "chosen": " " + said(i), "rejected": " No" + "!" * (i + 1)},
        "message_pairs": {"prompt": [question], "chosen": [answer], "rejected": [other]},
        "pairs_without_prompt": {"chosen": asked(i) + " " + said(i), "rejected": asked(i) + " No"},
        "message_pairs_without_prompt": {"chosen": both, "rejected": [question, other]},
        "long_prompt_pairs": {"prompt": "Hi" + asked(i) * 2 * bool(i), "chosen": " there", "rejected": " bye"},
        "tool_pairs": {"prompt": [question], "chosen": [call], "rejected": [other], "tools": json.dumps(TOOLS)},
        "prompts": {"prompt": asked(i)},
        "message_prompts": {"prompt": [question]},
        "numbered_prompts": {"prompt": asked(i), "some_values": i},
        "pictures": picture | {"messages": both},
        "picture_completions": picture | {"prompt": [question], "completion": [answer]},
        "picture_pairs": picture | {"prompt": [question], "chosen": [answer], "rejected": [other]},
        "picture_prompts": picture | {"prompt": [question]},
    }
    formats["template_kwargs_pairs"] = formats["message_pairs"] | {
        "chat_template_kwargs": {"enable_thinking": bool(i % 2)}
    }
    return formats[name]


def rows(name: str, *, count: int = ROWS, streamed: bool = False) -> Any:
    """A dataset in a format, or what is given in place of one."""
    if name == "none":
        return None
    if name == "dataset_dict":
        return DatasetDict({"train": rows("text")})
    if name == "tokens":
        encode = tokenizer()
        return Dataset.from_list([{"input_ids": encode(row("text", i)["text"])["input_ids"]} for i in range(count)])
    if name == "transformed":
        return rows("text").with_transform(lambda batch: batch)
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
    special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>", "<boi>", "<eoi>")
    bpe.add_special_tokens([AddedToken(token) for token in special])
    tags = [f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response") for slash in ("", "/")]
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left",
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    )  # fmt: skip
    made.chat_template = qwen3_chat_template
    return made


@cache
def model_folder(name: str) -> str:
    """A folder with a model of a type and its tokenizer or processor."""
    folder, encode = Path(tempfile.mkdtemp(prefix=f"{name}-")), tokenizer()
    ids = dict(vocab_size=len(encode), eos_token_id=encode.eos_token_id, pad_token_id=encode.pad_token_id)
    if name in VISION:
        model, processor = VISION[name](ids)
        processor.save_pretrained(folder)
    else:
        kind = {"reward": "qwen2", "other_model": "llama"}.get(name, name)
        model = tiny(kind, max_position_embeddings=2048, bos_token_id=None, **ids)
        if kind != name:
            torch.manual_seed(1)
            config = type(model.config).from_dict(model.config.to_dict() | {"num_labels": 1})
            model = transformers.AutoModelForSequenceClassification.from_config(config)
        encode.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)


def gemma3(ids: dict[str, Any]) -> tuple[Any, Any]:
    """A Gemma 3 that sees pictures of 32 by 32 as four tokens."""
    image = tokenizer().convert_tokens_to_ids("<image>")
    text = SMALL | ids | dict(num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, sliding_window=64)
    config = transformers.Gemma3Config(
        text_config=text, vision_config=SMALL | dict(image_size=32, patch_size=8), mm_tokens_per_image=4,
        image_token_index=image, boi_token_index=image + 1, eoi_token_index=image + 2,
        **{name: ids[name] for name in ("eos_token_id", "pad_token_id")},
    )  # fmt: skip
    images = transformers.Gemma3ImageProcessor(size={"height": 32, "width": 32}, image_seq_length=4)
    template = PICTURES.replace("'<image>'", "'<boi>'")
    made = transformers.Gemma3Processor(images, tokenizer(), chat_template=template, image_seq_length=4)
    return transformers.Gemma3ForConditionalGeneration(config), made


def llava(ids: dict[str, Any]) -> tuple[Any, Any]:
    """A LLaVA that sees pictures of 32 by 32 as sixteen tokens."""
    text = SMALL | ids | dict(model_type="llama", num_key_value_heads=1, max_position_embeddings=2048)
    config = transformers.LlavaConfig(
        text_config=text, vision_config=SMALL | dict(model_type="clip_vision_model", image_size=32, patch_size=8),
        image_token_index=tokenizer().convert_tokens_to_ids("<image>"),
        **{name: ids[name] for name in ("eos_token_id", "pad_token_id")},
    )  # fmt: skip
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    made = transformers.LlavaProcessor(
        images, tokenizer(), patch_size=8, vision_feature_select_strategy="default", chat_template=PICTURES,
        num_additional_image_tokens=1,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config), made


VISION: dict[str, Callable[[dict[str, Any]], tuple[Any, Any]]] = {"gemma3": gemma3, "llava": llava}


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(str(each))) for each in completions]


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(str(each)))) for each in completions]


def nothing(completions: list[Any], **_: Any) -> list[None]:
    return [None] * len(completions)


def near(completions: list[Any], some_values: list[int], **_: Any) -> list[float]:
    return [float(abs(len(each) - value)) for each, value in zip(completions, some_values, strict=True)]


def said_length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(each[0]["content"])) for each in completions]


def state(completions: list[Any], trainer_state: Any = None, **_: Any) -> list[float]:
    assert trainer_state.global_step >= 0
    return letters(completions)


def reward(name: str) -> Any:
    """A reward function, or the folder of a reward model."""
    if name in ("model", "other_model"):
        return model_folder("reward" if name == "model" else name)
    return {each.__name__: each for each in (length, letters, nothing, near, said_length, state)}[name]


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def generate(kind: str) -> Callable[..., torch.Tensor]:
    """What a model says in place of what it would: with an end, without one, or calls of a tool."""
    encode, calls = tokenizer(), '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "%s": 4}}\n</tool_call>'
    end = encode.eos_token_id

    def made(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        if kind == "tools" and len(input_ids) > 2:
            texts = [calls % "b", calls % "c", "I know none"]
            lines = [[*encode(text)["input_ids"], end] for text in texts]
        elif kind == "tools":
            lines = [[*encode("Done!")["input_ids"], end]] * 2
        else:
            lines = [[i + k for k in range(1, 9)] for i in (10, 30, 60)]
            lines = [lines[0], [*lines[1][:3], end], [*lines[2][:7], end]] if kind == "ends" else lines
        wide = max(map(len, lines))
        padded = torch.tensor([[*line, *[encode.pad_token_id] * (wide - len(line))] for line in lines])
        return torch.cat([input_ids, padded[: len(input_ids)].repeat(len(input_ids) // len(lines) or 1, 1)], 1)

    return made
