"""Files that are whole at every moment: replaced at once, or grown by whole lines of JSON.

A file that is replaced is the old one or the new one, never half of either, also after the process is killed or the
machine loses power: the new content is on the disk before it takes the old one's name, and the name is on the disk
before the writer returns. On systems without folders that can be flushed (Windows) the last step is left out: there, a
power cut may bring the old file back.

Lines are appended without flushing the disk, since a record is not worth the wait: a power cut may take the last ones.
Nothing here needs torch.
"""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from answer_judge.errors import FileError


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that replaces ``path`` when the block ends without an error.

    Raises:
        OSError: the folder is missing, or the disk is full or fails. ``path`` and its folder are as they were.
    """
    path = Path(path)
    # In the same folder, or the rename would be a copy; with the process's number, because ranks share folders.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # before the rename: a name may reach the disk ahead of what it names
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, on systems that can."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some network file systems refuse; the new file is in place already
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | Path, value: Any) -> None:
    """Replace a JSON file by ``value``; see ``replacing`` and ``encoded``."""
    with replacing(path) as file:
        file.write(f"{encoded(value, indent=1)}\n".encode("ascii"))


def encoded(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON in ASCII, so any text stays within its line.

    A float that is not finite becomes null. ``indent`` are spaces per level, None for a single line.
    """
    return json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def append_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add one line of JSON per record to a file; lines that do not fit on the disk are taken back, all of this call.

    The file is made where it does not exist, its folder not. Records are as for ``encoded``.

    Raises:
        OSError: there is no room, or the disk fails. The file is as it was.
    """
    lines = "".join(encoded(record) + "\n" for record in records).encode("ascii")
    if not lines:
        return
    with open(path, "ab", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, lines)
        except BaseException:  # a stop may come in the middle of a line, too
            file.truncate(start)
            raise


def _write_all(file: Any, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A context that imports from the current folder first, as ``python -m`` does and installed commands do not."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def sole_writer(path: str | Path, *, advice: str) -> Iterator[None]:
    """Meanwhile no other process can be the sole writer of a file of JSON lines, made with its folder where needed.

    Half a line at its end, of a process that was killed, is cut off first.

    Raises:
        FileError: it cannot be written, or another process is writing it; ``advice`` is the end of the message.
    """
    path = Path(path)
    with explaining(path, advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # not a POSIX system: two writers of one file go unnoticed there
        except OSError as error:
            raise FileError(f"{path} is being written by another process; {advice}") from error
        with explaining(path, advice), path.open("rb") as lines:
            file.truncate(sum(len(line) for line in lines if line.endswith(b"\n")))
        yield


@contextmanager
def explaining(path: str | Path, state: str) -> Iterator[None]:
    """Turns an ``OSError`` into a ``FileError`` about ``path`` that ends with ``state``: what is left, what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; {state}") from error


def read_json(path: str | Path, *, advice: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileError: the file cannot be read, or holds no object; ``advice`` ends the message.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    return value


def read_lines(path: str | Path, *, advice: str = "") -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, in order.

    Raises:
        FileError: a line is damaged or the file missing; ``advice`` is the end of the message.
    """
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode("utf-8"))
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
            except ValueError as error:
                raise FileError(f"{path}, line {number} is damaged ({error}). {advice}") from error
            yield record
