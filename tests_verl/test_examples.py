"""The command lines on the page and in the examples are options that verl has, and none of them is refused."""

import os
import re
import shlex
import subprocess
import warnings
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import ray_run
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls

import dppo.verl.plugin  # noqa: F401
from dppo.verl.settings import PruningSettings, method_of, read_settings
from dppo.verl.support import unsupported_options

ROOT = Path(__file__).parents[1]
PRUNING = "trainer.v1.sampler.sampler_kwargs.pruning"
EXAMPLES = ROOT / "examples" / "verl"


def options_of(script: Path, folder: Path) -> list[str]:
    """The arguments that a script gives to verl, by a ``python`` that prints its arguments."""
    stand_in = folder / "python"
    stand_in.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
    stand_in.chmod(0o755)
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    ended = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, check=True)
    module, options = ended.stdout.splitlines()[:2], ended.stdout.splitlines()[2:]
    assert module == ["-m", "verl.trainer.main_ppo"]
    return options


def options_of_page() -> list[str]:
    """The worked command of docs/verl.md: the one block that starts a run."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "verl.md").read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [each for each in blocks if "verl.trainer.main_ppo" in each]
    return shlex.split(block.replace("\\\n", " "))[3:]


def problems(options: list[str]) -> list[str]:
    """The sentences by which our trainer would refuse a command line."""
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=options)
    get = partial(OmegaConf.select, config)
    trainer = get("trainer.v1.trainer_mode")
    method = method_of(read_settings(get(PRUNING) or {}), get)
    assert not method.biases()
    found = unsupported_options(get, method, trainer.removeprefix("dynamic_pruning").removeprefix("_") or "sync")
    if not found:  # verl's own checks of what is given to a trainer
        OmegaConf.resolve(config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = get_trainer_cls(trainer)(config)
        assert made.trainer_mode == made.mode and trainer.endswith(made.mode if made.mode != "sync" else "pruning")
    return found


def test_examples_are_served_have_every_trainer_and_are_in_the_read_me(tmp_path):
    mode, modes, page = "trainer.v1.trainer_mode=", set(), (EXAMPLES / "README.md").read_text()
    for script in sorted(EXAMPLES.glob("*.sh")):
        options = options_of(script, tmp_path)
        assert problems(options) == [], script.name
        ours = {each.partition("pruning.")[2] for each in options if "pruning." in each}
        filled = {"prompt_prune_rate=auto", "prompt_mode=fill"} if script.name == "gsm8k_nodes.sh" else set()
        assert ours == filled and f"`{script.name}`" in page, script.name
        modes.add([each.removeprefix(mode) for each in options if each.startswith(mode)][-1])
    assert modes == {f"dynamic_pruning{end}" for end in ("", "_colocate_async", "_separate_async")}


def test_the_command_on_the_page_is_served_and_an_option_that_is_refused_is_seen():
    assert problems(options_of_page()) == []
    assert len(problems([*options_of_page(), "actor_rollout_ref.actor.shuffle=True"])) == 1


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_the_settings_of_the_ray_runs_are_served(toy, mode):
    assert problems(ray_run.settings(toy, 3, mode)) == []


def test_every_option_of_ours_is_on_the_page():
    rows = re.findall(r"^\| (`[\w`, ]+`) \| .* \| .* \|$", (ROOT / "docs" / "verl.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(PruningSettings)} <= named
