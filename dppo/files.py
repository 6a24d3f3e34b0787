"""Files that are complete at every moment: the old one or the new one, also after a kill or a power cut.

On Windows folders cannot be flushed: there a power cut may bring the old file back. Nothing here needs torch.
"""

import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dppo.errors import FileError, did_you_mean

Default = Callable[[Any], Any]
"""The replacement of a value that JSON cannot hold, as in ``json.dumps``."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that replaces ``path`` when the block ends without an error.

    If the folder is missing or the disk full (``OSError``), ``path`` and its folder are as they were.
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
    with suppress(OSError):  # Windows and some network file systems refuse; the new file is in place already
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file by ``text`` in UTF-8; see ``replacing``."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: Any, *, default: Default | None = None) -> None:
    """Replace a JSON file by ``value``; see ``replacing`` and ``encoded``."""
    write_text(path, encoded(value, indent=1, default=default) + "\n")


def encoded(value: Any, *, indent: int | None = None, default: Default | None = None) -> str:
    """``value`` as JSON in ASCII, so any text stays within its line.

    A float that is not finite becomes null. ``indent`` are spaces per level, None for one line. A value that JSON
    cannot hold raises ``TypeError`` without ``default``.
    """
    return json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, indent=indent, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def read_json(path: str | Path, *, advice: str) -> dict[str, Any]:
    """The object in a JSON file; a ``FileError`` that ends with ``advice`` if it cannot be read."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    return value


def json_lines(path: str | Path, *, advice: str) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, in order; a ``FileError`` that ends with ``advice`` for a damaged line."""
    number = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                number += 1
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
                yield record
    except (OSError, ValueError) as error:
        problem = f", line {number} is damaged" if number else " cannot be read"
        raise FileError(f"{path}{problem} ({error}). {advice}") from error


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """State of JSON values with a checksum, by which ``unsealed`` finds any damage."""
    return {**state, "checksum": _checksum(state)}


def unsealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state that was ``sealed``; ``ValueError`` if it was changed since."""
    rest = {name: value for name, value in state.items() if name != "checksum"}
    if state.get("checksum") != _checksum(rest):
        raise ValueError("it fails its checksum")
    return rest


def _checksum(state: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(_finite(state), sort_keys=True).encode()):08x}"


def model_problem(name: str) -> str:
    """A sentence about the folder of a model; empty if it is fine or the name may be one of the hub."""
    folder = Path(name)
    if not folder.is_dir():
        of_hub = not name.startswith(("/", ".", "~")) and name.count("/") < 2  # those have at most one slash
        return "" if of_hub else f"model {name}: no such folder. {near(name)}Give a folder that save_pretrained wrote"
    files = [path for path in folder.iterdir() if path.stem != "training_args"]
    if not {"config.json", "adapter_config.json"} & {path.name for path in files}:
        return f"model {name}: the folder has no config.json. Give one that save_pretrained or dppo train wrote"
    weights = any(path.suffix in (".safetensors", ".bin") for path in files)
    lacking = f"model {name}: the folder has no weights, such as model.safetensors. Save the model into it again"
    return "" if weights else lacking


def near(name: str) -> str:
    """A question that names the similar folder beside a missing one; empty without one."""
    parent = Path(name).parent
    return did_you_mean(Path(name).name, [path.name for path in parent.iterdir()] if parent.is_dir() else [])


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A context that imports from the current folder first, as ``python -m`` does and installed commands do not."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
