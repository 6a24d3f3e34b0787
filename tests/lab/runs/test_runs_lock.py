"""One writer of a run's folder, with real processes; what ended or was killed: ``tests/trl/test_trl_lock.py``."""

import socket

import pytest
from refusals import refused
from small_runs import small_words

from dppo.errors import ConfigError
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.parts import train
from dppo.trl.checkpoints import files
from dppo.trl.checkpoints.files import sole_writer_of


@pytest.fixture
def words(tmp_path, untrained):
    more = ("--embedded_problems", "12", "--save_steps", "1", "--max_steps", "2")
    return small_words(tmp_path / "out", *more, model=untrained, dataset="embedded_quick")


@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite"]], ids=" ".join)
def test_a_second_writer_is_refused_and_changes_nothing(tmp_path, holder, words, more):
    (tmp_path / "out" / "checkpoint-1").mkdir()
    (tmp_path / "out" / "checkpoint-1" / "trainer_state.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with refused(ConfigError, f"process {holder.pid} on {socket.gethostname()} since", f"output_dir: {tmp_path}"):
        train(parse_run([*words, *more]))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_note_that_is_damaged_or_cannot_be_written_stops_nobody(tmp_path, holder, monkeypatch):
    (tmp_path / "out" / files.WRITER_FILE).write_text("{half")
    with refused(ConfigError, "another process"), sole_writer_of(tmp_path / "out"):
        pass
    holder.communicate("")

    def full(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    with sole_writer_of(tmp_path / "out"):
        pass
