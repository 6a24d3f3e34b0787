"""What hostile programs do to the sandbox, by kind, and how many programs it judges in a second.

python -m judge_benchmarks.hostile_programs [--count 560] [--workers 2] [--throughput 400] [--output FILE.json]

Twice: in bubblewrap, where that is installed, and without it. Memory is limited to 256 MiB a program.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from answer_judge.sandbox import VERDICTS, Limits, Sandbox, Task
from answer_judge.sandbox.servers import bubblewrap
from judge_benchmarks.hostile_corpus import KINDS, SECRET, hostile_programs, tests
from judge_benchmarks.shared import options, write

LIMITS = Limits(wall_seconds=5.0, cpu_seconds=1, memory_mb=256)


def filtered(memory_mb: int) -> set[int]:
    """Process ids under a filter of system calls and that limit of memory: nothing that a program starts sheds both."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status, limits = (place / "status").read_text(), (place / "limits").read_text()
        except OSError:
            continue
        space = next((line.split()[3] for line in limits.splitlines() if line.startswith("Max address space")), "")
        if "Seccomp:\t2" in status and "State:\tZ" not in status and space == str(memory_mb << 20):
            found.add(int(place.name))
    return found


def left_over(before: set[int], memory_mb: int, seconds: float = 40.0) -> set[int]:
    """Those that were not there before and do not go: programs of another sandbox with the same limit soon do."""
    left, deadline = filtered(memory_mb) - before, time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left &= filtered(memory_mb)
    return left


def attack(sandbox: Sandbox, count: int, chunk: int = 40) -> list[dict[str, Any]]:
    """One row per kind: verdicts, what was accepted, the largest memory; processes left over are in the last row."""
    before, checks = filtered(LIMITS.memory_mb), tests()
    programs = list(hostile_programs(count))
    verdicts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    memory: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    left = set[int]()
    for start in range(0, count, chunk):
        part = programs[start : start + chunk]
        outcomes = sandbox.run_many([Task(text, checks, ("f",)) for _, text in part])
        left |= left_over(before, LIMITS.memory_mb)
        for (kind, _), outcome in zip(part, outcomes, strict=True):
            verdicts[kind][outcome.verdict] += 1
            memory[kind] = max(memory[kind], outcome.memory_mb)
    sandbox.close()
    left |= left_over(before, LIMITS.memory_mb)
    rows = [
        {
            "figure": "attack",
            "kind": kind,
            "programs": verdicts[kind].total(),
            "accepted": verdicts[kind]["right"],
            **{verdict: verdicts[kind][verdict] for verdict in VERDICTS[1:]},
            "largest_mb": memory[kind],
        }
        for kind in KINDS
    ]
    total = {name: sum(row[name] for row in rows) for name in ("programs", "accepted", *VERDICTS[1:])}
    ends = {"processes_left": len(left), "largest_mb": max(memory.values())}
    return [*rows, {"figure": "attack", "kind": "all", **total, **ends}]


def throughput(sandbox: Sandbox, count: int) -> dict[str, Any]:
    """Programs a second that are right, with 20 calls each, all workers at once."""
    sandbox.run(task := Task(f"f = {SECRET}", tests(), ("f",)))
    began, spent = time.perf_counter(), time.process_time()
    outcomes = sandbox.run_many([task] * count)
    seconds = time.perf_counter() - began
    assert all(outcome.verdict == "right" for outcome in outcomes), outcomes[0]
    return {
        "figure": "throughput",
        "programs": count,
        "workers": sandbox.workers,
        "per_second": count / seconds,
        "program_cpu_ms": 1000 * sum(outcome.cpu_seconds for outcome in outcomes) / count,
        "caller_cpu_ms": 1000 * (time.process_time() - spent) / count,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/code.md: both runs added up."""
    found = [row for row in rows if row["figure"] == "attack"]
    columns = ("programs", "accepted", *VERDICTS[1:])
    lines = [f"| kind | {' | '.join(columns)} | largest, MiB |", "|---" * (len(columns) + 2) + "|"]
    for kind in dict.fromkeys(row["kind"] for row in found):
        own = [row for row in found if row["kind"] == kind]
        counts = " | ".join(str(sum(row[name] for row in own) or "") for name in columns[2:])
        asked, taken = (sum(row[name] for row in own) for name in columns[:2])
        lines.append(f"| {kind} | {asked:,} | {taken} | {counts} | {max(row['largest_mb'] for row in own):.0f} |")
    return "\n".join(lines)


def speed(rows: list[dict[str, Any]]) -> str:
    """The table of speed in docs/code.md."""
    lines = ["| | programs a second | CPU of a program, ms | of the caller, ms |", "|---|---|---|---|"]
    for row in (row for row in rows if row["figure"] == "throughput"):
        name = "with bubblewrap" if row["bubblewrap"] else "without"
        cpu = f"{row['program_cpu_ms']:.1f} | {row['caller_cpu_ms']:.1f}"
        lines.append(f"| {name} | {row['per_second']:.0f} | {cpu} |")
    return "\n".join(lines)


def main() -> None:
    """Attack, time, print and write."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=560)
    parser.add_argument("--throughput", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    rows = []
    for wrapper in (bubblewrap(), "") if bubblewrap() else ("",):
        with Sandbox(workers=arguments.workers, limits=LIMITS, wrapper=wrapper) as sandbox:
            print(sandbox.describe())
            held = {"bubblewrap": bool(wrapper), "layers": " ".join(name.replace(" ", "-") for name in sandbox.layers)}
            rows.append({**throughput(sandbox, arguments.throughput), **held})
            print({name: value for name, value in rows[-1].items() if name != "layers"})
            for row in attack(sandbox, arguments.count):
                rows.append({**row, **held})
                cells = ", ".join(f"{row[verdict]} {verdict}" for verdict in VERDICTS[1:] if row[verdict])
                left = f", {row['processes_left']} processes left" if "processes_left" in row else ""
                print(f"{row['kind']:26} {row['programs']:4} accepted {row['accepted']} ({cells}) "
                      f"{row['largest_mb']:.0f} MiB{left}", flush=True)  # fmt: skip
    write(arguments.output, rows)


if __name__ == "__main__":
    main()
