"""What holds a group of gloo's goes before the group does; warnings come at once, then rarely; models have weights."""

import contextlib
import gc
import re
import shutil
import warnings
import weakref

import dpo_runs
import pandas as pd
import pytest
from refusals import refused
from tiny_runs import CONFIG, SHORT, length_reward, problems, scripted
from torch import distributed
from transformers import TrainerCallback
from trl_gradients import constant

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer, safeguards


def test_a_trainer_that_nobody_holds_goes_before_the_group(monkeypatch):
    """Its reducer would be the last to hold the group, and end it with the interpreter in hand: a process then waited
    for ever, in 2 of 15 runs. The wrong twin collects after the group alone.
    """

    class Holder:
        """Stands for a trainer, with the reducer of its wrapped model."""

        def __init__(self):
            self.itself = self

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


ON_PROMPTS = (DPPOTrainer, DPPOConfig, {"reward_funcs": length_reward})


@pytest.mark.parametrize("kind", [ON_PROMPTS, (DPPOSFTTrainer, DPPOSFTConfig, {})], ids=["grpo", "rows"])
def test_a_model_that_cannot_be_loaded_is_named_in_one_line(kind, tiny_path, tmp_path):
    """In a script, and without the errors that transformers met on its way; a reward model too."""
    trainer, config, own = kind
    shutil.copytree(tiny_path, tmp_path / "model")
    shutil.copytree(tiny_path, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "empty").mkdir()
    for name, *told in (
        (tmp_path / "modle", "no such folder", "Did you mean model?"),
        (tmp_path / "bare", "no weights", ".safetensors"),
        (tmp_path / "empty", "no config.json"),
        ("no-such/model-on-the-hub",),
    ):
        with refused(ConfigError, name, *told) as found:
            trainer(str(name), args=config(**CONFIG), train_dataset=problems(8), **own)
        assert found.value.__suppress_context__ or found.value.__context__ is None
        assert "\n" not in str(found.value)
    with refused(ConfigError, tmp_path / "judge", "no such folder"):
        DPPOTrainer(tiny_path, str(tmp_path / "judge"), args=DPPOConfig(**CONFIG), train_dataset=problems(8))


def short(tiny_path, tmp_path, reward=length_reward, **settings):
    """A trainer of a short run whose steps have two calls."""
    settings = dict(gradient_accumulation_steps=2, per_device_train_batch_size=4) | settings
    args = DPPOConfig(**SHORT | dict(output_dir=str(tmp_path)) | settings)
    return DPPOTrainer(tiny_path, reward, args=args, train_dataset=problems(8), rollout_func=scripted)


