"""Prompts of verl's dataset and their part of a checkpoint, without verl."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from arrays import rewards_of
from datasets import Dataset
from refusals import refused, warned

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.session import Session
from dppo.step import RolledOut
from dppo.step.in_flight import Requested
from dppo.verl.checkpoint import STATE_FILE, load, resumed_folder, save, settings_to_save
from dppo.verl.prompts import GENERATIONS, examples, prompt_source
from dppo.verl.settings import method_of, read_settings
from dppo.verl.support import AGGREGATION, LOG_PROBS


class Section(dict):
    """A section of verl's configuration."""

    __getattr__ = dict.__getitem__


class Rows:
    """verl's dataset as far as it is looked at: a table, and examples by row."""

    def __init__(self, count):
        self.dataframe = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{n}+1="}]} for n in range(count)])

    def __getitem__(self, row):
        return {"raw_prompt": self.dataframe[row]["prompt"], "index": row}


def source_of(dataset, prompts=4, shuffle=True, **options):
    settings = read_settings({"prompt_prune_rate": 0.5, **options})
    return prompt_source(dataset, settings, Section(train_batch_size=prompts, shuffle=shuffle))


OF_VERL = {AGGREGATION: "seq-mean-token-mean", LOG_PROBS: True}
METHOD = method_of(read_settings({"prompt_prune_rate": 0.5}), OF_VERL.get)
SETTINGS = settings_to_save(read_settings({}), {"data.train_batch_size": 4}.get, ranks=8)


def session_of(dataset, seed=0, **options):
    return Session(METHOD, source_of(dataset, seed=seed, **options), seed=seed, generations=2, max_tokens=5)


def step(session, number):
    """One step of a run whose rewards go by the prompt."""
    prompts = session.prompts(number=number)
    rewards = rewards_of(*([row % 3 == 0, 0] for row in prompts.row_Q.tolist()))
    tokens_N = torch.full((len(rewards),), 5)
    session.plan(prompts, RolledOut(rewards=rewards, tokens_N=tokens_N, uncertainty_N=tokens_N.sqrt()), number=number)
    return prompts.row_Q.tolist()


def test_prompts_come_in_the_order_of_the_file_or_of_the_seed_and_a_resumed_source_goes_on(tmp_path):
    assert step(session_of(Rows(8), shuffle=False), 1) == [0, 1, 2, 3]
    assert step(session_of(Rows(8), seed=1), 1) != step(session_of(Rows(8), seed=2), 1)
    alone, stopped, resumed = (session_of(Rows(8), seed=3) for _ in range(3))
    whole = [step(alone, number) for number in range(1, 9)]
    for number in range(1, 5):
        step(stopped, number)
    save(tmp_path / "global_step_4", stopped, 4, SETTINGS)
    load(tmp_path / "global_step_4", resumed, 4, SETTINGS)
    assert [step(resumed, number) for number in range(5, 9)] == whole[4:]
    assert any(len(rows) < 4 for rows in whole[4:])  # prompts were pruned
    fresh = session_of(Rows(8), seed=3)
    assert [step(fresh, number) for number in range(5, 9)] != whole[4:]


def test_scores_of_groups_that_verl_has_filtered_hold_what_other_terms_weighed():
    session = session_of(Rows(8))
    step(session, 1)
    session.observe_terms(2.0, 3.0)
    prompts, samples = session.source.given(session.method, torch.tensor([3, 1]), 2, generations=2), session.samples
    rolled_out = RolledOut(rewards=rewards_of([1, 0], [0, 1]), tokens_N=torch.ones(4), uncertainty_N=torch.ones(4))
    context = session.plan(prompts, rolled_out, number=2).prompts.context
    assert context.others == session.others and context.samples is samples


def test_what_a_resumed_run_does_not_find_as_it_was_is_named(tmp_path):
    session = session_of(Rows(8))
    with warned("dynamic_pruning"):
        load(tmp_path, session, 4, SETTINGS)
    assert session.source.history.observations == 0, "a checkpoint of verl alone starts without a history"
    save(tmp_path, session, 4, SETTINGS)
    with warned("data-parallel ranks: 8 -> 4"):
        load(tmp_path, session, 4, SETTINGS | {"data-parallel ranks": 4})
    with refused(CheckpointError, "step 4", "step 6"):
        load(tmp_path, session, 6, SETTINGS)
    path = tmp_path / STATE_FILE
    written = path.read_text()
    found = json.loads(written)["settings"]
    assert found["completion_prune_rate"] == "auto" and found["method"] == "dppo" and found["data-parallel ranks"] == 8
    for damaged in (written[:-9], "{}", written.replace("4", '"4"', 1)):
        path.write_text(damaged)
        with refused(CheckpointError, STATE_FILE, "trainer.resume_mode=resume_path"):
            load(tmp_path, session, 4, SETTINGS)


def test_the_folder_is_the_one_verl_resumed_from(tmp_path):
    given = Section(resume_mode="auto", resume_from_path="other/global_step_4", default_local_dir=str(tmp_path))
    assert resumed_folder(4, given) == tmp_path / "global_step_4"
    assert resumed_folder(4, Section(given, resume_mode="resume_path")) == Path("other/global_step_4").absolute()


def test_examples_carry_their_number_of_completions_where_these_differ():
    rows, size_Q = torch.tensor([5, 2]), torch.tensor([3, 1])
    assert [(e["index"], e[GENERATIONS]) for e in examples(Rows(8), rows, size_Q)] == [(5, 3), (2, 1)]
    assert all(GENERATIONS not in example for example in examples(Rows(8), rows, None))
    for parts, largest in ((1, 5), (2, 7)):
        prompts = source_of(Rows(8)).block(METHOD, 1, generations=2, parts=parts)
        asked = Requested(prompts=prompts, uid_Q=list("abcd"), size_Q=[3, 1, 4, 1])
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
