"""What the checksums of a checkpoint cost, when it is written and when it is resumed.

python -m benchmarks.scale.checksums [--gigabytes 10] [--output benchmarks/results/checksums.json]

Files of random bytes in a temporary folder, a third weights and two thirds optimizer; read from memory, as they are
right after writing, and from the disk. Also how fast each hash of the standard library is.
"""

import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.shared import Record, options, seconds_of, write
from dppo.trl.checkpoints.files import PIECE, begin, check_contents, flush, seal

GIGABYTE = 10**9
PARTS = {"model.safetensors": 1 / 3, "optimizer.pt": 2 / 3}


def hashes() -> list[Record]:
    """GB per CPU second of each over one gigabyte in memory."""
    piece = os.urandom(PIECE)

    def whole(update: Callable[[bytes], object]) -> None:
        for _ in range(GIGABYTE // PIECE):
            update(piece)

    named = {name: hashlib.new(name).update for name in ("sha256", "blake2b", "sha512", "md5")}
    updates: dict[str, Callable[[bytes], object]] = {"crc32": zlib.crc32, **named}
    return [
        {"figure": name, "unit": "GB/s", "value": 1 / seconds_of(lambda u=u: whole(u), time.process_time)}
        for name, u in updates.items()
    ]


def checkpoint(folder: Path, gigabytes: float) -> list[Record]:
    """Seconds of writing to the disk, of the list with its checksums, and of checking them."""
    piece = os.urandom(PIECE)
    files = {folder / name: int(share * gigabytes * GIGABYTE) for name, share in PARTS.items()}

    def written() -> None:
        for path, size in files.items():
            with path.open("wb") as file:
                for _ in range(size // PIECE):
                    file.write(piece)
        flush(folder, rank=0, every=True)

    def forgotten() -> None:
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    begin(folder)
    steps: dict[str, Callable[[], object]] = {
        "written to the disk": written,
        "listed with checksums": lambda: seal(folder),
        "checked, in memory": lambda: check_contents(folder),
        "checked, from the disk": lambda: check_contents(folder),
    }
    found: list[Record] = []
    for name, step in steps.items():
        if name == "checked, from the disk":
            forgotten()
        busy = time.process_time()
        wall = seconds_of(step)
        found.append({"figure": name, "unit": "s", "value": wall, "cpu_seconds": time.process_time() - busy})
    return found


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = options(__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        records = hashes() + checkpoint(Path(work, "checkpoint-1"), arguments.gigabytes)
    for row in records:
        cpu = f", {row['cpu_seconds']:.2f} CPU s" if "cpu_seconds" in row else ""
        print(f"{row['figure']:30}{row['value']:8.2f} {row['unit']}{cpu}")
    write(arguments.output, records, [])


if __name__ == "__main__":
    main()
