"""One writer for the folder of a run: a lock that ends with its process, and a note that says who holds it."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from answer_judge.errors import FileError
from answer_judge.files import read_json, write_json
from dppo.errors import ConfigError

LOCK_FILE, WRITER_FILE = ".writer.lock", ".writer.json"
PATIENCE = 2.0
"""Seconds to wait for the lock: what a killed process had started may end a moment after it."""


@contextmanager
def sole_writer_of(folder: Path, told: Callable[[str], None] = print) -> Iterator[None]:
    """Meanwhile no other process can become the writer of ``folder``, which is made where needed.

    The system releases the lock of a process that ends, however it ends. What a killed process left is taken over, and
    ``told`` is called with a line about it.

    Raises:
        ConfigError: another process is writing into the folder, or it cannot be written.
    """
    lock, note = FileLock(folder / LOCK_FILE), folder / WRITER_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise ConfigError(
            f"output_dir={folder} is being written by {_noted(note) or 'another process'}. Wait until it ends, stop "
            f"it, or train elsewhere: --output_dir {folder}-2"
        ) from None
    except OSError as error:
        raise ConfigError(f"output_dir={folder} cannot be locked: {error.strerror or error}") from error
    try:
        if before := _noted(note):
            told(f"{folder} is taken over from {before}, which was killed")
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        with suppress(OSError):  # a full disk must not stop a run for want of a note
            write_json(note, {"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def _noted(note: Path) -> str:
    """The process that a note names; empty where there is none."""
    try:
        found = read_json(note, advice="")
    except FileError:
        return ""
    return f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"
