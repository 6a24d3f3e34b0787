"""Kills a training run at points spread over all of it, resumes it, and compares it with the run left alone.

python benchmarks/kills.py [--points NAME,NAME] [--output benchmarks/results/kills.json]

Points: in a rollout, a backward pass, an optimizer step, and in the middle of each file that a run writes. There the
kernel itself kills the process, when the file has reached half of its length (RLIMIT_FSIZE, SIGXFSZ). Each run is a
process of its own, forked from one that has imported everything and computed nothing. The run: a small Qwen3 without
warm-up on the short embedded task, both prunings, two optimizer steps a generation, a checkpoint after each step, of
which two are kept. ``rank`` is one of two ranks over gloo, killed in an optimizer step; ``disk`` a file system with
room for so many percent of a checkpoint (it is mounted, which needs root), on which there is space again before the
resume. What must be equal: the weights, bit for bit, and every line of the records but seconds.
"""

import argparse
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGXFSZ
from typing import IO, Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import safetensors.torch
import torch
from results_file import write
from transformers import TrainerCallback

from dppo.demo.model import build_model
from dppo.demo.tokenizer import build_tokenizer
from dppo.errors import DPPOError
from dppo.files import read_lines
from dppo.runs import parts
from dppo.runs.folder import COMPLETIONS_FILE, METRICS_FILE, PROMPTS_FILE, RUN_FILE
from dppo.runs.parsing import parse_fields
from dppo.trl.config import DPPOConfig
from dppo.trl.trainer import DPPOTrainer

STEPS = 8
LONGEST_WAIT = 60.0
"""Seconds after which a rank is interrupted whose peer has ended."""
FIELDS: dict[str, Any] = {
    "dataset_name": "embedded_quick",
    "embedded_problems": 12,
    "reward_funcs": ["embedded"],
    "rollout_func": "embedded",
    "method": "dppo_history",
    "difficulty_features": "length",
    "prompt_prune_rate": 0.3,
    "completion_prune_rate": 0.5,
    "loss_type": "dr_grpo",
    "num_generations": 2,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 16,
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_steps": 1,
    "save_total_limit": 2,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "seed": 3,
}
OF_CHECKPOINTS = (
    *("model.safetensors", "config.json", "tokenizer_config.json", "training_args.bin"),
    *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"),
    *("dppo_state.json", "dppo_history.npz", "dppo_batch_0.safetensors", "dppo_files.json"),
)
RECORDS = (METRICS_FILE, PROMPTS_FILE, COMPLETIONS_FILE)


RANK, DISK = "rank", "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a run is killed."""

    what: str
    """``rollout``, ``backward``, ``optimizer``, the name of a file, ``RANK`` or ``DISK``."""
    time: int
    """The how manieth of these, from 1; of ``RANK`` the optimizer step, of ``DISK`` its percent of a checkpoint."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.what}:{self.time}"


POINTS = (
    *(Point(what="rollout", time=time) for time in (1, 2, 4)),
    *(Point(what="backward", time=time) for time in (1, 4, 7)),
    *(Point(what="optimizer", time=time) for time in (2, 5, 8)),
    *(Point(what=name, time=2 + place % 5) for place, name in enumerate(OF_CHECKPOINTS)),
    *(Point(what=name, time=2) for name in (*RECORDS, RUN_FILE)),
    *(Point(what=RANK, time=time) for time in (3, 6)),
    *(Point(what=DISK, time=time) for time in (30, 60, 120, 150, 230, 290)),
)
"""Files of a generation in use, and of its records, are written at every second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run that was killed."""

    point: str
    killed: bool
    """Whether it got there."""
    resumed_from: str
    """The newest complete checkpoint, or ``the start``."""
    equal: bool
    """Whether weights and records are those of the run left alone."""
    said: str = ""
    """The first difference, or the error of a resume."""


def run_fields(folder: Path, model: Path, ranks: int = 1) -> dict[str, Any]:
    """The fields of the run.

    Args:
        folder: its output.
        model: what it starts from.
        ranks: processes, which share the completions.
    """
    own = {"per_device_train_batch_size": FIELDS["per_device_train_batch_size"] // ranks}
    return {**FIELDS, **own, "model_name_or_path": str(model), "output_dir": str(folder)}


def in_a_process(work: Callable[[], None]) -> tuple[int, str]:
    """The signal that ended a forked process, or 0, and what it raised or printed last.

    Args:
        work: done there.
    """
    (ended,) = in_processes([work])
    return ended


def in_processes(works: Sequence[Callable[[], None]]) -> list[tuple[int, str]]:
    """The same for several that run beside each other; what goes on for long after one has ended is interrupted.

    Args:
        works: one for each process.
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


