"""The model of a run: problems of its name, its tokenizer, and its positions; TRL is not needed here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer

from dppo.errors import ConfigError, first_line
from dppo.files import model_problem, near
from dppo.lab.demo.scratch import SCRATCH
from dppo.lab.runs.embedded import TASKS

if TYPE_CHECKING:
    from dppo.lab.runs.parsing import AnyRun


def model_problems(run: "AnyRun") -> Iterator[str]:
    """No model, an unknown one from scratch, or a folder that is missing or incomplete; hub names are not looked up."""
    name = run.model.model_name_or_path or ""
    if not name:
        yield "model_name_or_path is not set. Write, for example, model_name_or_path: Qwen/Qwen3-0.6B"
    elif name.startswith(SCRATCH):
        known = [SCRATCH + kind for kind in TASKS]
        if name not in known:
            yield f"model_name_or_path={name!r} is not one of {', '.join(map(repr, known))}."
    elif problem := model_problem(name):
        yield problem


def model_of(run: "AnyRun") -> str:
    """The model's path or hub name; the first of ``model_problems`` is an error."""
    for problem in model_problems(run):
        raise ConfigError(problem)
    return run.model.model_name_or_path or ""


def load_tokenizer(run: "AnyRun", name: str) -> Any:
    """The tokenizer of the run's model, found under ``name``; it must have a token that ends a completion."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **hub_options(run))
    except (OSError, ValueError) as error:
        raise ConfigError(cannot_load(name, error)) from None
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"model {name}: its tokenizer has no end-of-sequence token, so no completion would end. Write one into its "
            'tokenizer_config.json: "eos_token": "<|endoftext|>"'
        )
    return tokenizer


def hub_options(run: "AnyRun") -> dict[str, Any]:
    """Arguments of ``from_pretrained`` besides the name."""
    return {"revision": run.model.model_revision, "trust_remote_code": run.training.trust_remote_code}


def cannot_load(name: str, error: Exception) -> str:
    """Why a model cannot be loaded, in one line."""
    where = "" if Path(name).exists() else f"no such folder (looked in {Path.cwd()}). {near(name)}From the hub: "
    return f"model {name}: {where}{first_line(error)}"


def positions(name: str, run: "AnyRun") -> int | None:
    """The most tokens that the model has positions for; None where its configuration sets no such limit."""
    config = AutoConfig.from_pretrained(name, **hub_options(run)).get_text_config()
    stretched = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default"
    return None if stretched else getattr(config, "max_position_embeddings", None)


def chat_options(run: "AnyRun", tokenizer: Any) -> dict[str, Any]:
    """The run's options of the chat template; empty without one."""
    options = run.training.chat_template_kwargs
    return options if isinstance(options, dict) and tokenizer.chat_template is not None else {}


def prompt_tokens(tokenizer: Any, prompt: Any, template: Mapping[str, Any] = MappingProxyType({})) -> list[int]:
    """Token ids of a prompt as the model is given it to answer; ``template`` are options of the chat template."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **template}
    try:
        return list(tokenizer.apply_chat_template(prompt, **settings))
    except TemplateError as error:
        raise ConfigError(f"the chat template refuses the prompt {prompt!r:.80} as the user's turn: {error}") from error
