"""Runs on two ranks: our gradient against TRL's, then a pruned run whose ranks must stay in step. Prints JSON."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from killed_runs import auto
from sft_two_ranks import RESUMED, RUNS, apart, run_on_rows
from tiny_runs import (
    ACCUMULATED,
    CUT,
    GENERATIONS,
    ROUNDS,
    SHARES,
    UNEVEN,
    first_half_reward,
    length_reward,
    logged,
    relative_difference,
    scripted,
    two_generations,
)
from trl_gradients import constant, dppo_run, trl_run
from trl_recorder_runs import make

from dppo.methods import from_settings as method_settings
from dppo.pruning import Auto
from dppo.trl.forwards import ForwardPasses
from dppo.trl.grpo import rollouts
from dppo.trl.layouts import RowLayout
from dppo.trl.safeguards import _end_group

over_ranks = rollouts.over_ranks
HALF = {"per_device_train_batch_size": 4 * GENERATIONS}


def at_home(batch, plan, accelerator, **_):
    """Every rank trains on what it rolled out, so one may have nothing."""
    return batch


def often(path: str, folder: str) -> dict:
    results = {}
    for loss_type in ("dapo", "grpo"):
        stock, trainer = trl_run(path, Path(folder), loss_type=loss_type, **HALF)
        assert trainer.accelerator.num_processes == 2  # launchers fall back to one process without a word
        mine, _ = dppo_run(path, Path(folder), loss_type=loss_type, completion_prune_rate=0.0, **HALF)
        results[loss_type] = relative_difference(*(unwrapped(steps)[0] for steps in (mine, stock)))

    rates = dict(prompt_prune_rate=0.5, completion_prune_rate=0.5, loss_type="grpo", max_steps=6)
    _, trainer = dppo_run(path, Path(folder), **rates, **HALF)
    results["apart"] = apart(trainer)
    results["kept"] = logged(trainer, "prune/kept_share")

    _, trainer = dppo_run(path, Path(folder), reward=constant, max_steps=2, **HALF)
    results["steps_without_rows"] = trainer.state.global_step
    for dealing in (over_ranks, at_home):
        name = f"uneven {dealing.__name__}"
        with patch.object(rollouts, "over_ranks", dealing):
            results[name] = uneven(path, folder, name, completion_prune_rate=0.5, **HALF)
    with patch.object(rollouts, "over_ranks", at_home):
        for name, twin in {"last calls": ForwardPasses.calls, "first calls": in_first_calls}.items():
            with patch.object(ForwardPasses, "calls", twin):
                options = ACCUMULATED | {"per_device_train_batch_size": GENERATIONS}
                results[name] = uneven(path, folder, name, **options)
    for kind in RESUMED:
        run_on_rows(path, Path(folder, kind), kind)
    return results


def further(path: str, folder: str) -> dict:
    high = dict(top_entropy_quantile=0.3, loss_type="grpo", **HALF)
    stock, _ = trl_run(path, Path(folder), **high)
    mine, _ = dppo_run(path, Path(folder), completion_prune_rate=0.0, **high)
    results = {"high entropies": relative_difference(*(unwrapped(steps)[0] for steps in (mine, stock)))}
    # An odd number of prompts on two ranks with an odd group: the selection is rounded so that rows divide.
    odd = dict(prompts=6, per_device_train_batch_size=9, num_generations=3, prompt_prune_rate=0.5, max_steps=4)
    _, trainer = dppo_run(path, Path(folder), rollout=None, reward=length_reward, **odd)
    results["odd"] = logged(trainer, "prune/prompts_kept_share")
    results["odd_apart"] = apart(trainer)
    method_settings.RATES["prompt_prune_rate"] = Auto(fewest=8, least_gain=1.0)
    chosen = dict(prompt_prune_rate="auto", completion_prune_rate="auto", loss_type="grpo", reward=first_half_reward)
    _, trainer = dppo_run(path, Path(folder), max_steps=4, **chosen, **HALF)
    results["auto apart"] = apart(trainer)
    results["auto rates"] = logged(trainer, "prune/prompt_rate")
    results["auto resumed"] = auto_resumed(path, Path(folder, "auto"))
    with patch.object(rollouts, "over_ranks", at_home):
        results["two generations"] = uneven(path, folder, "two generations", **two_generations(ranks=2))
    steps, trainer = dppo_run(path, Path(folder), **CUT, **HALF)
    results["tokens trained on"] = logged(trainer, "prune/tokens_trained")
    save(steps, folder, "tokens")
    quarter = HALF | {"per_device_train_batch_size": 2 * GENERATIONS}
    save(dppo_run(path, Path(folder), **SHARES, **quarter)[0], folder, "shares")
    for method, loss_type in (("dapo", "dapo"), ("greso", "grpo")):
        options = ROUNDS | {"method": method, "loss_type": loss_type, "per_device_train_batch_size": 2 * GENERATIONS}
        steps, trainer = dppo_run(path, Path(folder), **options)
        results[f"{method} apart"] = apart(trainer)
        results[f"{method} rounds"] = logged(trainer, "rollout/rounds")
        results[f"{method} rows"] = trainer.in_use.plan.prompts.row_Q.tolist()
        save(steps, folder, method)
    # The odd one of five groups of three: sizes by history, of which a rank may hold a part.
    for name, options in {
        "uneven groups": {"method": "dppo_history_sizes", "num_generations": 3, "per_device_train_batch_size": 9},
        "groups of one": {"method": "dppo_history", "num_generations": 1, "per_device_train_batch_size": 3},
    }.items():
        run = dict(prompts=6, loss_type="grpo", max_steps=8, rollout=None, reward=first_half_reward)
        _, trainer = dppo_run(path, Path(folder), **run, **options)
        sizes = trainer.in_use.plan.prompts.size_Q
        results[name] = {
            "apart": apart(trainer),
            "sizes": None if sizes is None else sizes.tolist(),
            "expected": trainer.in_use.plan.prompts.context.expected.mean_QF.tolist(),
            "rows": trainer.in_use.plan.prompts.row_Q.tolist(),
        }
    both = [None, None]
    dist.all_gather_object(both, {name: results[name] for name in ("uneven groups", "groups of one")})
    results["ranks expect alike"] = both[0] == both[1]
    recorded_runs(path, folder)
    for kind in RUNS:
        if kind not in RESUMED:
            run_on_rows(path, Path(folder, kind), kind)
    return results


def main(path: str, folder: str, part: str) -> None:
    torch.set_num_threads(1)
    results = {"often": often, "further": further}[part](path, folder)
    if dist.get_rank() == 0:
        Path(folder, f"{part}.json").write_text(json.dumps(results))


calls_of = ForwardPasses.calls


def in_first_calls(self, *args, **options):
    """The wrong twin: work lies in the first calls, which synchronize nothing, and the last call makes up for none."""
    parts, metrics = calls_of(self, *args, **options)
    self.begun = False
    return parts[::-1], metrics


def auto_resumed(path: str, folder: Path) -> dict:
    """A run with sampled rollouts, and the same from the middle of its pruned part."""
    straight, again = auto(path, folder / "a"), auto(path, folder / "b")
    straight.train()
    again.train(resume_from_checkpoint=str(folder / "a" / "checkpoint-5"))
    kept = logged(again, "prune/prompts_kept_share")
    return {"alike": all(map(torch.equal, straight.model.parameters(), again.model.parameters())), "kept": kept}


def uneven(path: str, folder: str, name: str, **options) -> list:
    """What each rank forwarded in ``UNEVEN``, as pairs of gradient enabled and weights positive. Saves gradients."""
    forwarded, original = [], RowLayout.forward

    def count(self, model, batch, **asked):
        forwarded.append((torch.is_grad_enabled(), bool((batch.weight > 0).any())))
        return original(self, model, batch, **asked)

    with patch.object(RowLayout, "forward", count):
        steps, _ = dppo_run(path, Path(folder), **UNEVEN | options)
    gathered = [None, None]
    dist.all_gather_object(gathered, forwarded)
    save(steps, folder, name)
    return gathered


def unwrapped(steps: list) -> list:
    """Gradients by the names that they have on one process."""
    return [{n.removeprefix("module."): g for n, g in step.items()} for step in steps]


def save(steps: list, folder: str, name: str) -> None:
    torch.save(unwrapped(steps), Path(folder, f"{name} rank {dist.get_rank()}.pt"))


def recorded_runs(path: str, folder: str) -> None:
    """Recorded runs of both trainers; each rank writes what it made itself."""
    for name in ("dppo", "trl"):
        made = []

        def rollouts(prompts, trainer, made=made):
            output = scripted(prompts, trainer)
            made.extend(len(ids) for ids in output["completion_ids"])
            return output

        trainer, recorder = make(path, Path(folder, name), ours=name == "dppo", per_device_train_batch_size=8)
        trainer.rollout_func = rollouts
        trainer.train()
        counts = {"rollouts": len(made), "tokens": sum(made), "trained": recorder.totals()["total/tokens_trained"]}
        Path(folder, f"{name}_{dist.get_rank()}.json").write_text(json.dumps(counts))


def gloo_threads() -> list[str]:
    """Of this process, where the system says so."""
    tasks, names = Path("/proc/self/task"), []
    for task in tasks.iterdir() if tasks.is_dir() else []:
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if "gloo" in name]


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert gloo_threads() or sys.platform != "linux", "there are some to be ended"
    _end_group()
    assert not gloo_threads(), gloo_threads()
