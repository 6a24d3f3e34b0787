"""Tiny vision-language models with processors made by hand, and pictures of noise."""

from typing import Any

import numpy as np
import torch
from PIL import Image as PIL
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
)
from transformers.processing_utils import ProcessorMixin

WORDS = [f"w{i}" for i in range(28)]
START, PAD_OF_PICTURE, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
SPECIAL = ["<pad>", "<eos>", "<unk>", START, PAD_OF_PICTURE, END]
FIRST_WORD, VOCABULARY = len(SPECIAL), len(SPECIAL) + len(WORDS)
IMAGE = SPECIAL.index(PAD_OF_PICTURE)
TEXT = dict(
    vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, eos_token_id=1, pad_token_id=0, bos_token_id=None,
)  # fmt: skip
TOWER = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, patch_size=4)


def template(picture: str) -> str:
    """A chat template: pictures where they are, texts, and a space after each part."""
    part = "{% if part.type == 'image' %}" + picture + " {% else %}{{ part.text }} {% endif %}"
    return "{% for m in messages %}{% for part in m.content %}" + part + "{% endfor %}{% endfor %}"


def tokenizer(**names):
    """A tokenizer of words, with tokens of pictures."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left",
        extra_special_tokens=names,
    )  # fmt: skip


class QwenProcessor(Qwen2_5_VLProcessor):
    """Qwen's without videos, whose processor needs torchvision."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
        self.image_token, self.video_token = PAD_OF_PICTURE, "<|video_pad|>"
        self.image_token_id, self.video_token_id = IMAGE, None
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def qwen():
    """Qwen2.5-VL: patches end to end, and a grid for each picture."""
    tower = dict(depth=1, hidden_size=16, out_hidden_size=16, intermediate_size=32, num_heads=2, patch_size=4)
    config = Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config=tower | {"window_size": 16, "fullatt_block_indexes": [0]},
        image_token_id=IMAGE, video_token_id=VOCABULARY - 1, vision_start_token_id=3, vision_end_token_id=5,
    )  # fmt: skip
    pictures = Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 64, "longest_edge": 256})
    processor = QwenProcessor(pictures, tokenizer(), chat_template=template(START + PAD_OF_PICTURE + END))
    return Qwen2_5_VLForConditionalGeneration(config), processor


def gemma():
    """Gemma 3: one entry for each picture, and kinds of tokens that change attention."""
    tokens: dict[str, Any] = {"image_token_id": IMAGE, "boi_token_id": 3, "eoi_token_id": 5, "eos_token_id": 1}
    config = Gemma3Config(
        text_config=TEXT | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=TOWER | {"image_size": 16},
        mm_tokens_per_image=4, **tokens,
    )  # fmt: skip
    words = tokenizer(image_token=PAD_OF_PICTURE, boi_token=START, eoi_token=END)
    pictures = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    processor = Gemma3Processor(pictures, words, chat_template=template(START), image_seq_length=4)
    return Gemma3ForConditionalGeneration(config), processor


def llava():
    """LLaVA-NeXT: a picture has several crops, by its sizes."""
    config = LlavaNextConfig(
        text_config=TEXT | {"model_type": "llama"},
        vision_config=TOWER | {"image_size": 16, "model_type": "clip_vision_model", "projection_dim": 16},
        image_grid_pinpoints=[[16, 32], [32, 16]], image_token_index=IMAGE, vision_feature_layer=-1,
    )  # fmt: skip
    pictures = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}, image_grid_pinpoints=[[16, 32], [32, 16]]
    )
    processor = LlavaNextProcessor(
        pictures, tokenizer(), patch_size=4, vision_feature_select_strategy="default", image_token=PAD_OF_PICTURE,
        chat_template=template(PAD_OF_PICTURE), num_additional_image_tokens=1,
    )  # fmt: skip
    return LlavaNextForConditionalGeneration(config), processor


KINDS = {"qwen": qwen, "gemma": gemma, "llava": llava}


def seeded(kind: str) -> tuple[Any, Any]:
    """A model of ``KINDS`` with random weights, and its processor."""
    torch.manual_seed(0)
    model, processor = KINDS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model, processor


def picture(seed: int) -> PIL.Image:
    """Noise, of one of three sizes."""
    size = [(16, 16, 3), (16, 24, 3), (24, 16, 3)][seed % 3]
    return PIL.fromarray(np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8))
