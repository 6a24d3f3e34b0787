"""Kills a training run at points spread over all of it, resumes it, and compares it with the run left alone.

python -m benchmarks.scale.kills [--points NAME,NAME] [--output benchmarks/results/kills.json]

Points: in a rollout, a backward pass, an optimizer step, and in the middle of each file that a run writes. There the
kernel itself kills the process, when the file has reached half of its length (RLIMIT_FSIZE, SIGXFSZ). Each run is a
separate process, forked from one that has imported everything and computed nothing. The run: a small Qwen3 without
warm-up on the short embedded task, both prunings, two optimizer steps a generation, a checkpoint after each step, of
which two are kept. ``rank`` is one of two ranks over gloo, killed in an optimizer step; ``disk`` a file system with
room for so many percent of a checkpoint (it is mounted, which needs root), on which there is space again before the
resume. What must be equal: the weights, bit for bit, and every line of the records but seconds.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGXFSZ
from typing import IO, Any

import torch

from benchmarks.scale.kill_points import DISK, FIELDS, OF_CHECKPOINTS, POINTS, RANK, RECORDS, parsed, run_fields, train
from benchmarks.shared import Record, options, write
from dppo.errors import DPPOError
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.files import read_lines
from dppo_lab.runs import parts
from dppo_lab.runs.folder import RUN_FILE

LONGEST_WAIT = 60.0
"""Seconds until a rank is interrupted after its peer has ended."""


def in_processes(*works: Callable[[], None]) -> list[tuple[int, str]]:
    """The signal that ended each of forked processes, or 0, and what it raised or printed last.

    One that goes on for long after another has ended is interrupted.
    """
    printed = [tempfile.TemporaryFile("w+") for _ in works]  # noqa: SIM115 closed below
    children = [_forked(work, file) for work, file in zip(works, printed, strict=True)]
    statuses: dict[int, int] = {}
    ended = None
    while len(statuses) < len(children):
        for child in (child for child in children if child not in statuses):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                statuses[child], ended = status, time.monotonic()
            elif ended is not None and time.monotonic() > ended + LONGEST_WAIT:
                os.kill(child, signal.SIGINT)
        time.sleep(0.01)
    outcomes = []
    for child, file in zip(children, printed, strict=True):
        file.seek(0)
        last, status = file.read().strip().splitlines()[-1:], statuses[child]
        file.close()
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        outcomes.append((signalled, "" if not signalled and os.WEXITSTATUS(status) == 0 else "".join(last)))
    return outcomes


def _forked(work: Callable[[], None], printed: IO[str]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            work()
            code = 0
        except BaseException as error:
            raw = "" if isinstance(error, DPPOError) else "raw "
            print(f"\n{raw}{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(code)
    return child


def compared(folder: Path, straight: Path) -> str:
    """The first difference between two runs, empty where there is none."""
    if (folder / "model.safetensors").read_bytes() != (straight / "model.safetensors").read_bytes():
        return "the weights differ"
    for name in RECORDS:
        ours, theirs = (list(records(each / name)) for each in (folder, straight))
        if len(ours) != len(theirs):
            return f"{name} has {len(ours)} lines and not {len(theirs)}"
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if odd := [key for key in {**one, **other} if one.get(key) != other.get(key)]:
                key = odd[0]
                return f"{name}, line {place + 1}: {key} is {one.get(key)!r} and not {other.get(key)!r}"
    return ""


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file without what a clock says, and without transformers' own mean of the loss since the resume."""
    clocks = ("time", "seconds", "_per_second", "runtime", "train_loss")
    for record in read_lines(path, []):
        yield {key: value for key, value in record.items() if not any(word in key for word in clocks)}


