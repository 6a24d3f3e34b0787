"""The folder of a run: one process writes it, and its checkpoints are whole.

The lock of a folder ends with its process, and a note says who holds it. A checkpoint's files are on the disk before
older ones are deleted, and known to be whole before any is read.

transformers writes them one after the other and leaves the disk to itself; what is missing on a resume it passes over
without a word, and so the run goes on with a new optimizer; what is damaged it trains on. Here a list of all files,
their sizes and checksums is written last.
"""

import errno
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from dppo.errors import CheckpointError, ConfigError, FileError, first_line
from dppo.files import flush_folder, read_json, write_json

LOCK_FILE, WRITER_FILE = "_writer.lock", "_writer.json"
"""transformers pushes no name with an underscore in front to the hub."""
PATIENCE = 2.0
"""Seconds to wait for the lock: what a killed process had started may end a moment after it."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""What file systems say that have no locks."""
STATE = "trainer_state.json"
"""What transformers writes last."""
OUR_STATE = "dppo_state.json"
LIST_FILE = "dppo_files.json"
"""Names, sizes and checksums of all others; in every checkpoint that was written to its end."""
PIECE = 1 << 20
"""Bytes of a file that are read at a time."""
OF_ANOTHER_MODEL = ("loading state_dict", "parameter group", "size mismatch")
"""What torch says of files that read, and do not fit."""
TOGETHER = ("optimizer", "learning rate scheduler")
"""Parts that transformers loads both, or neither."""
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".distcp")
"""Endings of the files that a run reads and no user edits: these must be there, and be what was written."""
ITS = "its {}"
"""What ``check_whole`` says of a file that is missing."""
OF_THE_MODEL = ("model", "adapter_model", "pytorch_model")
"""Beginnings of the names of files without which nothing can be resumed."""
RANDOM = "random number generators"
PARTS = {
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*"),
    "learning rate scheduler": ("scheduler.pt",),
    RANDOM: ("rng_state.pth", "rng_state_*.pth"),
}
"""What transformers passes over where it is missing, and the names it has: on one device, under FSDP, DeepSpeed."""


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
    found = content(note)
    return "" if found is None else f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"


def begin(folder: Path) -> None:
    """Make a checkpoint's folder; one of an earlier try at the same step is complete no more."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LIST_FILE, STATE):
            (folder / name).unlink(missing_ok=True)


def flush(folder: Path, *, rank: int, every: bool) -> None:
    """Wait until a checkpoint's files are on the disk; every process calls it when all have written.

    One waits for the files with its ``rank`` in their names, or for all (``every``).
    """
    own = re.compile(rf"(?<!\d){rank}(?!\d)")
    with writing(folder):
        for path in _files(folder):
            if every or own.search(path.name):
                with path.open("rb") as file:
                    os.fsync(file.fileno())


def seal(folder: Path) -> None:
    """List a checkpoint's files: from here on it is complete. One process calls it, when all have flushed theirs."""
    with writing(folder):
        files = _files(folder)
        for inside in {path.parent for path in files}:
            flush_folder(inside)
        named = {path.relative_to(folder).as_posix(): path for path in files}
        sizes = {name: path.stat().st_size for name, path in named.items()}
        sums = {name: checksum(path) for name, path in named.items()}
        write_json(folder / LIST_FILE, {"files": sizes, "crc32": sums})
        flush_folder(folder.parent)


