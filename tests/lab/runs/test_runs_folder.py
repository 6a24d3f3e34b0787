"""What the writer puts into a run's folder, the reader gets out."""

import json
from dataclasses import asdict, fields

import pytest
from refusals import refused
from small_runs import write_lines

from dppo.errors import ConfigError, FileError
from dppo.lab.runs.folder import PromptLine, RunFacts
from dppo.lab.runs.reader import RunRecord, phases_of, read_facts, read_logs, read_run

FACTS = RunFacts(
    method="dppo",
    describe="what it is",
    paper="arXiv:2603.04135, a title",
    biased=["it says so"],
    seed=3,
    task={"model": "m", "dataset": "d", "prompts": 8},
    config={"beta": 0.0},
    environment={"cores": 2},
    status="finished",
    error="none at all",
    started="2026-01-05T10:00:00+00:00",
    updates=60,
    seconds=12.5,
)
PROMPT = PromptLine(
    step=5, generation=4, epoch=1.5, rows=[1, None], probability=[0.5, 1.0], rolled_out=[True, False],
    rewards=[[0.25, None], []], tokens=[[3, 4], []],
)  # fmt: skip
LOGS = [{"step": 5, "loss": 1.0}, {"step": 10, "eval/average/pass@1": 0.5}]


@pytest.fixture
def folder(tmp_path):
    """A folder as the writer leaves it."""
    (tmp_path / "run.json").write_text(json.dumps(asdict(FACTS)))
    write_lines(tmp_path / "metrics.jsonl", LOGS)
    write_lines(tmp_path / "prompts.jsonl", [asdict(PROMPT)])
    return tmp_path


def test_every_field_that_is_written_is_read(folder):
    run = read_run(folder)
    assert {field.name for field in fields(RunFacts)} <= {field.name for field in fields(RunRecord)}
    for name, value in asdict(FACTS).items():
        assert getattr(run, name) == value, name
    assert run.prompts == (PROMPT,) and list(run.logs) == LOGS
    assert read_facts(folder) == FACTS


def test_damage_and_other_versions_are_errors_that_name_the_file(folder):
    path = folder / "metrics.jsonl"
    path.write_text("nonsense\n" + path.read_text())
    with refused(FileError, "metrics.jsonl", "line 1 is damaged"):
        read_run(folder)
    path.unlink()
    assert read_logs(folder) == ()
    write_lines(folder / "prompts.jsonl", [{"step": 5, "generation": 4}])
    with refused(FileError, "prompts.jsonl", "another version"):
        read_run(folder)
    for damaged, named in (('{"format": 2}', "another format"), ('{"format": 1, "mine": 3}', "another version")):
        (folder / "run.json").write_text(damaged)
        with refused(FileError, "run.json", named):
            read_facts(folder)
    (folder / "run.json").unlink()
    with refused(ConfigError, folder, "run.json", "metrics.jsonl"):
        read_run(folder)


def test_updates_that_were_done_again_count_once(folder):
    """By hand: back at 5, the run does 10 again in 2 s a step, and goes on to 15 in 3 s."""
    steps = [(5, 1.0), (10, 9.0), (15, 9.0), (10, 2.0), (15, 3.0)]
    write_lines(folder / "metrics.jsonl", [{"step": s, "time/rollout": v} for s, v in steps])
    logs = read_logs(folder)
    assert [log["step"] for log in logs] == [5, 10, 15]
    assert phases_of(logs) == {"rollout": pytest.approx(5 * 1.0 + 5 * 2.0 + 5 * 3.0)}
