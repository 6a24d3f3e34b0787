"""The files of a checkpoint: on the disk before older ones are deleted, and known to be whole before any is read.

transformers writes them one after the other and leaves the disk to itself; what is missing on a resume it passes over
without a word, and so the run goes on with a new optimizer. Here a list of all files and their sizes is written last.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dppo.errors import CheckpointError, FileError
from dppo.files import flush_folder, read_json, write_json

STATE = "trainer_state.json"
"""What transformers writes last."""
LIST_FILE = "dppo_files.json"
"""Names and sizes of all others; in every checkpoint that was written to its end."""
RANDOM = "random number generators"
PARTS = {
    "optimizer": ("optimizer.pt", "optimizer.bin", "optimizer_*", "global_step*"),
    "learning rate scheduler": ("scheduler.pt",),
    RANDOM: ("rng_state.pth", "rng_state_*.pth"),
}
"""What transformers passes over where it is missing, and the names it has: on one device, under FSDP, DeepSpeed."""


def begin(folder: Path) -> None:
    """Make a checkpoint's folder; one of an earlier try at the same step is complete no more.

    Args:
        folder: of the checkpoint.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (LIST_FILE, STATE):
            (folder / name).unlink(missing_ok=True)


def seal(folder: Path, *, rank: int, lists: bool) -> None:
    """Wait until a checkpoint is on the disk, then list its files; every process calls it when all have written.

    Args:
        folder: of the checkpoint.
        rank: of this process, which waits for the files with its number in their names.
        lists: whether this process waits for all files, and lists them.

    Raises:
        CheckpointError: there is no room, or the disk fails.
    """
    own = re.compile(rf"(?<!\d){rank}(?!\d)")
    with writing(folder):
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LIST_FILE]
        for path in files:
            if lists or own.search(path.name):
                _flush(path)
        if lists:
            for inside in {path.parent for path in files}:
                flush_folder(inside)
            sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
            write_json(folder / LIST_FILE, {"files": sizes})
            flush_folder(folder.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns whatever stops the writing of a checkpoint into an error that names an older one to resume from."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # torch has RuntimeError for a full disk, safetensors an exception of its own
        older = latest_checkpoint(folder.parent)
        then = f"resume from {older}" if older else "start the run again, there is no other checkpoint"
        said = f"{folder} could not be written ({type(error).__name__}: {_line(error)})"
        raise CheckpointError(f"{said}. Free space on its disk, and {then}.") from error


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turns whatever a damaged file raises into an error that says what could not be read.

    Args:
        folder: of the checkpoint.
        what: is read.
    """
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # of pickle, zip, safetensors, JSON and torch, each with its own
        raise CheckpointError(
            f"{what} in {folder} cannot be read ({type(error).__name__}: {_line(error)}). {advice(folder)}"
        ) from error


def check_whole(folder: Path, *, same_ranks: bool = True, accept_missing: bool = False) -> list[str]:
    """What a checkpoint lacks, in words; anything but what was accepted is an error.

    Args:
        folder: of the checkpoint.
        same_ranks: whether it was written by as many processes; random numbers of others are of no use.
        accept_missing: whether the run may go on without what it lacks.

    Raises:
        CheckpointError: a file is not as long as it was, or one is missing and that was not accepted.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not there. {advice(folder)}")
    listed = _listed(folder)
    sizes = {name: (folder / name).stat().st_size for name in listed if (folder / name).is_file()}
    # Half a JSON file does not read, which whoever reads it says; a whole one may have been edited.
    if short := {name: size for name, size in sizes.items() if size != listed[name] and not name.endswith(".json")}:
        name, size = next(iter(short.items()))
        raise CheckpointError(f"{folder / name} has {size} bytes and had {listed[name]}: damaged. {advice(folder)}")
    missing = [folder / name for name in listed if name not in sizes]
    lacking = [f"its {path.name}" for path in missing]
    for part, names in PARTS.items():
        wanted = same_ranks or part != RANDOM
        known = [*folder.iterdir(), *missing]
        if wanted and not any(path.match(name) for path in known for name in names):
            lacking.append(f"the state of the {part} ({names[0]})")
    if lacking and not accept_missing:
        raise CheckpointError(
            f"{folder} lacks {' and '.join(lacking)}: a resumed run would go on with a new one, and be another run. "
            f"{advice(folder)} To go on without it: --accept_missing, or accept_missing=True."
        )
    return lacking


def _listed(folder: Path) -> dict[str, int]:
    """The files that a checkpoint had; none for one of an earlier version or of TRL's own trainer."""
    if not (folder / LIST_FILE).exists():
        return {}
    try:
        return {str(name): int(size) for name, size in read_json(folder / LIST_FILE, advice="")["files"].items()}
    except (FileError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / LIST_FILE} is damaged ({error}). {advice(folder)}") from error


def advice(folder: Path) -> str:
    """Where to resume from in place of a checkpoint."""
    others = [path for path in complete_checkpoints(folder.parent) if path != folder]
    return f"Resume from {others[-1]}." if others else "There is no other checkpoint beside it."


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a run's folder, or None: one cut off while being written is passed over."""
    return next(reversed(complete_checkpoints(run_folder)), None)


def complete_checkpoints(run_folder: str | Path) -> list[Path]:
    """All complete checkpoints in a run's folder, oldest first."""
    numbered = {}
    for path in Path(run_folder).glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        # transformers writes its state last: if that reads as JSON, all files before it are whole.
        if number.isdigit() and _reads(path / STATE):
            numbered[int(number)] = path
    return [numbered[step] for step in sorted(numbered)]


def _reads(path: Path) -> bool:
    try:
        read_json(path, advice="")
    except FileError:
        return False
    return True


def _line(error: Exception) -> str:
    """The first line of a message, which torch follows by a page of frames."""
    return (str(error).strip() or "no message").splitlines()[0]
