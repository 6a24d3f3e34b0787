"""Folders of runs and comparisons as training and comparing write them, with figures from a seeded toy."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dppo.methods import METHODS
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import Comparison
from dppo_lab.comparison.results import summarise

TASK = {"model": "scratch:embedded", "dataset": "embedded", "prompts": 96}
ENVIRONMENT = {
    "processor": "Example CPU 3000",
    "cores": 2,
    "gpu": None,
    "system": "Linux x86_64",
    "python": "3.11.9",
    "threads": 1,
    "versions": {"dppo": "0.1.0", "torch": "2.13.0", "trl": "1.16.0"},
    "commit": "0123abc",
}
SECONDS = {"trl": 2.0, "grpo": 1.1, "cppo": 0.8, "greso": 0.9, "dppo_threshold": 0.75, "dppo": 0.6}
"""Seconds per update of each method."""
GROUP = 8


def write_lines(path: Path, records: list[Any]) -> None:
    """One JSON value per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def about_run(method: str, seed: int, **changes: Any) -> dict[str, Any]:
    """What run.json holds."""
    preset = METHODS.get(method)
    return {
        "format": 1,
        "method": method,
        "describe": preset.describe() if preset else f"{method}, as it comes",
        "paper": preset.paper if preset else METHODS["grpo"].paper,
        "biased": list(preset.biases()) if preset else [],
        "seed": seed,
        "task": TASK,
        "config": {"method": method, "learning_rate": 2e-4, "seed": seed, "output_dir": f"runs/{method}/{seed}"},
        "environment": ENVIRONMENT,
        "status": "finished",
        "error": None,
        "started": "2026-01-05T10:00:00+00:00",
        "updates": 60,
        "seconds": 60 * SECONDS.get(method, 1.0),
        **changes,
    }


def logs(method: str, seed: int, updates: int = 60, every: int = 5) -> list[dict[str, Any]]:
    """What metrics.jsonl holds: an evaluation and a log in turn."""
    draw = np.random.default_rng([seed, *map(ord, method)])
    pace = SECONDS.get(method, 1.0) * draw.normal(1, 0.04)
    records: list[dict[str, Any]] = []
    for step in range(0, updates + 1, every):
        gain = 0.62 if method == "trl" else 0.68
        accuracy = 0.12 + gain * (1 - np.exp(-step / 26)) + draw.normal(0, 0.012)
        totals = {
            "total/seconds": step * pace,
            "total/rollouts": step * 128,
            "total/rollout_tokens": step * 128 * 45,
            "total/tokens_trained": step * 1300,
        }
        evaluation = {"eval/embedded/pass@1": accuracy, "eval/average/pass@1": accuracy}
        records.append({"step": step, **evaluation, **totals})
        if step == 0:
            continue
        longest, mean = 82 + draw.normal(0, 3), 46 + draw.normal(0, 2)
        record = {
            "step": step,
            "reward": accuracy,
            "num_tokens": step * 128 * 62,
            "completions/mean_length": mean,
            "completions/max_length": longest,
            **totals,
        }
        if method != "trl":
            kept = 0.3 + 0.05 * draw.random()
            record |= {
                "candidates/reward": accuracy,
                "candidates/epoch": step / 12,
                "prune/kept_share": kept,
                "prune/prompts_kept_share": 0.7 if step > 12 and method in ("dppo", "greso") else 1.0,
                "prune/effective_rows": 128 * kept * 0.8,
                "prune/added_variance": 0.2 + 0.1 * draw.random(),
                "prune/largest_weight": 2.5 + 1.5 * draw.random(),
                "prune/tokens_trained": 128 * kept * mean,
                "prune/tokens_skipped": 128 * (1 - kept) * mean,
                "rows/tokens": 128 * kept * (mean + 16 / 3),
                "rows/padded_tokens": 128 * kept * (longest + 18),
                "rows/sequence_tokens": 128 * kept * (mean + 16),
                "rows/forwards": 1.0,
            }
        else:
            padded = 128 * (longest + 18)
            record |= {"rows/tokens": padded, "rows/padded_tokens": padded, "rows/sequence_tokens": 128 * (mean + 16)}
        parts = {"rollout": 0.62, "reward": 0.02, "prune": 0.01, "log_probs": 0.05, "forward_backward": 0.22}
        record |= {f"time/{phase}": share * pace for phase, share in parts.items()}
        records.append(record)
    return records


