"""Models made from nothing: once for their arguments, and never one in place of another."""

import pytest

import dppo_lab.cli.eval as scratch
from dppo.errors import ConfigError


def test_made_once_and_told_apart(tmp_path, monkeypatch):
    made = []

    def make(folder, *given, **options):
        folder.mkdir(parents=True)
        made.append(folder.name)

    monkeypatch.setattr(scratch, "prepare_embedded", make)
    monkeypatch.setattr(scratch, "prepare_text", make)
    monkeypatch.setattr(scratch, "load_problems", lambda path: path)

    def prepare(kind, **changes):
        settings = {"seed": 0, "data": "train/sums.jsonl.gz", "minutes": 0.5, **changes}
        return scratch.prepare_scratch(f"scratch:{kind}", tmp_path, **settings)

    calls = [
        ("embedded", {}),
        ("text", {}),
        ("text", {"seed": 1}),
        ("text", {"minutes": 3}),
        ("text", {"data": "b.jsonl"}),
    ]
    places = {prepare(kind, **changes) for kind, changes in calls}
    assert len(places) == 5 == len(made) and "scratch-text-seed0-0.5min-sums" in made
    assert {prepare(kind, **changes) for kind, changes in calls} == places and len(made) == 5


def test_other_names(tmp_path):
    assert scratch.prepare_scratch("owner/model", tmp_path, seed=0, data=None, minutes=1) == "owner/model"
    with pytest.raises(ConfigError, match=r"'scratch:big' is not one of"):
        scratch.prepare_scratch("scratch:big", tmp_path, seed=0, data=None, minutes=1)
    with pytest.raises(ConfigError, match=r"scratch:text learns from worked solutions: --scratch_data FILE"):
        scratch.prepare_scratch("scratch:text", tmp_path, seed=0, data=None, minutes=1)
