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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from dppo.errors import FileError, did_you_mean

Default = Callable[[Any], Any]
"""What to write in place of a value that JSON has no word for, as in ``json.dumps``."""
WEIGHT_FILES = (".safetensors", ".bin")
"""Endings of files that transformers reads weights from."""
Damage = tuple[int, str]
"""Number of a line, from 1, and what is wrong with it."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write that takes the place of ``path`` when the block ends, and leaves it alone if it raises.

    Raises:
        OSError: there is no folder or no room, or the disk fails. ``path`` is as it was, and nothing lies beside it.
    """
    path = Path(path)
    # In the same folder, or the rename would be a copy; with the process's number, since ranks share folders.
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
    """Wait until the names in a folder are on the disk; without effect where that cannot be asked for."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some network file systems refuse; the new file is in place already
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Put ``text`` in place of a file, as UTF-8; see ``replacing``."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: Any, *, default: Default | None = None) -> None:
    """Put ``value`` in place of a JSON file; see ``replacing`` and ``encoded``."""
    write_text(path, encoded(value, indent=1, default=default) + "\n")


def encoded(value: Any, *, indent: int | None = None, default: Default | None = None) -> str:
    """``value`` as JSON in ASCII: any text, lone surrogates and line breaks included, stays within its line.

    A float that is not finite becomes null. ``indent`` are spaces per level, None for a single line. ``default`` is for
    values that JSON has no word for, which raise ``TypeError`` without it.
    """
    return json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, indent=indent, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def read_json(path: str | Path, *, advice: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileError: it is missing, cannot be read, or holds something else, with the reason, and ``advice`` at the end.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    return value


def read_lines(path: str | Path, *, damaged: list[Damage] | None = None, advice: str = "") -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, in order.

    Without ``damaged`` the first damaged line stops it. With a list, which gets every line that is cut off or no
    record, those are passed over, and so are empty lines; then no file holds no records.

    Raises:
        FileError: a line is damaged or the file missing, without ``damaged``; ``advice`` is the end of the message.
    """
    path = Path(path)
    if damaged is not None and not path.is_file():
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    with file:
        for number, line in enumerate(file, 1):
            if damaged is not None and not line.strip():
                continue
            try:
                # Text that is only to be shown may have bytes that are no text.
                record = json.loads(line.decode("utf-8", errors="strict" if damaged is None else "replace"))
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
            except ValueError as error:
                if damaged is None:
                    raise FileError(f"{path}, line {number} is damaged ({error}). {advice}") from error
                damaged.append((number, str(error)))
            else:
                yield record


def finite_numbers(kind: type, saved: dict[str, Any]) -> Any:
    """A dataclass of numbers from what ``asdict`` made of it; a field may be None where that is its default.

    Raises:
        ValueError: a value is no finite number.
        TypeError: a field is missing, or not one of it.
    """
    optional = {each.name for each in fields(kind) if each.default is None}
    for name, value in saved.items():
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name}={value!r:.60} is no finite number")
    return kind(**saved)


def model_problem(name: str) -> str:
    """What is wrong with the folder that a model's name means; empty where nothing is, or it may be one of the hub."""
    folder = Path(name)
    if folder.is_dir():
        files = list(folder.iterdir())
        if not {"config.json", "adapter_config.json"} & {path.name for path in files}:
            return f"model {name}: the folder has no config.json. Name one that save_pretrained or dppo train wrote"
        if not any(path.suffix in WEIGHT_FILES and path.stem != "training_args" for path in files):
            return f"model {name}: the folder has no weights, such as model.safetensors. Save the model into it again"
    elif name.startswith(("/", ".", "~")) or name.count("/") > 1:  # hub names have at most one slash
        return (
            f"model {name}: no such folder. {near(name)}Give a folder that save_pretrained wrote, or a name of the hub"
        )
    return ""


def near(name: str) -> str:
    """Which folder next to one that is not there may be meant, as a question; empty where none is like it."""
    parent = Path(name).parent
    return did_you_mean(Path(name).name, [path.name for path in parent.iterdir()] if parent.is_dir() else [])


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Modules are looked for in the current folder first, as with ``python -m``; an installed command does not."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