def prompts(seed: int, epochs: int = 5) -> list[dict[str, Any]]:
    """What prompts.jsonl holds: easy and hard prompts skipped more and more."""
    draw = np.random.default_rng(seed)
    rows = TASK["prompts"]
    difficulty = draw.random(rows)
    records, generation = [], 0
    for epoch in range(epochs):
        order = draw.permutation(rows)
        for start in range(0, rows, 16):
            block = order[start : start + 16]
            solved = np.clip(1.15 - difficulty[block] + 0.06 * epoch, 0, 1)
            signal = 4 * solved * (1 - solved)
            probability = np.ones(16) if epoch == 0 else np.clip(0.25 + signal, 0.2, 1)
            out = draw.random(16) < probability
            mean = [float(draw.binomial(GROUP, p)) / GROUP if o else None for p, o in zip(solved, out, strict=True)]
            records.append(
                {
                    "step": generation,
                    "generation": generation,
                    "epoch": epoch + start / rows,
                    "rows": block.tolist(),
                    "probability": probability.tolist(),
                    "rolled_out": out.tolist(),
                    "mean_reward": mean,
                }
            )
            generation += 1
    return records


def completions(seed: int, updates: int = 60, every: int = 10, groups: int = 2) -> list[dict[str, Any]]:
    """What completions.jsonl holds: whole groups of logged steps."""
    draw = np.random.default_rng(seed)
    records = []
    for step in range(every, updates + 1, every):
        for group in range(groups):
            reward = (draw.random(GROUP) < 0.5).astype(float)
            spread = reward.std(ddof=1) or 1.0
            for place in range(GROUP):
                advantage = (reward[place] - reward.mean()) / spread
                kept = bool(advantage != 0 and draw.random() < 0.5)
                records.append(
                    {
                        "step": step,
                        "row": int(step + group),
                        "group": group,
                        "prompt": f"What is {step} + {group}?\nThink step by step.",
                        "completion": f"{step} + {group} = {step + place % 2}\nThe answer is \\boxed{{{step}}}.",
                        "reward": reward[place],
                        "advantage": advantage,
                        "probability": 0.5 if advantage else 0.0,
                        "weight": 2.0 if kept else 0.0,
                        "kept": kept,
                        "why": "kept" if kept else "not drawn" if advantage else "zero advantage",
                        "tokens": int(20 + 40 * draw.random()),
                    }
                )
    return records


def write_run(folder: Path, method: str = "dppo", seed: int = 0, updates: int = 60, **changes: Any) -> Path:
    """A whole run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(about_run(method, seed, **changes)))
    write_lines(folder / "metrics.jsonl", logs(method, seed, updates))
    if method != "trl":
        write_lines(folder / "prompts.jsonl", prompts(seed))
        write_lines(folder / "completions.jsonl", completions(seed))
    return folder


def write_comparison(folder: Path, methods: list[str], seeds: int = 5) -> Path:
    """A whole comparison, with the results that its runs have."""
    contestants = tuple(
        Contestant(name=name, method=name, overrides={"learning_rate": 2e-4} if name == "dppo" else {})
        for name in methods
    )
    config = {"model_name_or_path": TASK["model"], "dataset_name": TASK["dataset"]}
    comparison = Comparison(folder=folder, contestants=contestants, seeds=tuple(range(seeds)), config=config)
    for seed, each in comparison.order():
        write_run(comparison.run_folder(each, seed), each.name, seed)
    (folder / "comparison.json").write_text(json.dumps(comparison.as_json()))
    (folder / "results.json").write_text(json.dumps(summarise(comparison)))
    return folder