def train(fields: Mapping[str, Any], point: Point | None = None, sizes: Mapping[str, int] | None = None) -> None:
    """Train a run, or go on with it, and be killed at a point.

    Args:
        fields: of the run.
        point: where; nowhere by default.
        sizes: of files, in bytes, for points in the middle of one.
    """
    torch.set_num_threads(1)
    run = parse_fields(dict(fields), DPPOConfig)
    resume = parts.latest_checkpoint(fields["output_dir"]) is not None
    run = replace(run, data=replace(run.data, resume=resume, overwrite=not resume))
    parts.train_with(DPPOTrainer, run, prepare=aimed(point, sizes or {}))


def aimed(point: Point | None, sizes: Mapping[str, int]) -> Callable[[DPPOTrainer], None]:
    """What prepares a trainer to be killed at a point, in a process of its own: nothing is put back.

    Args:
        point: where; nowhere if None.
        sizes: of files.
    """
    counts: dict[str, int] = {}

    if point is not None and point.what == RANK:
        point = replace(point, what="optimizer")

    def reach(what: str) -> None:
        counts[what] = counts.get(what, 0) + 1
        if point is not None and what == point.what and counts[what] == point.time:
            if what in sizes:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would raise in its place
                grown = sizes[what] * point.time if what in RECORDS else sizes[what]
                resource.setrlimit(resource.RLIMIT_FSIZE, (grown // 2, grown // 2))
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def opened(path: Any) -> None:
        name = Path(os.fsdecode(path)).name
        for known in sizes:
            if name == known or name.startswith(f".{known}."):
                reach(known)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            opened(arguments[0])

    class BeforeSteps(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            reach("optimizer")

    def prepare(trainer: DPPOTrainer) -> None:
        wrapped(trainer, "_generate", lambda: reach("rollout"))
        wrapped(trainer.accelerator, "backward", lambda: reach("backward"))
        trainer.add_callback(BeforeSteps())

    # torch and safetensors open files themselves, so that no audit hook hears of it.
    for module, name in ((torch, "save"), (safetensors.torch, "serialize_file")):
        original = getattr(module, name)

        def saving(content: Any, path: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike):  # ranks send each other objects through torch.save
                opened(path)
            return original(content, path, *args, **kwargs)

        setattr(module, name, saving)
    sys.addaudithook(audit)
    return prepare


def wrapped(owner: Any, name: str, before: Callable[[], None]) -> None:
    """Call something ahead of a method.

    Args:
        owner: of the method.
        name: of the method.
        before: is called.
    """
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        return original(*args, **kwargs)

    setattr(owner, name, call)


def compared(folder: Path, straight: Path) -> str:
    """The first difference between two runs, empty where there is none.

    Args:
        folder: of the one that was killed.
        straight: of the one left alone.
    """
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
    """Lines of a file without what a clock says, and without transformers' own mean of the loss since the resume.

    Args:
        path: of JSON lines.
    """
    clocks = ("time", "seconds", "_per_second", "runtime", "train_loss")
    for record in read_lines(path):
        yield {key: value for key, value in record.items() if not any(word in key for word in clocks)}


def outcomes(work: Path, points: Iterable[Point]) -> Iterator[Outcome]:
    """Kill and resume at every point.

    Args:
        work: an empty folder.
        points: where.

    Raises:
        RuntimeError: the run does not train, killed or not.
    """
    model, straight = work / "model", work / "straight"

    def prepare() -> None:
        torch.set_num_threads(1)
        build_model(0).save_pretrained(model)
        build_tokenizer().save_pretrained(model)
        train(run_fields(straight, model))

    ended = in_a_process(prepare)
    if ended != (0, ""):
        raise RuntimeError(f"the run itself does not train: {ended}")
    sizes, alone = sizes_of(straight), {1: straight}
    for point in points:
        ranks, folder = 1 + (point.what == RANK), work / point.name.replace(":", "_")
        if ranks not in alone:
            alone[ranks] = work / f"straight_{ranks}"
            ends = trained(run_fields(alone[ranks], model, ranks), ranks)
            if any(ended != (0, "") for ended in ends):
                raise RuntimeError(f"the run does not train on {ranks} ranks: {ends}")
        with small_disk(folder, sizes, point) as whole:
            killed, said = trained(run_fields(folder, model, ranks), ranks, point, sizes)[-1]
            found = parts.latest_checkpoint(folder)
            whole()
            again = trained(run_fields(folder, model, ranks), ranks)
            wrong = next((f"signal {ended[0]}: {ended[1]}" for ended in again if ended != (0, "")), "")
            difference = wrong or compared(folder, alone[ranks])
        stopped = said.startswith("CheckpointError") if point.what == DISK else killed in (SIGKILL, SIGXFSZ)
        yield Outcome(
            point=point.name,
            killed=stopped,
            resumed_from="the start" if found is None else found.name,
            equal=not difference,
            said=difference or ("" if stopped else f"it was not killed: {said}"),
        )
        shutil.rmtree(folder)


def trained(
    fields: Mapping[str, Any], ranks: int, point: Point | None = None, sizes: Mapping[str, int] | None = None
) -> list[tuple[int, str]]:
    """How the processes of a run ended that goes to its end, or to a point; of several ranks the last one dies there.

    Args:
        fields: of the run.
        ranks: processes.
        point: where; nowhere by default.
        sizes: of files.
    """
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

    return in_processes([rank_of(rank) for rank in range(ranks)])


@contextmanager
def small_disk(folder: Path, sizes: Mapping[str, int], point: Point) -> Iterator[Callable[[], None]]:
    """A folder on a disk of its own for a point that is a full disk, any other as it is; what is yielded frees space.

    Args:
        folder: of the run.
        sizes: of files.
        point: a ``DISK`` has room for so many percent of a checkpoint.

    Raises:
        subprocess.CalledProcessError: nothing can be mounted here.
    """
    if point.what != DISK:
        yield lambda: None
        return
    folder.mkdir()
    room = sum(sizes[name] for name in OF_CHECKPOINTS) * point.time // 100 // 4096 * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", f"remount,size={40 * room}", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def sizes_of(straight: Path) -> dict[str, int]:
    """Lengths of the files of a run; of records, of a line.

    Args:
        straight: its folder.
    """
    found = {path.name: path.stat().st_size for path in straight.glob("checkpoint-*/*") if path.name in OF_CHECKPOINTS}
    lines = {name: (straight / name).read_bytes().splitlines() for name in RECORDS}
    found |= {name: sum(map(len, each)) // len(each) for name, each in lines.items()}
    return found | {RUN_FILE: (straight / RUN_FILE).stat().st_size}


def main() -> int:
    """Print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", help="such as rollout:1,optimizer.pt:2; all by default")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args()
    names = options.points.split(",") if options.points else [point.name for point in POINTS]
    asked = [Point(what=name.rpartition(":")[0], time=int(name.rpartition(":")[2])) for name in names]
    found = []
    print("| killed in | resumed from | equal |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        for outcome in outcomes(Path(work), asked):
            found.append(outcome)
            verdict = "bit for bit" if outcome.equal and outcome.killed else f"**no**: {outcome.said}"
            print(f"| {outcome.point} | {outcome.resumed_from} | {verdict} |", flush=True)
    if options.output:
        write(options.output, [asdict(each) for each in found], seeds=[FIELDS["seed"]])
    return int(not all(each.equal and each.killed for each in found))


if __name__ == "__main__":
    sys.exit(main())
