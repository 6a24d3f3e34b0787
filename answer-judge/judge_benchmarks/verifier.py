"""What the verifier accepts, how fast it is, and what hostile answers do to it.

python -m judge_benchmarks.verifier [--data FOLDER] [--hostile 10000] [--quick] [--output FILE.json]

FOLDER holds the six sets as gsm8k_test.jsonl, math500.jsonl, ...; without it the gold answers are left out.
"""

import contextlib
import csv
import json
import os
import random
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from answer_judge.grading import verifier as module
from answer_judge.grading.judge import judge, read_gold
from answer_judge.grading.verifier import REASONS, Verifier
from judge_benchmarks.hostile_answers import hostile_answers
from judge_benchmarks.shared import options, write

SEED = 0
PAIRS = Path(__file__).parents[1] / "tests" / "grading" / "verifier_pairs.tsv"
SETS = ("gsm8k_test", "math500", "aime24", "amc23", "minerva_math", "olympiadbench")
PLAIN_BAR = 300.0
"""Plain answers a second on two cores."""
HOSTILE_GOLD = "31415.92653"
HOSTILE_SECONDS = 1.0
MEMORY_MB = 1024
WORKERS = 2


@contextlib.contextmanager
def no_short_cut() -> Iterator[None]:
    """Nothing is compared as text, so that every answer goes to a worker."""
    before = module.plain_match
    module.plain_match = lambda answer, gold: None
    try:
        yield
    finally:
        module.plain_match = before


def table() -> list[dict[str, str]]:
    """The hand-made answers."""
    with PAIRS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def boxed(answer: str) -> str:
    return rf"Thus the answer is $\boxed{{{answer}}}$."


def pair_rows(verifier: Verifier) -> list[dict[str, Any]]:
    """False accepts and false rejects on the table, by kind."""
    counts: Counter[tuple[str, str]] = Counter()
    rejected = []
    for row in table():
        details = json.loads(row["details"] or "null")
        reason = verifier.verify(boxed(row["answer"]), row["gold"], benchmark=row["rule"], details=details).reason
        counts[row["kind"], row["verdict"]] += 1
        if (reason == "right") != (row["verdict"] == "right"):
            counts[row["kind"], "false accept" if reason == "right" else "false reject"] += 1
            rejected.append(f"{row['answer']} for {row['gold']}: {reason}")
    kinds = dict.fromkeys(kind for kind, _ in counts)
    rows = [pair_record(kind, counts) for kind in kinds]
    total: Counter[tuple[str, str]] = Counter()
    for (_, verdict), count in counts.items():
        total["all", verdict] += count
    return [*rows, {**pair_record("all", total), "failures": "; ".join(rejected)}]


def pair_record(kind: str, counts: Counter[tuple[str, str]]) -> dict[str, Any]:
    names = ("right", "wrong", "false accept", "false reject")
    return {"figure": "table", "kind": kind, **{name.replace(" ", "_"): counts[kind, name] for name in names}}


