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
from tiny_runs import relative_difference, scripted
from trl import DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl_gradients import TOLERANCE, dppo_run, gradients

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPODPOTrainer, DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer
from dppo.trl.served import REFUSED

SERVED = json.loads(Path(__file__).with_name("trl_methods.json").read_text())["served"]
"""By trainer of TRL: methods whose overrides take effect as they do there."""
TRLS = {"GRPOTrainer": GRPOTrainer, "SFTTrainer": SFTTrainer, "DPOTrainer": DPOTrainer}


@pytest.mark.parametrize("name", TRLS)
def test_every_method_of_trls_trainers_is_served_or_refused(name):
    """One that TRL adds is in neither, and fails here."""
    defined = {
        method for method, value in vars(TRLS[name]).items() if callable(value) or isinstance(value, staticmethod)
    }
    served, refusals = set(SERVED[name]), REFUSED[name].keys()
    assert defined - served - refusals == set() and not served & refusals
    assert all(hasattr(TRLS[name], method) for method in served | refusals)


class Rewards:
    """Completions of even length count more: advantages change, and not by a factor."""

    def _calculate_rewards(self, inputs, prompts, completions, ids):
        found = super()._calculate_rewards(inputs, prompts, completions, ids)
        longer = torch.tensor([[float(len(each) % 2)] for each in ids])
        return found + longer.to(found)


class SingleTurn:
    """A generation of its own, in place of the model's."""

    def _generate_single_turn(self, prompt_ids, *others, **named):
        output = scripted([self._tokenizer.decode(ids) for ids in prompt_ids], self)
        return output["completion_ids"], None


GRPO = dict(completion_prune_rate=0.0, method="grpo")


@pytest.mark.parametrize("mixin", [Rewards, SingleTurn])
def test_an_override_that_is_served_moves_the_gradient_as_trls(mixin, tiny_path, tmp_path):
    own = {} if mixin is Rewards else {"rollout": None}
    theirs = type("Theirs", (mixin, GRPOTrainer), {"__module__": __name__})
    mine = type("Mine", (mixin, DPPOTrainer), {"__module__": __name__})
    (wanted,), _ = gradients(theirs, GRPOConfig, tiny_path, tmp_path, **own)
    (found,), _ = gradients(mine, DPPOConfig, tiny_path, tmp_path, **GRPO, **own)
    (plain,), _ = dppo_run(tiny_path, tmp_path, **GRPO)
    assert relative_difference(found, wanted) < TOLERANCE
    assert mixin is SingleTurn or relative_difference(found, plain) > 0.01


def test_rewards_of_before_the_override_would_be_seen(tiny_path, tmp_path):
    """The wrong twin: what TRL calculated, and not what the subclass made of it."""

    class Ignored(DPPOTrainer):
        def _calculate_rewards(self, *args):
            self.before = super()._calculate_rewards(*args)
            return self.before

        def roll_out(self, examples, **options):
            return replace(super().roll_out(examples, **options), reward_NF=self.before)

    theirs = type("Theirs", (Rewards, GRPOTrainer), {"__module__": __name__})
    mine = type("Mine", (Rewards, Ignored), {"__module__": __name__})
    (wanted,), _ = gradients(theirs, GRPOConfig, tiny_path, tmp_path)
    (found,), _ = gradients(mine, DPPOConfig, tiny_path, tmp_path, **GRPO)
    assert relative_difference(found, wanted) > 0.01


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


@pytest.mark.parametrize("base", [SFTTrainer, DPOTrainer])
@pytest.mark.parametrize("mixin", [Shorter, Backwards])
def test_one_of_a_trainer_on_rows_too(base, mixin, tiny_path, tmp_path):
    sft, of_pairs = base is SFTTrainer, (DPPODPOTrainer, DPPODPOConfig, dpo_runs.DPOConfig)
    ours, config, stock_config = (DPPOSFTTrainer, DPPOSFTConfig, SFTConfig) if sft else of_pairs

    def first_gradient(kinds, config, folder, **more):
        kind = type("Kind", kinds, {"__module__": __name__})
        make = partial(made if sft else dpo_runs.compared, kind, config)
        return trained(make, tiny_path, tmp_path / folder, max_steps=1, **more)[0][0]

    wanted = first_gradient((mixin, base), stock_config, "stock")
    found = first_gradient((mixin, ours), config, "ours", row_prune_rate=0.0)
    plain = first_gradient((ours,), config, "plain", row_prune_rate=0.0)
    assert relative_difference(found, wanted) < TOLERANCE
    assert relative_difference(found, plain) > 0.01


OURS = {"GRPOTrainer": DPPOTrainer, "SFTTrainer": DPPOSFTTrainer, "DPOTrainer": DPPODPOTrainer}
ALL_REFUSED = [(name, method) for name, methods in REFUSED.items() for method in methods]


@pytest.mark.parametrize(("name", "method"), ALL_REFUSED)
@pytest.mark.parametrize("as_mixin", [False, True], ids=["subclass", "mixin of TRL's"])
def test_an_override_that_would_be_ignored_is_refused(name, method, as_mixin, tmp_path):
    def own(self, *args, **kwargs):
        raise AssertionError("nothing is trained")

    kind = type("Mine", (TRLS[name] if as_mixin else OURS[name],), {method: own, "__module__": __name__})
    if as_mixin:
        kind = type("Diamond", (OURS[name], kind), {"__module__": __name__})
    settings = {"GRPOTrainer": DPPOConfig, "SFTTrainer": DPPOSFTConfig, "DPOTrainer": DPPODPOConfig}
    options = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": []}
    with refused(
        ConfigError, f"Mine.{method}", *{"Override", "Set", "Put", "Change"} & set(REFUSED[name][method].split())
    ):
        kind(model="never loaded", args=settings[name](**options), train_dataset=solutions())


def test_a_step_that_is_read_as_trls_batch_says_what_it_is(tiny_path, tmp_path):
    class Looks(DPPOSFTTrainer):
        def training_step(self, model, inputs, *others):
            assert inputs["input_ids"] is not None
            return super().training_step(model, inputs, *others)

    trainer = made(Looks, DPPOSFTConfig, tiny_path, tmp_path)
    with refused(ConfigError, "input_ids", "loss_and_scores"):
        trainer.train()
