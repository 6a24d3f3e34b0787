"""What the writer puts into a run's folder, the reader gets out."""

import json
from dataclasses import asdict, fields, replace

import pytest
from refusals import refused

from dppo.errors import ConfigError, FileError
from dppo.lab.runs.folder import CompletionLine, PromptLine, RunFacts
from dppo.lab.runs.reader import RunRecord, phases_of, read_facts, read_logs, read_run

FACTS = RunFacts(
    method="dppo",
    describe="what it is",
    paper="arXiv:2603.04135, a title",
    biased=("it says so",),
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
COMPLETION = CompletionLine(
    step=5, row=1, group=0, prompt="p", completion="c", reward=1.0, advantage=0.5, probability=0.5, weight=2.0,
    kept=True, why="kept", tokens=7,
)  # fmt: skip
PROMPT = PromptLine(
    step=5, generation=4, epoch=1.5, rows=[1, None], probability=[0.5, 1.0], rolled_out=[True, False],
    mean_reward=[0.25, None],
)  # fmt: skip
LOGS = [{"step": 5, "loss": 1.0}, {"step": 10, "eval/average/pass@1": 0.5}]


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path):
    """A folder as the writer leaves it."""
    (tmp_path / "run.json").write_text(json.dumps(asdict(FACTS)))
    (tmp_path / "metrics.jsonl").write_text(lines(*LOGS))
    (tmp_path / "completions.jsonl").write_text(lines(asdict(COMPLETION)))
    (tmp_path / "prompts.jsonl").write_text(lines(asdict(PROMPT)))
    return tmp_path


def test_every_field_that_is_written_is_read(folder):
    run = read_run(folder)
    assert not {field.name for field in fields(RunFacts)} - {field.name for field in fields(RunRecord)}
    for name, value in asdict(FACTS).items():
        assert getattr(run, name) == value, name
    assert run.completions == (COMPLETION,) and run.prompts == (PROMPT,) and list(run.logs) == LOGS
    assert run.notes == ()
    assert read_facts(folder) == replace(FACTS, biased=["it says so"])


def test_a_strict_reader_gets_an_error_where_a_lenient_one_gets_a_note(folder):
    path = folder / "metrics.jsonl"
    cut = lines(*LOGS) + '{"step": 15, "cut'
    path.write_text(cut)
    assert list(read_logs(folder)) == LOGS, "a last line that a stop cut off is no damage"
    for damaged, named in (
        ("nonsense\n" + cut, "line 1 is damaged (Expecting value"),
        (lines({"loss": 1.0}, *LOGS), "line 1 is damaged (it has no step)"),
    ):
        path.write_text(damaged)
        notes = []
        assert list(read_logs(folder, notes)) == LOGS and named in notes[0] and len(notes) == 1
        with refused(FileError, "metrics.jsonl", named, "--overwrite"):
            read_logs(folder)
    path.unlink()
    assert read_logs(folder) == ()
    (folder / "run.json").write_text('{"format": 2}')
    notes = []
    assert read_facts(folder, notes) is None and "another format than 1" in notes[0]
    with refused(FileError, "run.json", "another format"):
        read_facts(folder)
    (folder / "run.json").unlink()
    with refused(ConfigError, folder, "run.json", "metrics.jsonl"):
        read_run(folder)


def test_updates_that_were_done_again_count_once(folder):
    """By hand: back at 5, the run does 10 again in 2 s a step, and goes on to 15 in 3 s."""
    steps = [(5, 1.0), (10, 9.0), (15, 9.0), (10, 2.0), (15, 3.0)]
    (folder / "metrics.jsonl").write_text(lines(*({"step": s, "time/rollout": v} for s, v in steps)))
    logs = read_logs(folder)
    assert [log["step"] for log in logs] == [5, 10, 15]
    assert phases_of(logs) == {"rollout": pytest.approx(5 * 1.0 + 5 * 2.0 + 5 * 3.0)}
