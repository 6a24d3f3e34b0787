"""The demonstration: for each seed a warm start, then GRPO and DPPO from it with equal training seconds."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from answer_judge.files import write_json
from dppo.environment import environment
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo.evaluate import accuracy, difficulty_shares
from dppo_lab.demo.race import RaceSetting, Runner, contestants, race
from dppo_lab.demo.task import FULL, ArithmeticTask, make_split
from dppo_lab.demo.task import QUICK as QUICK_TASK
from dppo_lab.demo.warmup import warm_up
from dppo_lab.statistics import seed_interval

SHARE_SAMPLES = 32
"""Completions per training question from which its difficulty is judged."""
DEFAULT_RACE = RaceSetting()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSetting:
    """The setting of a demonstration; the defaults are those of the README."""

    train: int = 192
    held_out: int = 192
    race: RaceSetting = DEFAULT_RACE
    task: ArithmeticTask = FULL


QUICK = DemoSetting(task=QUICK_TASK, race=RaceSetting(steps=15, evaluations=3, samples=2))
"""Under 90 seconds: it shows that it works, and is too short for measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProgress:
    """One event of a running demonstration."""

    seed: int
    stage: str
    """``warm-up``, or the name of a method."""
    done: float
    """Share of the stage, in [0, 1]."""
    figures: dict[str, float]
    """``loss`` in the warm-up; in a race accuracy, totals and the share kept, named as in training."""


OnProgress = Callable[[DemoProgress], None]


def run_demo(folder: Path, seeds: Sequence[int], setting: DemoSetting, on_progress: OnProgress) -> dict[str, Any]:
    """The results, which are written to ``results.json`` in ``folder`` after every seed, with a checkpoint.

    Each seed has one warm start and one race.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    races, shares, results = [], [], dict[str, Any]()
    for seed in seeds:
        runners, share = run_seed(seed, setting, on_progress)
        races.append(runners)
        shares.append(share)
        results = summarise(races, shares, seeds[: len(races)], setting)  # a stopped run keeps its finished seeds
        results["total_seconds"] = time.perf_counter() - started
        write_json(folder / "results.json", results)
        trained: Qwen3ForCausalLM = runners[-1].loop.model
        trained.save_pretrained(folder / "checkpoint")
        runners[-1].loop.tokenizer.save_pretrained(folder / "checkpoint")
    return results


def run_seed(seed: int, setting: DemoSetting, on_progress: OnProgress) -> tuple[list[Runner], dict[str, float]]:
    """One warm start and one race, and the difficulty of the training questions at the start."""
    tokenizer, model = build_tokenizer(), build_model(seed)

    def warm(step: int, loss: float) -> None:
        done = step / setting.task.warm_up_steps
        on_progress(DemoProgress(seed=seed, stage="warm-up", done=done, figures={"loss": loss}))

    warm_up(model, tokenizer, setting.task, seed=seed, steps=setting.task.warm_up_steps, on_step=warm)
    split = make_split(seed, train=setting.train, held_out=setting.held_out, task=setting.task)
    right_PG = accuracy(model, tokenizer, split.train, SHARE_SAMPLES, torch_generator(seed, Purpose.CHECK))
    right, between, wrong = difficulty_shares(right_PG.double().mean(1))

    def turn(runner: Runner, done: float) -> None:
        on_progress(DemoProgress(seed=seed, stage=runner.name, done=done, figures=figures(runner)))

    methods = contestants()
    runners = race(model, tokenizer, split, methods, setting.race, seed=seed, on_turn=turn)
    return runners, {"nearly_always_right": right, "in_between": between, "nearly_always_wrong": wrong}


def figures(runner: Runner) -> dict[str, float]:
    """The figures of a method so far, by the names of docs/metrics.md; accuracy is on held-out questions."""
    return {
        "total/seconds": runner.seconds,
        "total/rollouts": float(runner.total("rollouts")),
        "prune/kept_share": runner.total("completions_trained") / max(runner.total("rollouts"), 1),
        "accuracy": runner.curve[-1].accuracy,
    }


def summarise(
    races: Sequence[Sequence[Runner]], shares: Sequence[dict[str, float]], seeds: Sequence[int], setting: DemoSetting
) -> dict[str, Any]:
    """The contents of ``results.json``: lists with one figure per seed, by method."""
    methods: dict[str, Any] = {}
    for index, first in enumerate(races[0]):
        records = [runners[index].record() for runners in races]
        methods[first.name] = {name: [record[name] for record in records] for name in records[0]}
    first, *_ = methods.values()
    improved = improves(first["accuracy_start"], first["accuracy_end"])
    for method in methods.values():
        pairs = zip(method["curve"], first["accuracy_end"], strict=True)
        method["seconds_to_grpo_final"] = [seconds_to(curve, target) if improved else None for curve, target in pairs]
    return {
        "methods": methods,
        "difficulty_at_start": list(shares),
        "seeds": list(seeds),
        "grpo_improved": improved,
        "setting": asdict(setting),
        "environment": environment(seeds=list(seeds)),
    }


def improves(starts: Sequence[float], ends: Sequence[float]) -> bool:
    """Whether accuracy rose: the interval over seeds is above 0, or with too few seeds for one, every seed rose.

    Where it did not rise there is no target, and a time to it would mean nothing.
    """
    gain = seed_interval({seed: end - start for seed, (start, end) in enumerate(zip(starts, ends, strict=True))})
    rises = [end - start for start, end in zip(starts, ends, strict=True)]
    return (min(rises) if gain.low is None else gain.low) > 0


def seconds_to(curve: Sequence[dict[str, float]], target: float) -> float | None:
    """Training seconds at which a curve first reaches ``target``, interpolated linearly, or None."""
    for before, after in pairwise(curve):
        if before["accuracy"] >= target:
            return before["seconds"]
        if after["accuracy"] >= target:
            part = (target - before["accuracy"]) / (after["accuracy"] - before["accuracy"])
            return before["seconds"] + part * (after["seconds"] - before["seconds"])
    return None


def fastest_threads() -> int:
    """The number of threads that trains a model of this size fastest, by trying: on busy cores one beats two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model, token_BT = build_model(0), torch.zeros(32, 64, dtype=torch.int64)
    before, seconds = torch.get_num_threads(), {}
    for threads in range(1, min(cores, 2) + 1):
        torch.set_num_threads(threads)
        rounds = []
        for _ in range(4):
            start = time.perf_counter()
            model(input_ids=token_BT, use_cache=False).logits.sum().backward()
            rounds.append(time.perf_counter() - start)
        seconds[threads] = sorted(rounds[1:])[1]
    torch.set_num_threads(before)
    return min(seconds, key=lambda threads: seconds[threads])
