"""What TRL's trainer takes for passes without a gradient where tokens are cut, and for a step where none are.

Parts of ``benchmarks.speed.tokens``. Trainers take turns on the same completions; seconds are CPU seconds.
"""

import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import spread
from benchmarks.speed.step import QUICK_SETTING, Setting, build_bench, ours, run_backend
from benchmarks.speed.turns import StepClock, clock_of_ours

STEPS = 2
"""Optimizer steps of a generation."""
ALL = "all tokens"
CUT = {ALL: 0.0, "cuts 0.5": 0.5, "cuts 0.7": 0.7}
"""The rate of tokens behind a cut, by contestant."""
SUMS: dict[str, Any] = {"loss_type": "dr_grpo", "scale_rewards": "none", "completion_prune_rate": 0.0}
Calls = dict[str, list[tuple[float, int]]]
"""CPU seconds and tokens that were forwarded, padding included, of each pass of a kind."""


def clock_of_passes(trainer: Any, calls: Calls) -> StepClock:
    """The trainer's own clock, with every pass without a gradient added to ``calls``."""
    original = trainer.forwards.log_probs

    def timed(rank_batch: Any, weight_B: Any, model: Any) -> Any:
        tokens: list[int] = []
        count = model.register_forward_pre_hook(
            lambda module, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        start = time.process_time()
        found = original(rank_batch, weight_B, model)
        seconds = time.process_time() - start
        count.remove()
        calls["old" if model is trainer.model else "reference"].append((seconds, sum(tokens)))
        return found

    trainer.forwards.log_probs = timed
    return clock_of_ours(trainer)


def passes(quick: bool, beta: float) -> dict[str, Any]:
    """Seconds and tokens of both passes, each over those of the same generation's pass over all tokens.

    A generation is trained on in two optimizer steps, so the old pass goes over what the second of them keeps; under
    the KL term the reference pass goes over what either keeps.
    """
    setting = QUICK_SETTING if quick else Setting(repetitions=24)
    rows = 32
    parts = setting.prompts * setting.generations // rows
    options = SUMS | {"beta": beta, "gradient_accumulation_steps": parts // STEPS, "steps_per_generation": parts}
    calls: dict[str, Calls] = {name: defaultdict(list) for name in CUT}
    contestants = [
        ours(
            name=name,
            rows=rows,
            clock=partial(clock_of_passes, calls=calls[name]),
            options={**options, "token_prune_rate": rate},
        )
        for name, rate in CUT.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_backend(build_bench(Path(folder), setting), contestants, "decoder")
    first = setting.uncounted // STEPS
    found: dict[str, Any] = {}
    for kind in ("old", "reference"):
        whole = np.array(calls[ALL][kind][first:])
        for name in CUT:
            own = np.array(calls[name][kind][first:])
            share, kept = (own / whole).T
            record = {**spread(share, "share_"), **spread(kept, "tokens_share_"), "cpu_seconds": spread(own[:, 0])}
            found.setdefault(name, {})[kind] = record | {"generations": len(own)}
            print(f"  {name:12} {kind:10} {np.median(share):.3f} of the seconds, {np.median(kept):.3f} of the tokens")
    return found


def left_off(quick: bool) -> dict[str, Any]:
    """Seconds of a step in which ``auto`` cuts no token, since rollouts are dear, over those of one without it.

    A second trainer without it, ``again``, shows how far two that do the same are apart.
    """
    setting = QUICK_SETTING if quick else Setting(repetitions=40)
    at_once = partial(ours, rows=setting.prompts * setting.generations)  # no call without a row of its own
    dear = {"token_prune_rate": "auto", "rollout_cost": 1000.0}
    settings = {"off": SUMS, "auto": SUMS | dear, "again": SUMS}
    contestants = [at_once(name=name, options=options) for name, options in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        taken = run_backend(build_bench(Path(folder), setting), contestants, "replayed")
    off, found = taken["off"], {}
    for name in ("auto", "again"):
        pairs = list(zip(taken[name], off, strict=True))
        if any(own.scored != other.scored for own, other in pairs):
            raise RuntimeError("auto cut tokens: there is no step without cuts to compare")
        ratio = [own.cpu_seconds / other.cpu_seconds for own, other in pairs]
        plan = [(own.phases["prune"] - other.phases["prune"]) / other.seconds for own, other in pairs]
        found[name] = {"steps": len(pairs), **spread(ratio, "ratio_"), **spread(plan, "plan_share_")}
        print(f"  {name:6} {np.median(ratio):.3f} of a step without it, plan longer by {np.median(plan):.4f} of it")
    return found
