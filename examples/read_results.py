"""What a run wrote, as tables of pandas: how accuracy, seconds and what was pruned go together.

python examples/read_results.py out
"""

import sys
from pathlib import Path

import pandas as pd

folder = Path(sys.argv[1])
logs = pd.read_json(folder / "metrics.jsonl", lines=True)  # every metric: docs/metrics.md
steps = logs.dropna(subset=["prune/kept_share"]).set_index("step")
print(steps[["reward", "prune/kept_share", "prune/largest_weight", "total/rollouts", "total/seconds"]].round(3))

# One line per generation, with a list over its candidates in each column.
prompts = pd.read_json(folder / "prompts.jsonl", lines=True)
visits = prompts[["rows", "rolled_out", "rewards"]].explode(["rows", "rolled_out", "rewards"])
completions = visits[visits["rolled_out"].astype(bool)].explode("rewards").astype({"rewards": float})
print(completions.groupby("rows")["rewards"].agg(["count", "mean"]).sort_values("mean").round(3).head())
