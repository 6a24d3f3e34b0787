"""Answers that the verifier accepts, answers a second, and the effect of hostile answers.

python -m judge_benchmarks.verifier [--data FOLDER] [--hostile 10000] [--quick] [--output FILE.json]

FOLDER holds the six sets as gsm8k_test.jsonl, math500.jsonl, ...; without it the gold answers are left out.
"""

import csv
import json
import random
import re
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from answer_judge.grading import verifier as module
from answer_judge.grading.verifier import REASONS, Verifier
from judge_benchmarks.hostile_answers import hostile_answers
from judge_benchmarks.shared import options, write

SEED = 0
PAIRS = Path(__file__).parents[1] / "tests" / "grading" / "verifier_pairs.tsv"
SETS = ("gsm8k_test", "math500", "aime24", "amc23", "minerva_math", "olympiadbench")
HOSTILE_GOLD = "31415.92653"
HOSTILE_SECONDS = 1.0
WORKERS = 2


def boxed(answer: str) -> str:
    return rf"Thus the answer is $\boxed{{{answer}}}$."


def math_verify(answer: str, gold: str) -> bool:
    """math-verify as its own page calls it."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(boxed(answer))))


def pair_rows(verifier: Verifier) -> list[dict[str, Any]]:
    """Verdicts on the pairs made by hand, and math-verify's on those of the default rule."""
    with PAIRS.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    counts: Counter[str] = Counter()
    for row in table:
        details = json.loads(row["details"] or "null")
        found = verifier.verify(boxed(row["answer"]), row["gold"], benchmark=row["rule"], details=details).value == 1.0
        right = row["verdict"] != "wrong"
        counts.update([row["verdict"], *(["false_accept"] if found and not right else [])])
        counts.update(["false_reject"] if row["verdict"] == "right" and not found else [])
        if row["rule"] != "default":
            continue
        theirs = math_verify(row["answer"], row["gold"])
        counts.update(["asked"])
        counts.update(["math_verify_false_accept"] if theirs and not right else [])
        counts.update(["math_verify_false_reject"] if right and not theirs else [])
    return [{"figure": "table", "kind": "all", **counts}]


def gold_rows(verifier: Verifier, folder: Path) -> list[dict[str, Any]]:
    """Every gold answer against itself, by the mathematics alone, and with each of its numbers changed."""
    rows = []
    for file in SETS:
        name = file.removesuffix("_test")
        problems = [json.loads(line) for line in (folder / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]
        golds, details = [p["answer"] for p in problems], [p["meta"] for p in problems]
        with patch.object(module, "plain_match", lambda answer, gold: None):
            verdicts = verifier.verify_many([boxed(gold) for gold in golds], golds, benchmark=name, details=details)
        changed = [(other, i) for i, gold in enumerate(golds) for other in neighbours(gold)]
        found = verifier.verify_many(
            [boxed(other) for other, _ in changed],
            [golds[i] for _, i in changed],
            benchmark=name,
            details=[details[i] for _, i in changed],
        )
        rows.append(
            {
                "figure": "gold answers",
                "set": name,
                "rows": len(golds),
                "right": sum(verdict.reason == "right" for verdict in verdicts),
                "numbers_changed": len(changed),
                "changed_accepted": sum(verdict.reason == "right" for verdict in found),
                "math_verify_accepts": sum(math_verify(other, golds[i]) for other, i in changed),
            }
        )
    return rows


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
    kinds = plain_answers(count)
    shares = {"integers": 6, "decimals and fractions": 3, "roots and formulas": 1}
    mixture = [pair for name, pairs in kinds.items() for pair in pairs[: shares[name] * count // 10]]
    random.Random(SEED).shuffle(mixture)
    with Verifier(workers=WORKERS) as verifier:
        for name, pairs in {"warm": plain_answers(60)["roots and formulas"], **kinds, "mixture 6:3:1": mixture}.items():
            pairs = list(dict.fromkeys(pairs))
            start = time.perf_counter()
            for first in range(0, len(pairs), 512):
                batch = pairs[first : first + 512]
                verifier.verify_many([boxed(answer) for answer, _ in batch], [gold for _, gold in batch])
            per_second = len(pairs) / (time.perf_counter() - start)
            rows.append({"figure": "throughput", "kind": name, "answers": len(pairs), "per_second": per_second})
    return rows[1:]


def hostile_rows(count: int) -> list[dict[str, Any]]:
    """Verdicts on hostile completions by kind."""
    answers = list(hostile_answers(count, SEED))
    counts: Counter[tuple[str, str]] = Counter()
    with Verifier(workers=WORKERS, limit_seconds=HOSTILE_SECONDS) as verifier:
        for first in range(0, count, 100):
            batch = answers[first : first + 100]
            verdicts = verifier.verify_many([text for _, text in batch], [HOSTILE_GOLD] * len(batch))
            counts.update((kind, verdict.reason) for (kind, _), verdict in zip(batch, verdicts, strict=True))
        alive = verifier.verify(boxed(r"\frac{6}{4}"), "1.5").reason
    kinds = dict.fromkeys(kind for kind, _ in answers)
    rows = [{"figure": "hostile", "kind": k, **{reason: counts[k, reason] for reason in REASONS}} for k in kinds]
    all_kinds: dict[str, Any] = {
        **{reason: sum(counts[kind, reason] for kind in kinds) for reason in REASONS},
        "answers": count,
        "limit_seconds": HOSTILE_SECONDS,
        "next_answer": alive,
    }
    return [*rows, {"figure": "hostile", "kind": "all", **all_kinds}]


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
        rows += pair_rows(verifier)
        if arguments.data:
            rows += gold_rows(verifier, arguments.data)
    rows += throughput_rows(plain) + (hostile_rows(hostile) if hostile else [])
    for row in rows:
        print("  ".join(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    write(arguments.output, rows)


if __name__ == "__main__":
    main()
