"""The folder of a run: its one writer, and checkpoints that are complete and unchanged.

A list of all files, with sizes and checksums, is written last. A checkpoint of ours is complete if it has that list.
Transformers writes no list: it resumes from damaged files, and without a missing optimizer, silently.
"""

import errno
import json
import os
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from dppo.errors import CheckpointError, ConfigError, FileError, in_one_line
from dppo.files import flush_folder, read_json, write_json

LOCK_FILE, WRITER_FILE = "_writer.lock", "_writer.json"
"""The underscore in front keeps transformers from pushing them to the hub."""
PATIENCE = 2.0
"""Seconds to wait for the lock: children of a killed process can hold it a moment longer."""
STATE = "trainer_state.json"
"""The file that transformers writes last."""
OUR_STATE = "dppo_state.json"
LIST_FILE = "dppo_files.json"
UNUSABLE, MISSING, EDITED = "damaged, missing or of another version", "missing", "edited"
"""Faults of a file: no run can be resumed; a resumed run is another run; text was changed, maybe on purpose."""
BINARY = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".distcp")
"""Endings of files that no user edits: a change is damage. A change of any other file is a warning."""
RANDOM = "the state of the random numbers (rng_state.pth)"
PARTS = {
    "the state of the optimizer (optimizer.pt with scheduler.pt; save_only_model: true writes neither)": (
        ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*"),
        ("scheduler.pt",),
    ),
    RANDOM: (("rng_state.pth", "rng_state_*.pth"),),
}
"""Parts that transformers starts anew if a file is missing, and names of each file: one device, FSDP, DeepSpeed."""