def gold_rows(verifier: Verifier, folder: Path) -> list[dict[str, Any]]:
    """Every gold answer against itself, by the mathematics alone, and with each of its numbers changed."""
    rows = []
    for file in SETS:
        name = file.removesuffix("_test")
        problems = [json.loads(line) for line in (folder / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]
        golds, details = [p["answer"] for p in problems], [p["meta"] for p in problems]
        start = time.perf_counter()
        with no_short_cut():
            verdicts = verifier.verify_many([boxed(gold) for gold in golds], golds, benchmark=name, details=details)
        seconds = time.perf_counter() - start
        changed = [(other, i) for i, gold in enumerate(golds) for other in neighbours(gold)]
        found = verifier.verify_many(
            [boxed(other) for other, _ in changed],
            [golds[i] for _, i in changed],
            benchmark=name,
            details=[details[i] for _, i in changed],
        )
        unread = [p["id"] for p in problems if unreadable(p)]
        rows.append(
            {
                "figure": "gold answers",
                "set": name,
                "rows": len(golds),
                "right": sum(verdict.reason == "right" for verdict in verdicts),
                "compared_as_text": " ".join(unread),
                "numbers_changed": len(changed),
                "changed_accepted": sum(verdict.reason == "right" for verdict in found),
                "seconds": seconds,
            }
        )
    return rows


def unreadable(problem: dict[str, Any]) -> bool:
    """Whether no rule can read a gold answer, so that it is compared as text."""
    meta = problem["meta"]
    return read_gold(problem["answer"], meta.get("is_multiple_answer"), meta.get("unit") or "") is None


def neighbours(gold: str) -> list[str]:
    """The gold answer with one of its numbers made twice as large and one larger, for each of the first four."""
    spans = [number.span() for number in islice(re.finditer(r"\d+", gold), 4)]
    return [f"{gold[:start]}{2 * int(gold[start:end]) + 1}{gold[end:]}" for start, end in spans]


def plain_answers(count: int) -> dict[str, list[tuple[str, str]]]:
    """Different (answer, gold) pairs of the kinds that fill benchmarks, half of them right."""
    rng = random.Random(SEED)
    kinds: dict[str, list[tuple[str, str]]] = {"integers": [], "decimals and fractions": [], "roots and formulas": []}
    for _ in range(count):
        n, m, off = rng.randrange(2, 10**6), rng.randrange(2, 10**6), rng.randrange(2)
        a, b, c = rng.randrange(2, 99), rng.randrange(2, 99), rng.randrange(2, 99)
        kinds["integers"].append((str(n), str(n + off)))
        kinds["decimals and fractions"].append(
            rng.choice(
                [
                    (rf"\frac{{{2 * n}}}{{{2 * m}}}", rf"\frac{{{n}}}{{{m + off}}}"),
                    (f"{n / 100}", f"{(n + off) / 100}"),
                    (f"{n:,}", f"{n + off}.0"),
                    (rf"\${n / 100:.2f}", f"{(n + off) / 100:.2f}"),
                ]
            )
        )
        kinds["roots and formulas"].append(
            rng.choice(
                [
                    (rf"{a}\sqrt{{{b}}}+{c}", rf"{c + off}+{a}\sqrt{{{b}}}"),
                    (rf"\frac{{{a}\pi}}{{{b}}}", rf"\frac{{{a}}}{{{b + off}}}\pi"),
                    (f"{a}x^2+{b}x-{c}", f"{b + off}x+{a}x^2-{c}"),
                    (f"({a}x+1)(x-{b})", f"{a}x^2+{1 - a * b}x-{b + off}"),
                    (f"{a}-{b}i", f"-{b + off}i+{a}"),
                    (f"({a},{b})", f"({a},{b + off})"),
                ]
            )
        )
    return kinds


def throughput_rows(count: int) -> list[dict[str, Any]]:
    """Answers a second of each kind, all different, in batches of 512 on warm workers."""
    rows = []
    mixture: list[tuple[str, str]] = []
    kinds = plain_answers(count)
    for name, pairs in kinds.items():
        mixture += pairs[: {"integers": 6, "decimals and fractions": 3, "roots and formulas": 1}[name] * count // 10]
    random.Random(SEED).shuffle(mixture)
    with Verifier(workers=WORKERS) as verifier:
        warm = [pair for pairs in plain_answers(60).values() for pair in pairs]
        verifier.verify_many([boxed(answer) for answer, _ in warm], [gold for _, gold in warm])
        for name, pairs in {**kinds, "mixture 6:3:1": mixture}.items():
            pairs = list(dict.fromkeys(pairs))
            before = worker_cpu(verifier.pids) + time.process_time()
            start = time.perf_counter()
            for first in range(0, len(pairs), 512):
                batch = pairs[first : first + 512]
                verifier.verify_many([boxed(answer) for answer, _ in batch], [gold for _, gold in batch])
            seconds = time.perf_counter() - start
            cpu = worker_cpu(verifier.pids) + time.process_time() - before
            rows.append(
                {
                    "figure": "throughput",
                    "kind": name,
                    "answers": len(pairs),
                    "workers": WORKERS,
                    "per_second": len(pairs) / seconds,
                    "per_cpu_second": len(pairs) / max(cpu, 1e-9),
                    "bar": PLAIN_BAR,
                }
            )
    return rows


def worker_cpu(pids: list[int]) -> float:
    """Seconds of CPU time that processes have used so far; 0 where the system does not tell."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """The most memory any worker has had, read every 0.1 s, and how many workers there have been."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier, self.largest, self.seen, self.stop = verifier, 0, set[int](), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop.wait(0.1):
            for pid in self.verifier.pids:
                self.seen.add(pid)
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                self.largest = max(self.largest, int(lines.get("VmHWM", "0 kB").split()[0]) // 1024)


def hostile_rows(count: int) -> list[dict[str, Any]]:
    """What becomes of hostile completions, by kind, and what they cost."""
    answers = list(hostile_answers(count, SEED))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    counts: Counter[tuple[str, str]] = Counter()
    longest = 0.0
    start = time.perf_counter()
    with Verifier(workers=WORKERS, limit_seconds=HOSTILE_SECONDS, memory_mb=MEMORY_MB) as verifier:
        watch = Watch(verifier)
        for first in range(0, count, 100):
            batch = answers[first : first + 100]
            began = time.perf_counter()
            verdicts = verifier.verify_many([text for _, text in batch], [HOSTILE_GOLD] * len(batch))
            longest = max(longest, time.perf_counter() - began)
            counts.update((kind, verdict.reason) for (kind, _), verdict in zip(batch, verdicts, strict=True))
        alive = verifier.verify(boxed(r"\frac{6}{4}"), "1.5").reason
        watch.stop.set()
        watch.thread.join()
    kinds = dict.fromkeys(kind for kind, _ in answers)
    rows = [
        {"figure": "hostile", "kind": kind, **{reason: counts[kind, reason] for reason in REASONS}} for kind in kinds
    ]
    totals = {reason: sum(counts[kind, reason] for kind in kinds) for reason in REASONS}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - before
    return [
        *rows,
        {
            "figure": "hostile",
            "kind": "all",
            **totals,
            "answers": count,
            "limit_seconds": HOSTILE_SECONDS,
            "seconds": time.perf_counter() - start,
            "longest_batch_of_100_seconds": longest,
            "worker_memory_limit_mb": MEMORY_MB,
            "worker_peak_mb": watch.largest,
            "caller_growth_mb": memory,
            "workers_seen": len(watch.seen),
            "next_answer": alive,
        },
    ]


def direct(answer: str, gold: str) -> bool:
    """math-verify as its own page calls it."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(boxed(answer))))


def direct_rows() -> list[dict[str, Any]]:
    """The default rule and math-verify called directly on the same answers: where they differ, and who is right."""
    rows, differences = [], Counter[tuple[str, str]]()
    examples: dict[tuple[str, str], list[str]] = {}
    counted = 0
    for row in table():
        if row["rule"] != "default":
            continue
        counted += 1
        ours = judge({"answer": row["answer"], "gold": row["gold"]}) == "right"
        theirs = direct(row["answer"], row["gold"])
        if ours == theirs:
            continue
        who = ("math-verify", "dppo")[ours == (row["verdict"] == "right")]
        what = f"{'right' if row['verdict'] == 'right' else 'wrong'} answer, {who} has it"
        differences[row["kind"], what] += 1
        examples.setdefault((row["kind"], what), []).append(f"{row['answer']} for {row['gold']}")
    for (kind, what), count in sorted(differences.items()):
        rows.append(
            {"figure": "math-verify", "kind": kind, "what": what, "count": count, "example": examples[kind, what][0]}
        )
    totals = Counter[str]()
    for (_, what), count in differences.items():
        totals[what] += count
    return [
        *rows,
        *({"figure": "math-verify", "kind": "all", "what": w, "count": c, "of": counted} for w, c in totals.items()),
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """One line a record."""
    for row in rows:
        values = (f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values())
        print("  ".join(values), flush=True)


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--data", type=Path, help="folder with the six sets")
    parser.add_argument("--hostile", type=int, default=10_000, help="hostile answers")
    arguments = parser.parse_args()
    hostile, plain = (60, 60) if arguments.quick else (arguments.hostile, 3000)
    rows: list[dict[str, Any]] = []
    with Verifier(workers=WORKERS, limit_seconds=30.0) as verifier:
        parts = [lambda: pair_rows(verifier)]
        if arguments.data:
            parts.append(lambda: gold_rows(verifier, arguments.data))
        for part in (*parts, lambda: throughput_rows(plain), direct_rows, lambda: hostile_rows(hostile)):
            found = part()
            show(found)
            rows += found
    write(arguments.output, rows)


if __name__ == "__main__":
    main()
