"""A script's own ``trainer.train()`` is the only writer of its folder, as ``dppo train`` is."""

import errno
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import sft_runs
from refusals import refused
from resumed_runs import trainer
from sft_runs import solutions

from dppo.errors import ConfigError
from dppo.trl.checkpoints import files
from dppo.trl.checkpoints.files import LOCK_FILE, WRITER_FILE, sole_writer_of

QUICK = dict(max_steps=2, save_strategy="steps", save_steps=1)


def on_prompts(path, folder, **options):
    return trainer(path, folder, seen=[], **QUICK | options)


def on_rows(path, folder, **options):
    return sft_runs.ours(path, folder, data=solutions(8), **QUICK | options)


@pytest.mark.parametrize("make", [on_prompts, on_rows])
def test_a_second_writer_is_refused_and_changes_nothing(make, tiny_path, tmp_path, holder):
    made = make(tiny_path, tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    with refused(ConfigError, f"process {holder.pid} on {socket.gethostname()} since", f"output_dir: {tmp_path}"):
        made.train()
    assert sorted(tmp_path.rglob("*")) == before and made.state.global_step == 0
    make(tiny_path, tmp_path / "out", save_strategy="no").train()  # it saves nothing, and needs no folder of its own
    holder.communicate("")
    made.train()
    assert made.state.global_step == 2


def test_what_a_killed_writer_left_is_taken_over_with_a_line(tiny_path, tmp_path, holder, capsys):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "out" / WRITER_FILE).exists()
    on_prompts(tiny_path, tmp_path / "out").train()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "taken over" in line]
    assert line.startswith("dppo | ") and f"process {holder.pid} on" in line


def test_a_process_resumes_and_a_run_that_failed_leaves_the_folder_free(tiny_path, tmp_path, capsys):
    def broken(*given, **columns):
        raise ValueError("no reward")

    with refused(Exception, "no reward"):
        on_prompts(tiny_path, tmp_path, reward=broken).train()
    assert set(os.listdir(tmp_path)) == {LOCK_FILE}
    made = on_prompts(tiny_path, tmp_path)
    made.train()
    made.train(resume_from_checkpoint=True)
    again = on_prompts(tiny_path, tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert again.state.global_step == 2 and "taken over" not in capsys.readouterr().out


def test_a_lock_that_the_process_holds_already_is_enough_and_stays_but_not_for_another_thread(
    tiny_path, tmp_path, monkeypatch
):
    """As ``dppo train`` does, from before the model is loaded."""
    monkeypatch.setattr(files, "PATIENCE", 0.1)

    def enter():
        with sole_writer_of(tmp_path):
            pass

    with sole_writer_of(tmp_path):
        on_prompts(tiny_path, tmp_path).train()
        assert (tmp_path / WRITER_FILE).exists()
        with ThreadPoolExecutor() as threads, refused(ConfigError, f"process {os.getpid()} on"):
            threads.submit(enter).result()
    assert not (tmp_path / WRITER_FILE).exists()


def fails(number):
    def failing(*given, **options):
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_a_file_system_without_locks_is_said_and_any_other_failure_refused(number, tmp_path, monkeypatch):
    monkeypatch.setattr(files.FileLock, "acquire", fails(number))
    told, other = [], number == errno.EACCES
    with refused(ConfigError, os.strerror(number)) if other else nullcontext(), sole_writer_of(tmp_path, told.append):
        assert not (tmp_path / WRITER_FILE).exists()
    assert [os.strerror(number) in line for line in told] == [True] * (not other)


def test_a_note_that_is_damaged_or_cannot_be_written_stops_nobody(tmp_path, holder, monkeypatch):
    (tmp_path / "out" / WRITER_FILE).write_text("{half")
    with refused(ConfigError, "another process"), sole_writer_of(tmp_path / "out"):
        pass
    holder.communicate("")
    monkeypatch.setattr(files, "write_json", fails(errno.ENOSPC))
    with sole_writer_of(tmp_path / "out"):
        pass
