"""Methods of verl that we override or call are as they were when they were read: a new release fails here first.

``hooked.json`` lists them. That it has all which are overridden is tested; calls of others are listed by hand.
"""

import inspect
import json

import pytest
from verl.trainer.ppo.v1 import get_trainer_cls

import dppo.verl.plugin  # noqa: F401
from dppo.errors import ConfigError
from dppo.hooked import changed
from dppo.verl.engine import RowsEngine
from dppo.verl.support import HOOKED, check_verl_version

TRAINERS = ("dynamic_pruning", "dynamic_pruning_colocate_async", "dynamic_pruning_separate_async")


def overridden(ours):
    """The methods of verl that a class of ours overrides, by their paths."""
    names = {
        name
        for owner in ours.__mro__
        if owner.__module__.startswith("dppo.")
        for name, value in vars(owner).items()
        if inspect.isfunction(value)
    }
    verls = [owner for owner in ours.__mro__ if owner.__module__.startswith("verl.")]
    owners = {name: [owner for owner in verls if name in vars(owner)] for name in names}
    return {f"{found[0].__module__}.{found[0].__qualname__}.{name}" for name, found in owners.items() if found}


def test_the_fingerprints_are_of_the_installed_verl_and_of_each_method_that_we_override():
    assert changed(HOOKED) == [], f"python -m dppo.hooked {HOOKED}"
    listed = {f"{path}.{name}" for path, names in json.loads(HOOKED.read_text()).items() for name in names}
    found = set().union(*map(overridden, (*map(get_trainer_cls, TRAINERS), RowsEngine)))
    assert found <= listed and len(found) > 20


def test_a_newer_verl_is_served_with_one_line_if_what_is_overridden_is_the_same(monkeypatch):
    with pytest.warns(UserWarning, match=r"verl 0\.10\.0 is newer than the tested .*the same"):
        check_verl_version("0.10.0", "separate_async", megatron=True)
    monkeypatch.setattr("verl.workers.utils.losses.ppo_loss", check_verl_version)
    monkeypatch.delattr("verl.trainer.ppo.v1.trainer_base.PPOTrainer._balance_batch")
    with pytest.raises(ConfigError, match=r"verl 0\.10\.0 .*: PPOTrainer\._balance_batch, losses\.ppo_loss\. Install"):
        check_verl_version("0.10.0")
