"""Naming a method fills the fields of TRL that were left out, what was set is kept or refused, and advice works."""

import json
import re
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from refusals import refused
from tiny_runs import CONFIG, configured
from transformers import Qwen3Config, Qwen3MoeConfig, TrainingArguments
from trl import DPOConfig, GRPOConfig, SFTConfig
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.settings import NO_TRACE, OwnSettings
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPOSFTConfig
from dppo.trl.checkpoints import state
from dppo.trl.grpo.lines import describe_steps
from dppo.trl.grpo.objective import fields_of
from dppo.trl.served import RANGES

OWN = [name for name, method in METHODS.items() if method.fixes]


KNOWN = json.loads(Path(__file__).with_name("trl_fields.json").read_text())
"""Fields that TRL adds to those of transformers: served, refused with a value that shows it, or of no matter here."""
CONFIGS = {"GRPOConfig": (GRPOConfig, DPPOConfig), "SFTConfig": (SFTConfig, DPPOSFTConfig)}
CONFIGS |= {"DPOConfig": (DPOConfig, DPPODPOConfig)}


class TestSnapshot:
    """A field that TRL adds fails here until it is served, refused, or known to be of no matter."""

    @pytest.mark.parametrize("name", CONFIGS)
    def test_every_field_of_trl_is_known(self, name):
        theirs = {each.name for each in fields(CONFIGS[name][0])} - {each.name for each in fields(TrainingArguments)}
        known = [field for group in KNOWN[name].values() for field in group]
        assert sorted(known) == sorted(theirs)

    @pytest.mark.parametrize(
        ("name", "field", "value"), [(name, *refusal) for name in CONFIGS for refusal in KNOWN[name]["refused"].items()]
    )
    def test_what_is_marked_as_refused_is(self, name, field, value):
        with refused(ConfigError, field):
            CONFIGS[name][1](**CONFIG, **{field: value})

    def test_fields_with_a_range_or_a_memory_are_there(self):
        of_grpo = {each.name for each in fields(GRPOConfig)}
        everywhere = of_grpo | {each.name for kind in (SFTConfig, DPOConfig, AsyncGRPOConfig) for each in fields(kind)}
        of_trainers = {"processes", "model", "ref_model", "dataset", "reward_funcs"}
        assert RANGES.keys() | state.OF_TRL.keys() | {*state.OF_THE_OPTIMIZER} <= of_grpo | of_trainers
        for start in (*NO_TRACE, *state.GENERATING):
            assert any(name.startswith(start) for name in everywhere), f"no field begins with {start}"
        assert not RANGES.keys() & {each.name for each in fields(OwnSettings)}, "a range is said once"


class TestFilledIn:
    """A method is one thing: what it fixes is what trains."""

    @pytest.mark.parametrize("name", OWN)
    def test_what_a_method_fixes_is_what_its_name_trains(self, name):
        built, method = configured(method=name).build_method(), METHODS[name]
        for part in method.fixes:
            mine, own = getattr(built, part), getattr(method, part)
            if isinstance(own, partial):
                assert mine.func is own.func and own.keywords.items() <= mine.keywords.items()
            else:
                assert mine == own, part

    def test_rates_that_are_left_out_are_the_methods(self):
        wanted = {"grpo": (0.0, 0.0), "dppo": (0.0, "auto"), "pods": (0.0, 0.5), "infobatch": (0.5, 0.0)}
        wanted |= {"gdpo": (0.0, 0.0), "dppo_gdpo": (0.0, "auto")}
        made = {name: configured(method=name) for name in wanted}
        assert {name: (c.prompt_prune_rate, c.completion_prune_rate) for name, c in made.items()} == wanted
        assert configured(method="cppo", prune_floor=0.1, prompt_prune_rate=0.5), "the floor of prompts that are drawn"

    @pytest.mark.parametrize("name", OWN)
    def test_another_objective_than_the_methods_names_both(self, name):
        own, others = fields_of(METHODS[name]), {"loss_type": ("dr_grpo", "grpo"), "scale_rewards": ("batch", "group")}
        others["importance_sampling_level"] = ("token", "sequence")
        for field in own.keys() & others.keys():
            other = next(choice for choice in others[field] if choice != own[field])
            with refused(ConfigError, f"method={name!r}", f"{field}: {own[field]}", f"{field}={other!r}") as error:
                configured(method=name, **{field: other})
            any_objective = re.findall(r"method: (\w+)\.", str(error.value))[-1]
            assert configured(method=any_objective, **{field: other}), "the advice works"


MIXTURE = Qwen3MoeConfig(router_aux_loss_coef=0.02)


class TestOneBias:
    """The plan, the run and every proof read the same sentences."""

    @pytest.mark.parametrize(
        ("options", "model", "reasons"),
        [
            ({}, None, []),
            ({"prompt_prune_rate": 0.3}, None, []),  # token means are divided by the tokens that history expects
            ({"prompt_prune_rate": 0.5, "scale_rewards": "batch"}, None, ["of the batch"]),
            ({"prompt_prune_rate": 0.5, "loss_type": "grpo", "num_iterations": 2}, None, ["several optimizer steps"]),
            ({"loss_type": "grpo", "router_aux_loss_coef": 0.1}, None, ["router loss"]),
            ({"method": "dppo_deterministic"}, None, ["completion pruning is biased"]),
            # Before there is a trainer a model says the coefficient of its router loss.
            ({"loss_type": "grpo"}, MIXTURE, ["router loss"]),
            ({"loss_type": "grpo", "router_aux_loss_coef": 0.0}, MIXTURE, []),
            ({"loss_type": "grpo"}, Qwen3Config(), []),
        ],
    )
    def test_plan_and_method_say_the_same(self, options, model, reasons):
        config = configured(**options)
        method = config.build_method(model_config=model)
        found = method.biases(config.num_iterations)
        assert len(found) == len(reasons) and all(word in reason for word, reason in zip(reasons, found, strict=True))
        lines = describe_steps(config, method, prompts_in_dataset=None)
        assert [line for line in lines if line.startswith("biased")] == [f"biased: {reason}" for reason in found]
        assert ("gradient BIASED" in lines[0]) == bool(found)
        if model is MIXTURE:
            assert method.router_coef == (0.02 if reasons else 0.0)
