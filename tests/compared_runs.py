"""Settings and finished runs made by hand, for the tests of the comparison's own scripts, which this finds."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import yaml

from answer_judge.files import write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import embedded_choice as choice
import embedded_compare as compare
import embedded_entries as entries
import embedded_grid as grid
import embedded_sizes as sizes
import embedded_summary as summary
import embedded_tables as tables
from embedded_entries import CONTESTANTS, Chosen, Entry, Setting, known

__all__ = [
    "CONTESTANTS",
    "Chosen",
    "Entry",
    "Setting",
    "choice",
    "compare",
    "entries",
    "grid",
    "known",
    "sizes",
    "summary",
    "tables",
]

POINT = Setting(learning_rate=4e-4, completions=64, group=4)


def chosen_for(names, **changes):
    own = Chosen(setting=replace(POINT, **changes), accuracy=0.5, seconds_per_step=0.4, at_edge=())
    return dict.fromkeys(names, own)


def write_run(folder, name, seed, entry, setting, points, phases=(0.2, 0.1)):
    """A finished run; points are (step, seconds, accuracy), 100 completions of 20 tokens to a second, half trained."""
    place = folder / "runs" / name / f"seed_{seed}"
    place.mkdir(parents=True)
    about = {"format": 1, "method": entry.method, "seed": seed, "status": "finished", "biased": [], "paper": "p"}
    write_json(place / "run.json", {**about, "updates": points[-1][0]})
    made = entry.contestant(name, setting, points[-1][0])
    (place / "config.yaml").write_text(yaml.safe_dump(dict(made.overrides)))
    lines = [
        {
            "step": step,
            "total/seconds": seconds,
            "total/rollouts": 100 * seconds,
            "total/rollout_tokens": 2000 * seconds,
            "total/tokens_trained": 1000 * seconds,
            "eval/average/pass@1": accuracy,
            **({"time/rollout": phases[0], "time/forward_backward": phases[1]} if step else {}),
        }
        for step, seconds, accuracy in points
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