def checksum(path: Path) -> str:
    """CRC-32 of a file in hexadecimal: against damage, of which it misses 1 in 4e9, and not against forgery."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LIST_FILE]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns whatever stops the writing of a checkpoint into an error that names an older one to resume from."""
    try:
        yield
    except (CheckpointError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch has RuntimeError for a full disk, safetensors an exception of its own
        other = _newest_other(folder)
        then = f"resume from {other}" if other else "start the run again, there is no other whole checkpoint"
        said = f"{folder} could not be written ({type(error).__name__}: {first_line(error)})"
        raise CheckpointError(f"{said}. If its disk is full, free space; {then}.") from error


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turns whatever a damaged file raises into an error that says what could not be read."""
    try:
        yield
    except (CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of pickle, zip, safetensors, JSON and torch, each with its own
        if any(word in str(error) for word in OF_ANOTHER_MODEL):
            raise CheckpointError(f"{what} in {folder} belongs to another model or optimizer: {error}") from error
        raise CheckpointError(
            f"{what} in {folder} cannot be read ({type(error).__name__}: {first_line(error)}). {advice(folder)}"
        ) from error


def check_whole(folder: Path, *, same_ranks: bool = True, accept_missing: bool = False) -> list[str]:
    """What a checkpoint lacks, in words; anything but what was accepted is an error. Contents: ``check_contents``.

    Random numbers are of use only where as many processes wrote it (``same_ranks``).
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not there. {advice(folder)}")
    sizes, listed = _sizes(folder)
    # Half a JSON file does not read, which whoever reads it says; a whole one may have been edited.
    for name, size in sizes.items():
        if size != listed[name] and name != OUR_STATE:
            raise CheckpointError(f"{folder / name} has {size} bytes and had {listed[name]}: damaged. {advice(folder)}")
    missing = [name for name in listed if name not in sizes]
    if weights := [name for name in missing if name.startswith(OF_THE_MODEL)]:
        raise CheckpointError(f"{folder} lacks its {' and its '.join(weights)}. {advice(folder)}")
    lacking = _lacking(folder, missing, same_ranks)
    if lacking and not accept_missing:
        found, new = f"lacks {' and '.join(lacking)}", "one"
        if listed and not missing:  # all that was written is there
            found, new = "holds the model alone, as save_only_model: true writes it", "optimizer"
        raise CheckpointError(
            f"{folder} {found}: a resumed run would go on with a new {new}, and be another run. "
            f"{advice(folder)} To go on without it: --accept_missing, or accept_missing=True."
        )
    return lacking


def _sizes(folder: Path, then: str | None = None) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes in bytes of the files that a run reads: those that are there, and all as they were listed."""
    sizes, _ = _listed(folder, then)
    listed = {name: size for name, size in sizes.items() if name.endswith(WEIGHTS) or name == OUR_STATE}
    return {name: (folder / name).stat().st_size for name in listed if (folder / name).is_file()}, listed


def _lacking(folder: Path, missing: list[str], same_ranks: bool = True) -> list[str]:
    """Missing files, and parts of a training state without any file, in words."""
    lacking, known = [ITS.format(name) for name in missing], [*folder.iterdir(), *map(Path, missing)]
    for part, names in PARTS.items():
        wanted = same_ranks or part != RANDOM
        if wanted and not any(path.match(name) for path in known for name in names):
            lacking.append(f"the state of the {part} ({names[0]})")
    lost = [part for part in TOGETHER if any(part in each or PARTS[part][0] in each for each in lacking)]
    if len(lost) == 1:  # transformers loads both or neither
        (other,) = set(TOGETHER) - set(lost)
        lacking.append(f"with it the state of the {other}")
    return lacking


def check_contents(folder: Path, *, reader: int = 0, readers: int = 1) -> list[str]:
    """Names of files that are not what was written, and may have been edited; one of ``WEIGHTS`` is an error.

    A checkpoint of TRL's own trainer has no checksums, and passes. Each file is read by one of the ``readers``.
    """
    sizes, sums = _listed(folder)
    there = sorted((name for name in sums if (folder / name).is_file()), key=lambda name: -sizes[name])
    changed = [name for name in there[reader::readers] if checksum(folder / name) != sums[name]]
    for name in changed:
        if name.endswith(WEIGHTS):
            raise CheckpointError(f"{folder / name} has another checksum than when written: damaged. {advice(folder)}")
    return changed


def _listed(folder: Path, then: str | None = None) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes and checksums of the files that a checkpoint had; none of TRL's own trainer."""
    if not (folder / LIST_FILE).exists():
        return {}, {}
    try:
        found = read_json(folder / LIST_FILE, advice="")
        sizes = {str(name): int(size) for name, size in found["files"].items()}
        return sizes, {name: str(found["crc32"][name]) for name in sizes}
    except (FileError, KeyError, TypeError, ValueError, AttributeError) as error:
        then = advice(folder) if then is None else then
        raise CheckpointError(f"{folder / LIST_FILE} is damaged ({error}). {then}") from error


def advice(folder: Path) -> str:
    """Where to resume from in place of a checkpoint."""
    other = _newest_other(folder)
    return f"Resume from {other}." if other else "There is no other whole checkpoint beside it."


def _newest_other(folder: Path) -> Path | None:
    """The newest other checkpoint that is whole. Its contents are read, so this is for errors alone."""
    others = (path for path in reversed(complete_checkpoints(folder.parent)) if path != folder)
    return next(filter(_sound, others), None)


def _sound(folder: Path) -> bool:
    try:
        sizes, listed = _sizes(folder, "")
        if _lacking(folder, [name for name in listed if name not in sizes]):
            return False
        sums = {folder / name: found for name, found in _listed(folder, "")[1].items() if name.endswith(WEIGHTS)}
        return all(checksum(path) == found for path, found in sums.items())
    except (CheckpointError, OSError):
        return False


def passed_over(folder: Path) -> list[str]:
    """What is wrong with checkpoints of the same run that are newer than one and not complete, a line for each."""
    lines, later = [], [path for path in _numbered(folder.parent) if _number(path) > _number(folder)]
    for path in {*later} - {*complete_checkpoints(folder.parent)}:
        lacks = f"its {STATE} {'does not read' if (path / STATE).exists() else 'is missing'}"
        lines.append(f"{path} is passed over: {lacks if content(path / STATE) is None else f'{LIST_FILE} is missing'}")
    return sorted(lines)


def asked_for(value: str | bool | None) -> str | bool | None:
    """What ``resume_from_checkpoint`` asks for: on a command line True, False and None are words."""
    word = str(value or None).lower()
    return True if word == "true" else None if word in ("false", "none") else value


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a run's folder, or None: one cut off while being written is passed over."""
    return next(reversed(complete_checkpoints(run_folder)), None)


def complete_checkpoints(run_folder: str | Path) -> list[Path]:
    """All complete checkpoints in a run's folder, oldest first."""
    # transformers writes its state last, of this process; our list comes after all processes are done. Checkpoints of
    # TRL's own trainers have neither list nor state of ours.
    return [
        path
        for path in _numbered(Path(run_folder))
        if content(path / STATE) is not None and ((path / LIST_FILE).exists() or not (path / OUR_STATE).exists())
    ]


def _numbered(run_folder: Path) -> list[Path]:
    """Folders of checkpoints, complete or not, oldest first."""
    return sorted((path for path in run_folder.glob("checkpoint-*") if _number(path) >= 0), key=_number)


def _number(folder: Path) -> int:
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else -1


def content(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where it cannot be read."""
    try:
        return read_json(path, advice="")
    except FileError:
        return None
