"""The LoRA adapters of a run, tried on its model without weights: peft refuses their names only when it is loaded."""

import re
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from peft import inject_adapter_in_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import get_peft_config

from dppo.errors import ConfigError, first_line
from dppo.lab.runs.models import hub_options

if TYPE_CHECKING:
    from peft import PeftConfig

    from dppo.lab.runs.parsing import AnyRun


ALL = "all-linear"


def adapters_of(run: "AnyRun", name: str) -> "PeftConfig | None":
    """The configuration of the run's adapters for the model ``name``; None without ``use_peft``.

    Raises:
        ConfigError: a name of ``lora_target_modules`` matches no layer of the model, or peft refuses a field.
    """
    config = get_peft_config(run.model)
    if config is None or run.model.lora_target_modules is None:
        return config
    shape = AutoConfig.from_pretrained(name, **hub_options(run))
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, trust_remote_code=run.training.trust_remote_code)
    except ValueError:  # a kind of model that only TRL knows to load
        return config
    found = run.model.lora_target_modules
    if unknown := _unmatched(found, [where for where, _ in model.named_modules()]):
        linear = {where.rpartition(".")[2] for where, each in model.named_modules() if isinstance(each, nn.Linear)}
        layers = sorted(linear - {"lm_head"})
        alone = f", or '.*{found}' (one name alone is a pattern for whole paths)" if found in layers else ""
        raise ConfigError(
            f"lora_target_modules={found}: {unknown[0]} matches no layer of {name}. Its linear layers are called "
            f"{', '.join(layers)}. Write lora_target_modules: {ALL}{alone}"
        )
    try:
        inject_adapter_in_model(deepcopy(config), model)
    except ValueError as error:
        raise ConfigError(f"LoRA for {name}: {first_line(error)} Write lora_target_modules: {ALL}") from error
    return config


def _unmatched(found: str | list[str], paths: list[str]) -> list[str]:
    """Names that are the end of no path, or the pattern that matches none, as peft reads them."""
    if found == ALL:
        return []
    if not isinstance(found, str):
        return [each for each in found if not any(f".{where}".endswith(f".{each}") for where in paths)]
    try:
        return [] if any(re.fullmatch(found, where) for where in paths) else [found]
    except re.error:  # no pattern, such as *q_proj
        return [found]
