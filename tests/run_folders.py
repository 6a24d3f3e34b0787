"""Folders of runs that are made by hand."""

import json


def write_run(place, points, also=lambda step: {}, **facts):
    """A run, finished unless ``facts`` say otherwise; points are (step, seconds, rollouts, accuracy).

    A rollout has 20 tokens, half of them trained on; ``also`` gives further figures of a step.
    """
    place.mkdir(parents=True, exist_ok=True)
    about = {"format": 1, "method": "m", "status": "finished", "error": None, "biased": [], "paper": "p", **facts}
    (place / "run.json").write_text(json.dumps(about))
    lines = [
        {
            "step": step,
            "total/seconds": seconds,
            "total/rollouts": rollouts,
            "total/rollout_tokens": 20 * rollouts,
            "total/tokens_trained": 10 * rollouts,
            "eval/average/pass@1": accuracy,
            **also(step),
        }
        for step, seconds, rollouts, accuracy in points
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
