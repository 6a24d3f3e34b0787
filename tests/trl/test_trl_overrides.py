"""What a subclass overrides takes effect as in TRL, or is refused: it never changes the log alone."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import dpo_runs
import pytest
import torch
from refusals import refused
from sft_runs import made, solutions, trained
from tiny_runs import CONFIG, relative_difference, scripted
from trl import DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl_gradients import TOLERANCE, gradients

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPODPOTrainer, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer
from dppo.trl.served import REFUSED

SERVED = json.loads(Path(__file__).with_name("trl_methods.json").read_text())["served"]
"""By trainer of TRL: methods whose overrides take effect as they do there."""
TRAINERS = {
    "GRPOTrainer": (GRPOTrainer, GRPOConfig, DPPOTrainer, DPPOConfig),
    "SFTTrainer": (SFTTrainer, SFTConfig, DPPOSFTTrainer, DPPOSFTConfig),
    "DPOTrainer": (DPOTrainer, dpo_runs.DPOConfig, DPPODPOTrainer, DPPODPOConfig),
}
"""TRL's, ours, and their configurations."""


@pytest.mark.parametrize("name", TRAINERS)
def test_every_method_of_trls_trainers_is_served_or_refused(name):
    """One that TRL adds is in neither, and fails here."""
    trainer, served, refusals = TRAINERS[name][0], set(SERVED[name]), REFUSED[name].keys()
    members = vars(trainer).items()
    defined = {method for method, value in members if callable(value) or isinstance(value, staticmethod)}
    assert defined - served - refusals == set() and not served & refusals
    assert all(hasattr(trainer, method) for method in served | refusals)


def mixed(*kinds, **members):
    """A user's own class of these."""
    return type("Mine", kinds, {"__module__": __name__} | members)


class Rewards:
    """Completions of even length count more: advantages change, and not by a factor."""

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        found = super()._calculate_rewards(inputs, prompts, completions, ids)
        return found + torch.tensor([[float(len(each) % 2)] for each in ids]).to(found)


class SingleTurn:
    """A generation of its own, in place of the model's."""

    def _generate_single_turn(self, prompt_ids, *others, **named):
        output = scripted([self._tokenizer.decode(ids) for ids in prompt_ids], self)
        return output["completion_ids"], None


class Ignored(DPPOTrainer):
    """The wrong twin: rewards as TRL calculated them, and not what the subclass made of them."""

    def _calculate_rewards(self, *args):
        self.before = super()._calculate_rewards(*args)
        return self.before

    def roll_out(self, examples, **options):
        return replace(super().roll_out(examples, **options), reward_NF=self.before)


@pytest.mark.parametrize("mixin", [Rewards, SingleTurn])
def test_an_override_that_is_served_moves_the_gradient_as_trls(mixin, tiny_path, tmp_path):
    def first_gradient(base, config=DPPOConfig, **options):
        options |= {} if mixin is Rewards else {"rollout": None}
        return gradients(mixed(mixin, base), config, tiny_path, tmp_path, **options)[0][0]

    wanted = first_gradient(GRPOTrainer, GRPOConfig)
    unpruned = dict(completion_prune_rate=0.0, method="grpo")
    assert relative_difference(first_gradient(DPPOTrainer, **unpruned), wanted) < TOLERANCE
    if mixin is Rewards:
        assert relative_difference(first_gradient(Ignored, **unpruned), wanted) > 0.01


class Shorter:
    """The last trained tokens of every dataset row are left out."""

    def _prepare_dataset(self, dataset, *others, **named):
        rows = super()._prepare_dataset(dataset, *others, **named)
        name = "labels" if "labels" in rows.column_names else "chosen_ids"
        return rows.map(lambda row: {name: row[name][:-1] + ([-100] if name == "labels" else [])})


class Backwards:
    """Dataset rows from the last to the first."""

    def _get_train_sampler(self, *dataset):
        return list(range(len(self.train_dataset)))[::-1]


@pytest.mark.parametrize("name", ["SFTTrainer", "DPOTrainer"])
@pytest.mark.parametrize("mixin", [Shorter, Backwards])
def test_one_of_a_trainer_on_rows_too(name, mixin, tiny_path, tmp_path):
    base, stock_config, ours, config = TRAINERS[name]

    def first_gradient(kinds, config, folder, **more):
        make = partial(made if base is SFTTrainer else dpo_runs.compared, mixed(*kinds), config)
        return trained(make, tiny_path, tmp_path / folder, max_steps=1, **more)[0][0]

    wanted = first_gradient((mixin, base), stock_config, "stock")
    found = first_gradient((mixin, ours), config, "ours", row_prune_rate=0.0)
    plain = first_gradient((ours,), config, "plain", row_prune_rate=0.0)
    assert relative_difference(found, wanted) < TOLERANCE
    assert relative_difference(found, plain) > 0.01


@pytest.mark.parametrize(("name", "method"), [(name, method) for name in REFUSED for method in REFUSED[name]])
@pytest.mark.parametrize("as_mixin", [False, True], ids=["subclass", "mixin of TRL's"])
def test_an_override_that_would_be_ignored_is_refused(name, method, as_mixin):
    def own(self, *args, **kwargs):
        raise AssertionError("nothing is trained")

    stock, _, ours, config = TRAINERS[name]
    kind = mixed(ours, mixed(stock, **{method: own})) if as_mixin else mixed(ours, **{method: own})
    instead = {"Override", "Set", "Put", "Change"} & set(REFUSED[name][method].split())
    with refused(ConfigError, f"Mine.{method}", *instead):
        kind(model="never loaded", args=config(**CONFIG), train_dataset=solutions())


def test_a_step_that_is_read_as_trls_batch_says_what_it_is(tiny_path, tmp_path):
    class Looks(DPPOSFTTrainer):
        def training_step(self, model, inputs, *others):
            assert inputs["input_ids"] is not None
            return super().training_step(model, inputs, *others)

    trainer = made(Looks, DPPOSFTConfig, tiny_path, tmp_path)
    with refused(ConfigError, "input_ids", "loss_and_scores"):
        trainer.train()