def outcomes(work: Path, points: Iterable[str]) -> Iterator[Record]:
    """Kill and resume at every point: whether the run got there, and whether its weights and records are then equal."""
    model, straight = work / "model", work / "straight"

    def prepare() -> None:
        torch.set_num_threads(1)
        build_model(0).save_pretrained(model)
        build_tokenizer().save_pretrained(model)
        train(run_fields(straight, model))

    whole_run(in_processes(prepare))
    sizes, alone = sizes_of(straight), {1: straight}
    for point in points:
        what, _ = parsed(point)
        ranks, folder = 1 + (what == RANK), work / point.replace(":", "_")
        if ranks not in alone:
            alone[ranks] = work / f"straight_{ranks}"
            whole_run(trained(run_fields(alone[ranks], model, ranks), ranks))
        with small_disk(folder, sizes, point) as whole:
            killed, said = trained(run_fields(folder, model, ranks), ranks, point, sizes)[-1]
            found = parts.latest_checkpoint(folder)
            whole()
            again = trained(run_fields(folder, model, ranks), ranks)
            wrong = next((f"signal {ended[0]}: {ended[1]}" for ended in again if ended != (0, "")), "")
            difference = wrong or compared(folder, alone[ranks])
        stopped = said.startswith("CheckpointError") if what == DISK else killed in (SIGKILL, SIGXFSZ)
        yield {
            "point": point,
            "killed": stopped,
            "resumed_from": "the start" if found is None else found.name,
            "equal": not difference,
            "said": difference or ("" if stopped else f"it was not killed: {said}"),
        }
        shutil.rmtree(folder)


def whole_run(ends: list[tuple[int, str]]) -> None:
    """Stop where the run that is left alone did not get to its end."""
    if any(ended != (0, "") for ended in ends):
        raise RuntimeError(f"the run itself does not train: {ends}")


def trained(
    fields: Mapping[str, Any], ranks: int, point: str | None = None, sizes: Mapping[str, int] | None = None
) -> list[tuple[int, str]]:
    """How the processes of a run ended that goes to its end or to a point; of several ranks the last one dies there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank_of(rank: int) -> Callable[[], None]:
        def work() -> None:
            if ranks > 1:
                names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                os.environ |= {name: str(value) for name, value in names.items()}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
            train(fields, point if rank == ranks - 1 else None, sizes)

        return work

    return in_processes(*(rank_of(rank) for rank in range(ranks)))


@contextmanager
def small_disk(folder: Path, sizes: Mapping[str, int], point: str) -> Iterator[Callable[[], None]]:
    """A folder, on a small disk where the point is a full one; yields what frees space."""
    what, percent = parsed(point)
    if what != DISK:
        yield lambda: None
        return
    folder.mkdir()
    room = sum(sizes[name] for name in OF_CHECKPOINTS) * percent // 100 // 4096 * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", f"remount,size={40 * room}", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def sizes_of(straight: Path) -> dict[str, int]:
    """Lengths of the files of a run; of records, of a line."""
    found = {path.name: path.stat().st_size for path in straight.glob("checkpoint-*/*") if path.name in OF_CHECKPOINTS}
    lines = {name: (straight / name).read_bytes().splitlines() for name in RECORDS}
    found |= {name: sum(map(len, each)) // len(each) for name, each in lines.items()}
    return found | {RUN_FILE: (straight / RUN_FILE).stat().st_size}


def main() -> int:
    """Print a table, write JSON."""
    parser = options(__doc__)
    parser.add_argument("--points", help="such as rollout:1,optimizer.pt:2; all by default")
    arguments = parser.parse_args()
    asked = arguments.points.split(",") if arguments.points else POINTS
    found = []
    print("| killed in | resumed from | equal |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        for row in outcomes(Path(work), asked):
            found.append(row)
            verdict = "bit for bit" if row["equal"] and row["killed"] else f"**no**: {row['said']}"
            print(f"| {row['point']} | {row['resumed_from']} | {verdict} |", flush=True)
    write(arguments.output, found, seeds=[FIELDS["seed"]])
    return int(not all(row["equal"] and row["killed"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
