"""Records of comparisons on the benchmark of methods that learn, by hand."""

import run_folders

from benchmarks.learning import compare
from benchmarks.learning.tune import Setting, overrides
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import Comparison

POINT = Setting(learning_rate=4e-4, completions=64, group=4)


def write_run(folder, name, seed, gain, seconds, steps):
    """A finished run that begins at 0.2, with 100 completions to a second."""

    def also(step):
        silent = {"frac_reward_zero_std": 0.25 if name == "control" else 0.9}
        if step and name == "default":
            silent["prune/completion_rate"] = 0.6
        return silent | ({"time/rollout": 0.2, "time/forward_backward": 0.09, "time/prune": 0.01} if step else {})

    points = [(0, 0, 0, 0.2), (steps, seconds, 100 * seconds, 0.2 + gain)]
    about = {"method": name, "seed": seed, "updates": steps}
    run_folders.write_run(folder / "runs" / name / f"seed_{seed}", points, also, **about)


def recorded(folder, slopes, seeds, best, opponents, targets):
    """The record of a comparison with methods of these slopes; with seed 14 dppo learns nothing."""
    for name, slope in slopes.items():
        for seed in seeds:
            write_run(folder, name, seed, *((0.01, *slope[1:]) if (name, seed) == ("dppo", 14) else slope))
    method, own = {"trl_g8": "trl", "trl": "trl", "dppo": "dppo", "dapo": "dapo"}, overrides({}, POINT, 100, 12)
    contestants = tuple(Contestant(name=name, method=method.get(name, "grpo"), overrides=own) for name in slopes)
    comparison = Comparison(folder=folder, contestants=contestants, seeds=seeds, config={})
    return compare.record_of(comparison, best, opponents, targets)


SEEDS = tuple(range(10, 20))
SLOPES = {
    "trl_g8": (0.3, 80, 100), "trl": (0.4, 80, 100), "grpo_rows": (0.5, 80, 100), "dppo": (0.6, 40, 100),
    "dapo": (0.1, 80, 100),
}  # fmt: skip
"""Accuracy gained over a run, its seconds and steps."""
REGIME = {"control": (0.5, 80, 100), "default": (0.6, 40, 100), "tokens": (0.5, 40, 200), "trl_g8": (0.3, 80, 50)}