@pytest.mark.parametrize(
    ("make", "place", "value", "named"),
    [
        (short, "beta", 5.0, ("trainer.beta was changed from 0.0 to 5.0", "whose config has beta=5.0")),
        (short, "epsilon_low", 0.1, ("from 0.2 to 0.1", "epsilon=0.1")),
        (short, "train_dataset", problems(20), ("trainer.train_dataset was changed after", "Make another trainer")),
        (short, "args.completion_prune_rate", 0.9, ("trainer.args.completion_prune_rate", "completion_prune_rate=0.9")),
        (short, "args.beta", 0.1, ("trainer.args.beta was changed from", "whose config has beta=0.1")),
        (dpo_runs.ours, "args.row_prune_rate", 0.9, ("trainer.args.row_prune_rate", "row_prune_rate=0.9")),
        (dpo_runs.ours, "args.label_smoothing", 0.1, ("trainer.args.label_smoothing", "label_smoothing=0.1")),
    ],
)
def test_what_is_changed_on_a_trainer_that_was_made_is_refused(make, place, value, named, tiny_path, tmp_path):
    """By a callback too. TRL reads these in each step; here they would do nothing, and a checkpoint record them."""

    def change(trainer):
        owner, name = (trainer.args, place[5:]) if place.startswith("args.") else (trainer, place)
        setattr(owner, name, value)

    class Change(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            change(trainer)

    # Trainers on rows look once, when training starts.
    for by_callback in (False, True) if make is short else (False,):
        trainer = make(tiny_path, tmp_path)
        trainer.add_callback(Change()) if by_callback else change(trainer)
        with refused(ConfigError, *named):
            trainer.train()
        assert trainer.state.global_step == 0


@pytest.mark.parametrize("options", [{}, {"beta": 0.1}, {"loss_type": "vespo"}], ids=["plain", "kl", "vespo"])
def test_a_log_of_steps_without_a_signal_holds_no_empty_figure(options, tiny_path, tmp_path):
    """``entropy`` was None if no completion was trained on, which trackers refuse."""
    trainer = short(tiny_path, tmp_path, constant, **options)
    trainer.train()
    records = trainer.state.log_history
    assert len(records) > 1 and "reward" in records[0]
    empty = {name for record in records for name, value in record.items() if value is None or value != value}
    assert not empty and ("entropy" in records[0]) == ("beta" in options)


@pytest.mark.parametrize("reward", [0.0, None, "length"])
def test_a_run_in_which_no_reward_differed_says_that_nothing_was_learned(reward, tiny_path, tmp_path, capsys):
    def equal(prompts, completions, **_):
        return [reward] * len(completions)

    given = length_reward if reward == "length" else equal
    with pytest.warns(UserWarning) if reward is None else contextlib.nullcontext():
        short(tiny_path, tmp_path, given, max_steps=2, prompt_prune_rate="auto").train()
    told = capsys.readouterr().out
    said = re.search(r"dppo \| nothing was learned: all \d+ completions had advantage 0", told)
    assert (said is not None) == (reward != "length")
    assert reward == "length" or ("in use" not in told and "auto dropped" not in told)


def test_arguments_that_are_read_when_they_are_used_may_change_and_names_of_ours_may_not(tiny_path, tmp_path):
    trainer = short(tiny_path, tmp_path)
    trainer.args.learning_rate, trainer.args.max_tokens_per_row, trainer.args.max_steps = 0.5, 64, 1
    trainer.train()
    assert trainer.state.global_step == 1
    trainer.session = "mine"
    with refused(ConfigError, "trainer.session", "'mine'", "self.my_session = "):
        trainer.train()


def test_after_an_interrupt_a_run_begins_with_a_generation(tiny_path, tmp_path, monkeypatch):
    """The wrong twin goes on with the second half of a generation that was rolled out by other weights."""
    trainer, phases, step = short(tiny_path, tmp_path), [], DPPOTrainer.training_step

    def counted(self, *args, **kwargs):
        phases.append(self.calls % self.schedule.length)
        if len(phases) == 4:  # within the second step
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(DPPOTrainer, "training_step", counted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train()
    assert phases == [0, 1, 0, 1] + [0, 1] * 3


def test_fields_are_checked_unless_they_are_off():
    for off in (
        {"top_k": None, "top_p": None, "repetition_penalty": None},
        {"save_steps": 0, "eval_steps": 0},
        {"num_train_epochs": 0, "max_steps": 3},
        {"logging_steps": 0, "logging_strategy": "no"},
    ):
        DPPOConfig(**CONFIG | {"save_strategy": "no"} | off)
    for wrong in ({"save_steps": 0, "save_strategy": "steps"}, {"num_train_epochs": 0}, {"top_k": -2}):
        with refused(ConfigError, next(iter(wrong))):
            DPPOConfig(**CONFIG | wrong)


def test_a_run_that_goes_on_within_a_generation_writes_no_empty_table(tiny_path, tmp_path):
    """TRL rolls out again there, and has completions to show; these were shown before the checkpoint."""
    settings = dict(num_iterations=2, save_strategy="steps", save_steps=1, log_completions=True, max_steps=5)
    short(tiny_path, tmp_path, **settings).train()
    shutil.rmtree(tmp_path / "completions")
    short(tiny_path, tmp_path, **settings).train(str(tmp_path / "checkpoint-3"))
    tables = {path.stem[-1]: len(pd.read_parquet(path)) for path in (tmp_path / "completions").glob("*.parquet")}
    assert set(tables) == {"5"} and all(tables.values())
