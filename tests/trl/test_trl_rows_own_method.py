"""A method of rows as a value, in supervised training and in training on preferences."""

import json
from dataclasses import replace

import pytest
from dpo_runs import ours as preferences
from dpo_runs import pairs
from refusals import refused
from sft_runs import made

from dppo.errors import ConfigError
from dppo.methods import ROW_METHODS
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer
from dppo.trl.checkpoints.files import OUR_STATE

MINE = replace(ROW_METHODS["uniform"], name="mine", rows=replace(ROW_METHODS["uniform"].rows, rate=0.4))


def supervised(path, folder, **options):
    return made(DPPOSFTTrainer, DPPOSFTConfig, path, folder, **options)


@pytest.mark.parametrize("kind", [supervised, preferences], ids=["supervised", "preferences"])
@pytest.mark.parametrize("name", [*ROW_METHODS, "mine"])
def test_every_method_of_rows_trains_as_a_value(kind, name, tiny_path, tmp_path):
    method = ROW_METHODS.get(name, MINE)
    trainer = kind(tiny_path, tmp_path, own={"method": method}, accept_bias=method.over_kept)
    trainer.train()
    assert trainer.method == method == trainer.source.method and trainer.state.global_step == 3
    assert (trainer.args.row_prune_rate, trainer.args.row_score) == (method.rows.rate, method.score)


def test_what_contradicts_it_is_refused_and_a_name_is_a_starting_point(tiny_path, tmp_path):
    with refused(ConfigError, "row_prune_rate=0.2", "'mine'", "Leave it out"):
        supervised(tiny_path, tmp_path, own={"method": MINE}, row_prune_rate=0.2)
    with refused(ConfigError, "method='mine'", "args.method='infobatch'"):
        supervised(tiny_path, tmp_path, own={"method": MINE}, method="infobatch")
    with refused(ConfigError, "infobatch_kept", "biased", "accept_bias=True"):
        supervised(tiny_path, tmp_path, own={"method": ROW_METHODS["infobatch_kept"]})
    with refused(ConfigError, "streamed", "row_prune_rate=0.4"):
        preferences(tiny_path, tmp_path, own={"method": MINE}, data=pairs().to_iterable_dataset())
    named = supervised(tiny_path, tmp_path, own={"method": "infobatch"}, row_prune_rate=0.2)
    assert named.method.name == "infobatch" and named.method.rows.rate == 0.2
    dotted = supervised(tiny_path, tmp_path, method="dppo.methods.rows:UNIFORM_ROWS")
    assert dotted.method == ROW_METHODS["uniform"]
    with refused(ConfigError, "trainer.method", "'mine'"):
        dotted.method = MINE


def test_a_checkpoint_remembers_it(tiny_path, tmp_path):
    trainer = supervised(tiny_path, tmp_path, own={"method": MINE}, save_strategy="steps", save_steps=2)
    trainer.train()
    settings = json.loads((tmp_path / "checkpoint-2" / OUR_STATE).read_text())["settings"]
    assert settings["method"] == "mine (own)" and settings["method.score"] == "norm"
    with pytest.warns(UserWarning, match=r"resumed with method: 'mine \(own\)' -> 'dppo'"):
        supervised(tiny_path, tmp_path / "other").train(str(tmp_path / "checkpoint-2"))
