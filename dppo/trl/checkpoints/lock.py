"""One writer for the folder of a run: a lock that ends with its process, and a note that says who holds it."""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from dppo.errors import ConfigError, FileError
from dppo.files import read_json, write_json

LOCK_FILE, WRITER_FILE = "_writer.lock", "_writer.json"
"""transformers pushes no name with an underscore in front to the hub."""
PATIENCE = 2.0
"""Seconds to wait for the lock: what a killed process had started may end a moment after it."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems say that have no locks."""


@contextmanager
def sole_writer_of(folder: Path, told: Callable[[str], None] = print) -> Iterator[None]:
    """Meanwhile no other process can become the writer of ``folder``, which is made where needed.

    The system releases the lock of a process that ends, however it ends. What a killed process left is taken over, and
    ``told`` is called with a line about it. Within such a context of the same thread another one does nothing.

    Raises:
        ConfigError: another process is writing into the folder, or it cannot be written.
    """
    lock, note = FileLock(folder.resolve() / LOCK_FILE, is_singleton=True), folder / WRITER_FILE
    if lock.is_locked or not _taken(lock, folder, note, told):
        yield
        return
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


def _taken(lock: BaseFileLock, folder: Path, note: Path, told: Callable[[str], None]) -> bool:
    """Whether the lock was taken: it is, or that is refused, except on a file system without locks."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise ConfigError(
            f"output_dir={folder} is being written by {_noted(note) or 'another process'}. Wait until it ends, stop "
            f"it, or train elsewhere: output_dir: {folder}-2"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise ConfigError(f"output_dir={folder} cannot be locked: {error.strerror or error}") from error
        told(f"{folder} cannot be locked ({error.strerror}): a second writer would not be noticed")
    return lock.is_locked


def _noted(note: Path) -> str:
    """The process that a note names; empty where there is none."""
    try:
        found = read_json(note, advice="")
    except FileError:
        return ""
    return f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"
