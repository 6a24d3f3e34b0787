"""Questions of the chat model's regimes as files, for a machine without reasoning-gym, and their score.

python -m benchmarks.learning.questions FOLDER

Writes ``train.jsonl`` and ``held_out.jsonl``: the questions of ``smollm2.yaml``.
"""

import argparse
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from dppo.lab.files import append_lines
from dppo.lab.gym import last_number, reasoning_gym_task
from dppo.lab.runs.parsing import read_file

CONFIG = Path(__file__).with_name("smollm2.yaml")


def score(completion: str, row: Mapping[str, Any]) -> float:
    """The score of reasoning-gym's ``chain_sum`` for the last number of a completion, in [0, 1].

    A number that contains the right one, such as 112 for 12, gets the right one's share of its characters.
    """
    found, right = last_number(completion), str(row["answer"])
    if found is None:
        return 0.0
    if Decimal(found) == Decimal(right):
        return 1.0
    return len(right) / len(found) if right in found else 0.0


def write_questions(folder: Path) -> None:
    """Write both files into ``folder``, which is made."""
    config = read_file(CONFIG, example=str(CONFIG))
    task = reasoning_gym_task(config["dataset_name"], config["task_arguments"], answer_pattern="number")
    folder.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train", False), ("held_out", True)):
        rows = [{part: row[part] for part in ("problem", "answer")} for row in task.rows(held_out=held_out)]
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        append_lines(path, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    write_questions(parser.parse_args().folder)
