"""How a scene is run with either trainer and two runs are compared; a model that chats, tools and environments.

A scene is built anew for each trainer, since rewards, tools and environments keep what they were given.
"""

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny_runs import GENERATIONS, SHORT, problems, relative_difference, scripted
from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import AutoConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl import GRPOConfig
from trl.chat_template_utils import qwen3_chat_template

from dppo.trl import DPPOConfig, DPPOTrainer

WEIGHTS, RELATIVE, ABSOLUTE = 1e-4, 1e-4, 1e-6
"""Relative difference of trained weights, and relative or absolute difference of a metric, that is rounding."""

TIMES = re.compile(r"step_time$|_runtime$|_per_second$|^profiling/")

CONFIG = SHORT | dict(
    per_device_train_batch_size=4 * GENERATIONS,
    max_completion_length=12,
    max_steps=2,
    beta=0.1,  # so that completions without an advantage are forwarded too, and entropies are of all completions
    shuffle_dataset=False,
)


@dataclass(kw_only=True)
class Scene:
    """What one run is given beside its trainer's class, and what came out of it."""

    words: str  # path of a model with a tokenizer of words
    chat: str  # path of a model with a chat template
    folder: Path
    seen: list[Any] = field(default_factory=list)
    """What rewards, tools and environments were given, in order."""
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """Trainable ones, at the end."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    def watched(self, reward: Callable[..., Any]) -> Callable[..., Any]:
        """A reward function whose arguments are kept."""

        def call(**given):
            plain = {k: v for k, v in given.items() if not callable(v) and k not in ("trainer_state", "environments")}
            self.seen.append((reward.__name__, given["trainer_state"].global_step, plain))
            return reward(**given)

        call.__name__ = reward.__name__
        return call

    def trained(self, trainer_class: type, build: "Build", **train: Any) -> "Scene":
        given = dict(model=self.words, reward_funcs=self.watched(ids_reward), rollout_func=scripted) | build(self)
        prepare = given.pop("prepare", None)
        settings = CONFIG | {"output_dir": str(self.folder)} | given.pop("config", {})
        ours = issubclass(trainer_class, DPPOTrainer)
        config = DPPOConfig(completion_prune_rate=0.0, **settings) if ours else GRPOConfig(**settings)
        positional = given.pop("model"), given.pop("reward_funcs"), config, *given.pop("more", ())
        trainer = trainer_class(*positional, **given)
        if prepare:
            prepare(trainer)
        trainer.train(**train)
        self.weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        self.logs = trainer.state.log_history
        self.files = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}
        return self


Build = Callable[[Scene], dict[str, Any]]
"""Arguments of a trainer. ``config`` is for its configuration, ``prepare`` is called with it, ``more`` by position."""


def differences(stock: Scene, ours: Scene, allowed: Collection[str] = ()) -> list[str]:
    """What TRL's run has otherwise than ours, which may log and write more; ``allowed`` metrics may differ."""
    found = []
    if (apart := relative_difference(ours.weights, stock.weights)) >= WEIGHTS:
        found.append(f"weights differ by {apart:.1e}")
    if len(stock.logs) != len(ours.logs):
        found.append(f"{len(ours.logs)} logs for {len(stock.logs)}")
    for number, (theirs, mine) in enumerate(zip(stock.logs, ours.logs, strict=False)):
        for name, value in theirs.items():
            near = isinstance(value, float)
            wanted = pytest.approx(value, rel=RELATIVE, abs=ABSOLUTE, nan_ok=True) if near else value
            other = mine.get(name, "nothing")
            if name not in allowed and not TIMES.search(name) and other != wanted:
                found.append(f"log {number}: {name} is {other} for {value}")
    if missing := stock.files - ours.files:
        found.append(f"not written: {sorted(missing)}")
    if stock.seen != ours.seen:
        pairs = enumerate(zip(stock.seen, ours.seen, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), "the end")
        found.append(f"rewards, tools, environments or callbacks were given other things, from {first}")
    return found