@contextmanager
def sole_writer_of(folder: Path, report: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the lock of ``folder``, which is made if needed. An inner context of the same thread has no effect.

    ``report`` gets a line if a killed process left the folder, or if its file system has no locks.

    Raises:
        ConfigError: another process is writing into the folder, or it cannot be written.
    """
    lock, note = FileLock(folder.resolve() / LOCK_FILE, is_singleton=True), folder / WRITER_FILE
    with ExitStack() as held:  # it releases the lock after the caller's block
        try:
            if not lock.is_locked:
                folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(lock.acquire(timeout=PATIENCE))
                held.callback(note.unlink, missing_ok=True)
                if before := _noted(note):
                    report(f"{folder} is taken over from {before}, which was killed")
                now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
                with suppress(OSError):  # the note is for messages alone: a full disk must not stop the run here
                    write_json(note, {"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        except Timeout:
            writer = _noted(note) or "another process"
            raise ConfigError(f"output_dir={folder} is written by {writer}. Write output_dir: {folder}-2") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # those of file systems without locks
                raise ConfigError(f"output_dir={folder} cannot be locked: {error.strerror or error}") from error
            report(f"{folder} cannot be locked ({error.strerror}): a second writer would not be noticed")
        yield


def _noted(note: Path) -> str:
    """The process that a note names; empty without one."""
    found = content(note)
    return "" if found is None else f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"


def seal(folder: Path) -> None:
    """Flush a checkpoint's files to the disk and list them, in one process when all have written."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LIST_FILE]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for inside in {path.parent for path in files}:
        flush_folder(inside)
    # Other nodes wrote some of the files. Reading them here makes a shared file system fetch them from those nodes.
    write_json(folder / LIST_FILE, {"files": {path.relative_to(folder).as_posix(): measured(path) for path in files}})
    flush_folder(folder.parent)


def measured(path: Path) -> list[Any]:
    """Size of a file in bytes, and its CRC-32 in hexadecimal: against damage, not against forgery."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
        return [file.tell(), f"{checksum:08x}"]


def find_faults(folder: Path, *, same_ranks: bool = True, reader: int = 0, readers: int = 1) -> dict[str, str]:
    """Files and parts of a checkpoint that are not as they were written, each with its fault.

    Each listed file is read by one of the ``readers``. A checkpoint of TRL's own trainer has no list: only missing
    parts are found. Random numbers are needed only by as many processes as wrote them (``same_ranks``).
    """
    listed = {}
    if (folder / LIST_FILE).exists():
        try:
            entries = read_json(folder / LIST_FILE, advice="")["files"].items()
            listed = {name: [int(size), str(checksum)] for name, (size, checksum) in entries}
        except (FileError, KeyError, TypeError, ValueError, AttributeError):
            return {LIST_FILE: UNUSABLE}
    found, weights = {}, ("model", "adapter_model", "pytorch_model")  # without weights no run can be resumed
    for name in sorted(listed, key=lambda name: -listed[name][0])[reader::readers]:  # largest first, for equal shares
        binary, path, same = name.endswith(BINARY), folder / name, False
        with suppress(OSError):
            same = measured(path) == listed[name]
        if not path.exists() and (binary or name == OUR_STATE) and not name.startswith(weights):
            found[name] = MISSING
        elif not same:
            found[name] = UNUSABLE if binary else EDITED
    for part, files in PARTS.items():
        there = all(any(any(folder.glob(name)) for name in names) for names in files)
        if not there and (same_ranks or part != RANDOM):
            found[part] = MISSING
    return found | ({STATE: UNUSABLE} if content(folder / STATE) is None else {})


def refuse(folder: Path, faults: dict[str, str], *, accept_missing: bool = False) -> None:
    """Raise ``CheckpointError`` if a file is unusable, or missing without ``accept_missing``."""
    accepted = (EDITED, MISSING) if accept_missing else (EDITED,)
    wrong = [f"{name} is {fault}" for name, fault in sorted(faults.items()) if fault not in accepted]
    if wrong:
        accept = "To resume without, as another run: --accept_missing, or accept_missing=True."
        then = advice(folder) if UNUSABLE in faults.values() else f"{advice(folder)} {accept}"
        raise CheckpointError(f"{folder} cannot be resumed: {', '.join(wrong)}. {then}")


@contextmanager
def checkpoint_errors(folder: Path, problem: str) -> Iterator[None]:
    """Turn any error into a ``CheckpointError`` with folder, ``problem`` and a checkpoint to use."""
    try:
        yield
    except (CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # pickle, zip, safetensors, torch and the disk raise kinds of their own
        raise CheckpointError(f"{folder}: {problem} ({in_one_line(error)}). {advice(folder)}") from error


def advice(folder: Path) -> str:
    """A sentence with the newest other sound checkpoint. Reads all contents: for errors and warnings only."""
    others = [path for path, complete in checkpoints_of(folder.parent).items() if complete and path != folder]
    sound = next((path for path in reversed(others) if {*find_faults(path).values()} <= {EDITED}), None)
    return f"Resume from {sound}." if sound else "There is no other whole checkpoint beside it."


def passed_over(folder: Path) -> list[str]:
    """Lines about checkpoints of the same run that are newer than one and incomplete."""
    complete = checkpoints_of(folder.parent)
    newer = [*complete][[*complete].index(folder) + 1 :] if folder in complete else []
    return [f"{path} is passed over: it was not written to its end" for path in newer if not complete[path]]


def asked_for(value: str | bool | None) -> str | bool | None:
    """The value of ``resume_from_checkpoint``: on a command line True, False and None are words."""
    word = str(value or None).lower()
    return True if word == "true" else None if word in ("false", "none") else value


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a run's folder; None without one."""
    return next((path for path, complete in reversed(checkpoints_of(run_folder).items()) if complete), None)


def checkpoints_of(run_folder: str | Path) -> dict[Path, bool]:
    """Checkpoints in a run's folder, oldest first, and True for each that is complete."""
    steps, found = {path.name.removeprefix("checkpoint-"): path for path in Path(run_folder).glob("checkpoint-*")}, {}
    for folder in (steps[step] for step in sorted(filter(str.isdecimal, steps), key=int)):
        # One of TRL's own trainer has neither our list nor our state.
        listed = (folder / LIST_FILE).exists() or not (folder / OUR_STATE).exists()
        found[folder] = listed and content(folder / STATE) is not None
    return found


def content(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if it cannot be read."""
    try:
        return read_json(path, advice="")
    except FileError:
        return None


def weight_names(folder: Path) -> set[str]:
    """Names of the weights that ``save_pretrained`` wrote into a folder, in one file or several; empty without any."""
    if (folder / SAFE_WEIGHTS_NAME).exists():
        with safe_open(folder / SAFE_WEIGHTS_NAME, "pt") as file:
            return {*file.keys()}
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    return {*json.loads(index.read_text(encoding="utf-8"))["weight_map"]} if index.exists() else set()
