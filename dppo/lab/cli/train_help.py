"""The texts of ``dppo train --help``, which needs neither torch nor TRL, and of ``--help_all``."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, cast, get_args, get_type_hints

from dppo.lab.runs.fields import RunArguments
from dppo.settings import OwnSettings, with_default

DESCRIPTION = (
    "Fields of the file and flags are the same, and flags win. Every other command that takes a configuration takes "
    "them too."
)
TASK, PRUNING = "what to train on, and how it is judged", "pruning, and what the method fills in"
USUAL_TITLE, OTHERS = "the usual fields of TRL and transformers", "the fields of TRL and transformers"
KINDS = {float: "X", int: "N", str: "TEXT", bool: "true|false", list: "A B ..."}


class Line(NamedTuple):
    """A field in the help."""

    name: str
    kind: str
    """The placeholder of its value."""
    text: str


class Usual(NamedTuple):
    """A field of TRL or transformers that most runs set; a test compares its default with what takes effect."""

    name: str
    kind: type
    default: str
    text: str


USUAL = (
    Usual("model_name_or_path", str, "none", "Folder or hub name of the model, or scratch:embedded."),
    Usual("output_dir", str, "trainer_output", "Folder of the model, its checkpoints and the run's records."),
    Usual("learning_rate", float, "1e-06", "Of AdamW, at its highest."),
    Usual("lr_scheduler_type", str, "linear", "linear, cosine, constant, constant_with_warmup, ..."),
    Usual("per_device_train_batch_size", int, "8", "Completions of one forward and backward call, on each process."),
    Usual("gradient_accumulation_steps", int, "1", "Such calls in an optimizer step; a generation takes as many."),
    Usual("num_generations", int, "8", "Completions of each prompt."),
    Usual("max_completion_length", int, "512", "Most tokens of a completion."),
    Usual("temperature", float, "1.0", "Of sampling."),
    Usual("num_train_epochs", float, "3.0", "Times that each prompt is a candidate."),
    Usual("max_steps", int, "-1", "Optimizer steps, in place of epochs; -1 for epochs."),
    Usual("seed", int, "42", "Of weights from scratch, prompts, completions and draws."),
    Usual("bf16", bool, "true", "Mixed precision. Write false on a CPU."),
    Usual("use_cpu", bool, "false", "Train on the CPU even where there is a GPU."),
    Usual(
        "gradient_checkpointing",
        bool,
        "true",
        "Less memory, slower: activations are computed twice. Write false where a row fits.",
    ),
    Usual("use_vllm", bool, "false", "Completions by vLLM: docs/vllm.md."),
    Usual("vllm_mode", str, "colocate", "colocate, in the trainer's process, or server."),
    Usual("logging_steps", float, "10", "Optimizer steps between logs."),
    Usual("save_steps", float, "500", "Optimizer steps between checkpoints."),
    Usual("eval_strategy", str, "no", "no, steps or epoch: when eval_dataset_name is evaluated."),
    Usual("report_to", str, "none", "Trackers: wandb, tensorboard, ..."),
    Usual("use_peft", bool, "false", "Train LoRA adapters, by lora_r, lora_alpha, ..."),
)


def short_help() -> str:
    """Our fields, then the usual ones, without slow imports."""
    usual = [Line(each.name, KINDS[each.kind], f"{each.text} (default: {each.default})") for each in USUAL]
    return _page({TASK: lines_of(RunArguments), PRUNING: lines_of(OwnSettings), USUAL_TITLE: usual})


def full_help() -> str:
    """Every field, with TRL's own texts."""
    from trl.trainer.model_config import ModelConfig

    from dppo.trl.grpo.config import DPPOConfig

    made = DPPOConfig(use_cpu=True, bf16=False)
    own = {each.name for each in fields(OwnSettings)}
    theirs = [line for line in (*lines_of(DPPOConfig, made), *lines_of(ModelConfig)) if line.name not in own]
    return _page({TASK: lines_of(RunArguments), PRUNING: lines_of(OwnSettings), OTHERS: theirs})


def lines_of(kind: type, made: Any = None) -> Iterator[Line]:
    """The fields of a dataclass with texts and defaults; where the default is None, the value in ``made`` is shown."""
    hints = get_type_hints(kind)
    for each in (each for each in fields(cast(Any, kind)) if each.init):
        default = None if each.default is MISSING else each.default
        if default is None and isinstance(found := getattr(made, each.name, None), str | int | float):
            default = found
        parts = [getattr(part, "__origin__", part) for part in get_args(hints[each.name]) or (hints[each.name],)]
        shown = next((KINDS[part] for part in parts if part in KINDS), "TEXT")
        yield Line(each.name, shown, with_default(each.metadata.get("help", ""), default))


def _page(groups: dict[str, Iterable[Line]]) -> str:
    """The help of a parser with these fields."""
    parser = argparse.ArgumentParser(
        prog="dppo train", usage="dppo train CONFIG.yaml [--any_field value]", description=DESCRIPTION, add_help=False
    )
    parser.add_argument("-h", "--help", action="store_true", help="our fields and the usual ones")
    parser.add_argument("--help_all", action="store_true", help="every field")
    for title, lines in groups.items():
        group = parser.add_argument_group(title)
        for name, kind, text in lines:
            group.add_argument(f"--{name}", metavar=kind, help=text)
    return parser.format_help()