def save_models(words: str, folder: Path) -> dict[str, str]:
    """Paths of a scene's models: of the one in ``words`` and of one that chats."""
    torch.manual_seed(1)
    bpe = ByteLevelBPETokenizer()
    # Learned from the template, so that prompts with tools are short.
    bpe.train_from_iterator([qwen3_chat_template], vocab_size=500, min_frequency=0, show_progress=False)
    bpe.add_special_tokens([AddedToken(token) for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")])
    tags = [f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response") for slash in ("", "/")]
    bpe.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.chat_template = qwen3_chat_template
    ids = dict(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    chat = Qwen3ForCausalLM(AutoConfig.from_pretrained(words, vocab_size=len(tokenizer), **ids))
    with torch.no_grad():
        for parameter in chat.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    chat.save_pretrained(folder / "chat")
    tokenizer.save_pretrained(folder / "chat")
    return {"words": words, "chat": str(folder / "chat")}


def ids_reward(completion_ids, **_):
    """0, 1 or 2 by the ids of a completion's tokens."""
    return [float(sum(ids) % 3) for ids in completion_ids]


def messages_reward(completions, **_):
    """0, 1 or 2 by the length of all that was said."""
    return [float(sum(len(message["content"]) for message in said) % 3) for said in completions]


def talk(text: str, ordinal: int) -> str:
    """What is said after ``text``: mostly a call of ``add``, some of them wrong; after its answer, a few words."""
    number = int.from_bytes(hashlib.blake2b(f"{text}/{ordinal}".encode(), digest_size=4).digest(), "little")
    if "<tool_response>" in text or number % 4 == 3:
        return "so " * (1 + number % 5)
    arguments = '{"a": 1}' if number % 8 == 2 else f'{{"a": {number % 5}, "b": {number % 7}}}'
    return f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'


def scripted_model(trainer: Any) -> None:
    """Let the model say what ``talk`` says."""
    tokenizer = trainer.processing_class

    def generate(input_ids, attention_mask, generation_config, **_):
        said, seen = [], {}
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            text = tokenizer.decode(ids[mask.bool()])
            seen[text] = seen.get(text, -1) + 1
            said.append(torch.tensor(tokenizer(talk(text, seen[text]) + tokenizer.eos_token)["input_ids"]))
        padded = torch.nn.utils.rnn.pad_sequence(said, batch_first=True, padding_value=tokenizer.pad_token_id)
        return torch.cat([input_ids, padded[:, : generation_config.max_new_tokens].to(input_ids.device)], 1)

    trainer.model.generate = generate


def environment(scene: Scene) -> type:
    """A class of environments with the tool ``add``, which keep what they are given."""

    class Paid:
        def __init__(self):
            self.times, self.total = 0, 0

        def reset(self, **columns):
            self.times, self.total = self.times + 1, 0
            scene.seen.append(("reset", columns))
            return f" Task {self.times}."

        def add(self, a: int, b: int) -> int:
            """
            Adds two numbers to the sum.

            Args:
                a: first number.
                b: second number.
            """
            scene.seen.append(("add", a, b))
            self.total += a + b
            return self.total

        def get_reward(self):
            return float(self.total % 3)

    return Paid


def chats(count: int) -> Dataset:
    """Questions as messages."""
    rows = [{"prompt": [{"role": "user", "content": f"What is {i}?"}], "answer": str(i)} for i in range(count)]
    return Dataset.from_list(rows)


def words(scene: Scene, **given) -> dict:
    """Prompts of words with scripted completions."""
    return dict(train_dataset=problems(8)) | given


def sampled(scene: Scene, **given) -> dict:
    """Messages, answered as the model samples them."""
    common = dict(model=scene.chat, reward_funcs=scene.watched(messages_reward), rollout_func=None)
    return common | dict(train_dataset=chats(8)) | given


def talking(scene: Scene, **given) -> dict:
    """Messages, answered by the tool calls that a model is made to say."""
    config = dict(per_device_train_batch_size=8, max_completion_length=96)
    return sampled(scene, train_dataset=chats(4), prepare=scripted_model, config=config) | given


def tools(scene: Scene) -> dict:
    return talking(scene, tools=[environment(scene)().add])


def in_environment(scene: Scene, **given) -> dict:
    """Environments that give the reward."""
    return talking(scene, reward_funcs=None, environment_factory=environment(scene)) | given


def setting(make=words, **config) -> Build:
    """A scene that is told by its configuration alone."""
    return lambda scene: make(scene, config=config)
