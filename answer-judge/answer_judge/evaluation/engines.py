"""What generates: an engine is a value made of functions, and the table of those that can be asked for by name."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from answer_judge.errors import ConfigError
from answer_judge.evaluation.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to be generated."""

    prompt: Sequence[int]
    """Token ids."""
    seed: int
    """Its source of randomness, which no other request shares."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Generated:
    """One completion."""

    text: str
    tokens: int
    """Generated tokens, the end token included."""
    finish: Literal["stop", "length", "no_room"]
    """``length``: cut off at the limit of new tokens; ``no_room``: the prompt left no position to answer in."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A model that completes prompts."""

    name: str
    encode: Callable[[Sequence[str]], list[list[int]]]
    """Token ids of each user's turn, in the model's template."""
    generate: Callable[[Sequence[Request], Sampling], list[Generated]]
    """A completion of each request, in order. The same request gives the same completion, independent of the others, up
    to rounding."""
    batch_size: int
    """Requests that ``generate`` is given at once, at most."""
    longest: int | None = None
    """Positions the model has, prompt and completion together; None for no limit."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Model, versions, template: what must be equal for two evaluations to be one."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know, one sentence each."""


DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What a model can be loaded as; ``auto`` is what it was saved as."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Which model, and how it is loaded."""

    model: str
    """Folder or hub name."""
    tokenizer: str | None = None
    """Folder or hub name; the model's own by default."""
    revision: str | None = None
    dtype: str = "auto"
    batch_size: int | None = None
    """Completions at once, >= 1; None for the engine's default."""
    trust_remote_code: bool = False
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``from_pretrained`` or ``vllm.LLM``."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size} must be at least 1. Try --batch_size 16")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} is not one of {', '.join(DTYPES)}. Try --dtype auto")

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for two evaluations to have used the same model."""
        found = fingerprint(self.model)
        name = self.model if found is None else Path(self.model).expanduser().resolve().name
        loaded = {"model": name, "fingerprint": found, "revision": self.revision, "dtype": self.dtype}
        return {**loaded, "tokenizer": self.tokenizer, "engine_options": dict(self.engine_options)}


ENGINES: Mapping[str, str] = MappingProxyType(
    {"transformers": "answer_judge.evaluation.transformers_engine", "vllm": "answer_judge.evaluation.vllm_engine"}
)
"""Engines by name; each module has ``load(spec) -> Engine`` and is imported only when asked for."""


def load_engine(name: str, spec: ModelSpec) -> Engine:
    """The engine of this name with its model loaded; ``ConfigError``: it is unknown, or cannot be loaded."""
    if name not in ENGINES:
        raise ConfigError(f"--engine {name} is not one of {', '.join(ENGINES)}")
    return import_module(ENGINES[name]).load(spec)


SAMPLED_BYTES = 1 << 16
_WEIGHED = (".json", ".safetensors", ".bin", ".jinja", ".txt", ".model")
_WRITTEN = ("settings.json", "results.json", "run.json")
"""Files of evaluations and runs, which may go into the folder of their model."""


def fingerprint(model: str) -> str | None:
    """A hash of a local model's files, so that a folder trained further is noticed; None for a name on the hub.

    Of every file its name, size, and the bytes at its start, middle and end: weights are too large to be read twice.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in _WEIGHED and path.name not in _WRITTEN):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for start in sorted({0, max(0, size // 2), max(0, size - SAMPLED_BYTES)}):
                file.seek(start)
                digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()


def end_tokens(tokenizer: Any, generation_config: Any) -> list[int]:
    """Token ids that end a completion: the model's and the tokenizer's."""
    given = getattr(generation_config, "eos_token_id", None)
    ids = {given} if isinstance(given, int) else set(given or ())
    return sorted(ids | ({tokenizer.eos_token_id} - {None}))


def finished(text: str, tokens: int, ended: bool, stop: str | None) -> Generated:
    """A completion as generated, cut at ``stop`` where that occurs: what follows is not its answer any more."""
    place = -1 if stop is None else text.find(stop)
    if place >= 0:
        return Generated(text[:place], tokens, "stop")
    return Generated(text, tokens, "stop" if ended else "length")
