"""What holds a group of gloo's goes before the group does; warnings come at once, then rarely; models have weights."""

import gc
import shutil
import warnings
import weakref

import pytest
from conftest_trl import CONFIG, length_reward, problems
from refusals import refused
from torch import distributed

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPODPOTrainer, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer, safeguards


class Holder:
    """Stands for a trainer that nobody holds, with the reducer of its wrapped model."""

    def __init__(self):
        self.itself = self


def test_a_trainer_that_nobody_holds_goes_before_the_group(monkeypatch):
    """Its reducer would be the last to hold the group, and end it with the interpreter in hand: a process then waited
    for ever, in 2 of 15 runs. The wrong twin collects after the group alone.
    """
    there = []
    gc.disable()  # or the cycle may be gone by itself
    try:
        holder = weakref.ref(Holder())
        assert holder() is not None, "a cycle, which only the collector ends"
        monkeypatch.setattr(distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed, "destroy_process_group", lambda: there.append(holder() is not None))
        safeguards._end_group()
    finally:
        gc.enable()
    assert there == [False]


@pytest.mark.parametrize(("counted", "first"), [({"scored": False}, 1), ({}, 10)])
def test_nothing_learned_is_said_and_then_each_time_that_doubles(counted, first):
    warning, said = safeguards.EmptySignalWarning(), []
    for generation in range(1, 45):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warning.observe(False, **counted)
        said += [generation] * len(caught)
    assert said == [first * 2**power for power in range(6) if first * 2**power < 45]
    with warnings.catch_warnings(record=True) as caught:
        warning.observe(True)
    assert not caught and warning.empty == 0


KINDS = {
    "grpo": (DPPOTrainer, DPPOConfig, {"reward_funcs": length_reward}),
    "sft": (DPPOSFTTrainer, DPPOSFTConfig, {}),
    "dpo": (DPPODPOTrainer, DPPODPOConfig, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_weights_is_refused(kind, tiny_path, tmp_path):
    trainer, config, own = KINDS[kind]
    folder = shutil.copytree(tiny_path, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    with refused(ConfigError, folder, "no weights", ".safetensors"):
        trainer(str(folder), args=config(**CONFIG), train_dataset=problems(8), **own)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_not_there_is_named_in_one_line(kind, tiny_path, tmp_path):
    """In a script, and without the errors that transformers met on its way."""
    trainer, config, own = KINDS[kind]
    shutil.copytree(tiny_path, tmp_path / "model")
    (tmp_path / "empty").mkdir()
    given = dict(args=config(**CONFIG), train_dataset=problems(8)) | own
    for name, *told in (
        (str(tmp_path / "modle"), "no such folder", "Did you mean model?"),
        (str(tmp_path / "empty"), "no config.json"),
        ("no-such/model-on-the-hub", "no-such/model-on-the-hub"),
    ):
        with refused(ConfigError, name, *told) as found:
            trainer(name, **given)
        assert found.value.__suppress_context__ or found.value.__context__ is None
        assert "\n" not in str(found.value)


def test_a_reward_model_that_is_not_there_is_named_in_one_line(tiny_path, tmp_path):
    with refused(ConfigError, tmp_path / "judge", "no such folder"):
        DPPOTrainer(tiny_path, str(tmp_path / "judge"), args=DPPOConfig(**CONFIG), train_dataset=problems(8))
