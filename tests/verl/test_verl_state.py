"""Prompts of verl's dataset and their part of a checkpoint, without verl."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from drafts import draft_of
from refusals import refused, warned

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.types import Rewards
from dppo.verl.checkpoint import STATE_FILE, load, resumed_folder, save, settings_to_save
from dppo.verl.prompts import GENERATIONS, Asked, examples, filtered, prompt_source
from dppo.verl.settings import method_of, read_settings


class Rows:
    """verl's dataset as far as it is looked at: a table, and examples by row."""

    def __init__(self, count):
        self.dataframe = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{n}+1="}]} for n in range(count)])

    def __getitem__(self, row):
        return {"raw_prompt": self.dataframe[row]["prompt"], "index": row}


def source_of(dataset, prompts=4, shuffle=True, **options):
    settings = read_settings({"prompt_prune_rate": 0.5, **options})
    return prompt_source(dataset, settings, prompts=prompts, shuffle=shuffle, prompt_key="prompt")


OPTIONS = read_settings({"prompt_prune_rate": 0.5})
METHOD = method_of(OPTIONS, loss_agg_mode="seq-mean-token-mean", penalty=0.0, entropy_coef=0.0)


def step(source, number):
    """One step of a run whose rewards go by the prompt."""
    prompts = source.block(METHOD, number, generations=2)
    reward_N = torch.tensor([[float(row % 3 == 0), 0.0] for row in prompts.row_Q.tolist()], dtype=torch.float64)
    source.learn(draft_of(METHOD, prompts, Rewards.of_groups(reward_N), tokens=5), number)
    return prompts.row_Q.tolist()


SETTINGS = settings_to_save(read_settings({}), {"data.train_batch_size": 4}.get, ranks=8)


def test_a_resumed_source_goes_on_as_the_one_that_was_saved(tmp_path):
    alone, stopped, resumed = (source_of(Rows(8), seed=3) for _ in range(3))
    whole = [step(alone, number) for number in range(1, 9)]
    for number in range(1, 5):
        step(stopped, number)
    save(tmp_path / "global_step_4", stopped, 4, SETTINGS)
    load(tmp_path / "global_step_4", resumed, METHOD, 4, SETTINGS)
    assert [step(resumed, number) for number in range(5, 9)] == whole[4:]
    assert any(len(rows) < 4 for rows in whole[4:])  # prompts were pruned
    fresh = source_of(Rows(8), seed=3)
    assert [step(fresh, number) for number in range(5, 9)] != whole[4:]


def test_what_other_terms_weighed_is_saved_and_a_damaged_one_is_refused(tmp_path):
    source, again = source_of(Rows(8)), source_of(Rows(8))
    source.others = source.others.after(0.3, 1.7)
    save(tmp_path, source, 4, SETTINGS)
    load(tmp_path, again, METHOD, 4, SETTINGS)
    assert again.others == source.others != source_of(Rows(8)).others
    path = tmp_path / STATE_FILE
    written = path.read_text()
    for wrong in ("-0.3", '"much"'):
        path.write_text(written.replace("0.3", wrong))
        with refused(CheckpointError, "damaged"):
            load(tmp_path, again, METHOD, 4, SETTINGS)


def test_scores_of_groups_that_verl_has_filtered_hold_what_other_terms_weighed():
    source = source_of(Rows(8))
    step(source, 1)
    source.others = source.others.after(2.0, 3.0)
    context = filtered(source, METHOD, torch.tensor([3, 1]), 2, generations=2).context
    assert context.others == source.others and context.evidence is source.completions


def test_settings_that_changed_are_named(tmp_path):
    save(tmp_path, source_of(Rows(8)), 4, SETTINGS)
    with warned("data-parallel ranks: 8 -> 4"):
        load(tmp_path, source_of(Rows(8)), METHOD, 4, SETTINGS | {"data-parallel ranks": 4})


def test_a_checkpoint_of_verl_alone_starts_without_a_history_and_says_so(tmp_path):
    source = source_of(Rows(8))
    with warned("dynamic_pruning"):
        load(tmp_path, source, METHOD, 4, SETTINGS)
    assert source.history.seen_share == 0


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: "{}", lambda text: text.replace("4", '"4"', 1)]
)
def test_a_damaged_state_is_refused_with_the_line_that_goes_on(tmp_path, damage):
    save(tmp_path, source_of(Rows(8)), 4, SETTINGS)
    path = tmp_path / STATE_FILE
    path.write_text(damage(path.read_text()))
    with refused(CheckpointError, STATE_FILE, "trainer.resume_mode=resume_path"):
        load(tmp_path, source_of(Rows(8)), METHOD, 4, SETTINGS)


def test_the_state_holds_all_options_as_json_and_is_of_its_own_step(tmp_path):
    save(tmp_path, source_of(Rows(8)), 4, SETTINGS)
    with refused(CheckpointError, "step 4", "step 6"):
        load(tmp_path, source_of(Rows(8)), METHOD, 6, SETTINGS)
    found = json.loads((tmp_path / STATE_FILE).read_text())["settings"]
    assert found["completion_prune_rate"] == "auto" and found["method"] == "dppo" and found["data-parallel ranks"] == 8


def test_the_folder_is_the_one_verl_resumed_from(tmp_path):
    assert resumed_folder(4, None, str(tmp_path)) == tmp_path / "global_step_4"
    assert resumed_folder(4, str(tmp_path / "other" / "global_step_4"), "ckpt") == tmp_path / "other" / "global_step_4"


def test_prompts_come_in_the_order_of_the_file_or_of_the_seed():
    assert step(source_of(Rows(8), shuffle=False), 1) == [0, 1, 2, 3]
    assert step(source_of(Rows(8), seed=1), 1) != step(source_of(Rows(8), seed=2), 1)


def test_examples_carry_their_number_of_completions_where_these_differ():
    rows, size_Q = torch.tensor([5, 2]), torch.tensor([3, 1])
    assert [(e["index"], e[GENERATIONS]) for e in examples(Rows(8), rows, size_Q)] == [(5, 3), (2, 1)]
    assert all(GENERATIONS not in example for example in examples(Rows(8), rows, None))
    asked = Asked(prompts=source_of(Rows(8)).block(METHOD, 1, generations=2), uid_Q=["a", "b"], size_Q=[3, 1])
    assert asked.completions == 4
    for parts, largest in ((1, 5), (2, 7)):
        prompts = source_of(Rows(8)).block(METHOD, 1, generations=2, parts=parts)
        asked = Asked(prompts=prompts, uid_Q=list("abcd"), size_Q=[3, 1, 4, 1])
        assert asked.largest_share(2) == largest, "prompts drawn for a share bring all of their completions"


def test_a_dataset_without_rows_or_with_too_few_is_refused():
    with refused(ConfigError, "'prompt'"):
        source_of(SimpleNamespace())
    with refused(DataError, "3 prompts", "data.train_batch_size=4", "=3"):
        source_of(Rows(3))
    rows = Rows(8)
    rows.dataframe = rows.dataframe.add_column(GENERATIONS, [2] * 8)
    with refused(ConfigError, GENERATIONS, "remove_columns"):
        source_of(rows)
