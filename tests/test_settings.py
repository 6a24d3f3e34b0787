"""The table of settings: every entry is whole, takes effect in every check, and is read without what is heavy."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.methods.settings import CHOICES, ROW_CHOICES, setting_problems
from dppo.settings import TABLE, AsyncSettings, OwnSettings, RowSettings, VerlSettings
from dppo.step.resumed import remembered
from dppo.verl.settings import PruningSettings

KINDS = {OwnSettings: CHOICES, RowSettings: ROW_CHOICES, VerlSettings: CHOICES, AsyncSettings: CHOICES}
ENTRIES = [(kind, each) for kind in KINDS for each in fields(kind)]
NAMES = [f"{kind.__name__}-{each.name}" for kind, each in ENTRIES]


@pytest.mark.parametrize(("kind", "each"), ENTRIES, ids=NAMES)
def test_every_type_range_and_choice_is_checked(kind, each):
    """What the table tells of a setting is refused by the one check of all trainers, by name and value."""
    assert list(each.metadata) == ["help"] and each.metadata["help"]
    wrong = [object()]
    if TABLE[each].range:
        low, high = map(float, TABLE[each].range[1:-1].split(", "))
        whole = int in (hint := get_type_hints(kind)[each.name], *get_args(hint))
        wrong += [-2] if whole else [low - 1, float("nan")]
        wrong += [high + 1] if high < float("inf") else []
    elif TABLE[each].choices or each.name in KINDS[kind]:
        wrong.append("nonsense")
    for value in wrong:
        made = kind()
        setattr(made, each.name, value)
        (problem,) = setting_problems(made, KINDS[kind])
        assert problem.startswith(f"{each.name}=")


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_right_and_remembered_where_they_shape_the_run(kind):
    assert setting_problems(kind(), KINDS[kind]) == []
    kept = remembered(kind(), {"processes": 2})
    assert {"method", "prune_floor", "prune_until", "processes"} <= kept.keys()
    assert not {"accept_bias", "layout", "max_tokens_per_row"} & kept.keys()


def test_a_setting_of_several_trainers_has_one_range_one_memory_and_one_type():
    own = {each.name: each for each in fields(OwnSettings)}
    # Of two losses, not of all that GRPOTrainer has; of two engines of verl.
    another = {(AsyncSettings, "loss_type"), (VerlSettings, "layout")}
    for kind in (RowSettings, VerlSettings, AsyncSettings):
        for each in fields(kind):
            if each.name in own and (kind, each.name) not in another:
                first = own[each.name]
                assert TABLE[each] == TABLE[first]
                assert get_type_hints(kind)[each.name] == get_type_hints(OwnSettings)[each.name]


def test_a_floor_above_what_a_rate_keeps_is_refused():
    with refused(ConfigError, "prune_floor=0.6", "completion_prune_rate=0.5", "prune_floor=0.25"):
        PruningSettings(completion_prune_rate=0.5, prune_floor=0.6)
