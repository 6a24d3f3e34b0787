"""An evaluation can stop anywhere and go on; what it writes is the same, whole, and never held in memory."""

import json

import numpy as np
import pytest
from evaluation_fakes import FakeJudge, StoppedError, fake_engine, problem_set, sample_lines, stopping_after
from refusals import refused

from answer_judge.errors import ConfigError, JudgeError
from answer_judge.evaluation import Protocol, Sampling, evaluate

TWO = (problem_set(6, "one"), problem_set(5, "two"))


def protocol(**changes):
    return Protocol(**{"sets": TWO, "samples": 3, "sampling": Sampling(max_new_tokens=40), **changes})


def run(folder, engine=None, **changes):
    return evaluate(protocol(**changes), engine or fake_engine(), FakeJudge(), folder)


def test_everything_is_written_and_adds_up_whatever_the_batch_and_the_other_benchmarks(tmp_path):
    results = run(tmp_path / "a")
    lines = [json.loads(line) for line in sample_lines(tmp_path / "a")]
    assert len(lines) == len({(line["id"], line["sample"]) for line in lines}) == 33
    for name, found in results["benchmarks"].items():
        own = [line for line in lines if line["benchmark"] == name]
        assert sum(found["outcomes"].values()) == len(own)
        assert found["outcomes"]["right"] == sum(line["reason"] == "right" for line in own)
        assert found["pass@1"]["value"] == pytest.approx(found["outcomes"]["right"] / len(own))
        assert found["mean_tokens"] == pytest.approx(sum(line["tokens"] for line in own) / len(own))
        assert found["truncated"] == pytest.approx(sum(line["finish"] == "length" for line in own) / len(own))
    rows = [json.loads(line) for line in (tmp_path / "a" / "problems.jsonl").read_text().splitlines()]
    for row in rows:
        own = [line for line in lines if line["id"] == row["id"]]
        assert row["right"] == sum(line["reason"] == "right" for line in own) and row["samples"] == len(own) == 3
        assert row["pass@3"] == float(row["right"] > 0)
    assert len(rows) == 11
    averaged = np.mean([found["pass@1"]["value"] for found in results["benchmarks"].values()])
    assert results["average"]["pass@1"]["value"] == pytest.approx(averaged)
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == json.loads(json.dumps(results))
    run(tmp_path / "b", fake_engine(batch_size=7))
    run(tmp_path / "c", sets=TWO[::-1])
    reference = sorted(sample_lines(tmp_path / "a"))
    assert sorted(sample_lines(tmp_path / "b")) == reference == sorted(sample_lines(tmp_path / "c"))
    run(tmp_path / "d", samples=2)
    assert set(sample_lines(tmp_path / "d")) < set(reference), "the first samples are the same, however many are drawn"


@pytest.mark.parametrize("batches", [0, 1, 4, 8])
def test_interrupted_anywhere_it_ends_with_the_same_samples(tmp_path, batches):
    run(tmp_path / "whole")
    with pytest.raises(StoppedError):
        run(tmp_path / "parts", stopping_after(batches))
    assert not (tmp_path / "parts" / "results.json").exists()
    run(tmp_path / "parts")
    finished = fake_engine()
    run(tmp_path / "parts", finished)
    assert finished.generate.__dict__["calls"] == []
    assert sample_lines(tmp_path / "parts") == sample_lines(tmp_path / "whole")
    for name in ("problems.jsonl", "settings.json"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_other_settings_and_lines_that_do_not_belong_are_refused_by_name(tmp_path):
    run(tmp_path)
    path = tmp_path / "samples.jsonl"
    before = path.read_text()
    for change, named in (
        ({"seed": 1}, "seed"),
        ({"samples": 2}, "benchmarks.one.samples"),
        ({"sampling": Sampling(temperature=1.0, max_new_tokens=40)}, "sampling.temperature"),
        ({"sets": TWO[:1]}, "benchmarks.two"),
        ({"engine": fake_engine(facts={"model": "other"})}, "engine.model"),
    ):
        with refused(ConfigError, "other settings", named):
            run(tmp_path, **change)
        assert path.read_text() == before
    first = json.loads(before.splitlines()[0])
    for line in (*(json.dumps({**first, **change}) for change in ({}, {"id": "x"}, {"sample": 9})), "garbage"):
        path.write_text(f"{before}{line}\n")
        with refused(JudgeError, "line 34"):
            run(tmp_path)


def test_prompts_that_leave_no_room_are_counted(tmp_path):
    results = run(tmp_path, fake_engine(longest=9), sets=(problem_set(11),))
    lengths = [3 + 7 * i % 11 for i in range(11)]
    assert results["benchmarks"]["toy"]["no_room"] == pytest.approx(np.mean([length >= 9 for length in lengths]))
    for line in map(json.loads, sample_lines(tmp_path)):
        room = 9 - lengths[int(line["id"].split("/")[1])]
        assert line["tokens"] <= max(room, 0) and (line["finish"] == "no_room") == (room < 1)


def test_protocols_that_cannot_be():
    sets = (problem_set(2, "one", samples=1), problem_set(2, "two", samples=32))
    assert protocol(sets=sets, samples=None).samples_of == {"one": 1, "two": 32}
    greedy = Sampling(temperature=0.0)
    assert protocol(sets=sets, samples=None, sampling=greedy).samples_of == {"one": 1, "two": 1}
    for change, named in (
        ({"samples": 0}, "samples=0"),
        ({"samples": 4, "ks": (1, 8)}, "k=8"),
        ({"samples": None, "ks": (2,)}, "k=2"),
        ({"seed": -1}, "seed=-1"),
        ({"sampling": greedy}, "temperature=0"),
    ):
        with refused(ConfigError, named):
            protocol(sets=sets, **change)
