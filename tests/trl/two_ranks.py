"""Runs on two ranks: our gradient against TRL's, then pruned runs whose ranks must stay in step. Prints JSON."""

import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import tiny_runs
import torch
import torch.distributed as dist
from killed_runs import auto
from sft_two_ranks import RESUMED, RUNS, apart, run_on_rows
from tiny_runs import GENERATIONS, first_half_reward, logged, relative_difference, scripted
from trl_gradients import constant, dppo_run, trl_run
from trl_recorder_runs import make

from dppo.methods import from_settings as method_settings
from dppo.pruning import Auto
from dppo.trl.forwards import ForwardPasses
from dppo.trl.grpo import rollouts
from dppo.trl.layouts import RowLayout
from dppo.trl.safeguards import _end_group

HALF = {"per_device_train_batch_size": 4 * GENERATIONS}
QUARTER = {"per_device_train_batch_size": 2 * GENERATIONS}
EIGHTH = {"per_device_train_batch_size": GENERATIONS}
calls_of = ForwardPasses.calls


def at_home(batch, plan, accelerator, **_):
    """Every rank trains on what it rolled out, so one may have nothing."""
    return batch


def in_first_calls(self, *args, **options):
    """The wrong twin: work lies in the first calls, which synchronize nothing, and the last call makes up for none."""
    parts, metrics = calls_of(self, *args, **options)
    self.begun = False
    return parts[::-1], metrics


def unwrapped(steps: list) -> list:
    """Gradients by the names that they have on one process."""
    return [{n.removeprefix("module."): g for n, g in step.items()} for step in steps]


def against_trl(path: str, folder: str, **options) -> float:
    """Distance of the first gradients of TRL's trainer and ours."""
    stock, trainer = trl_run(path, Path(folder), **HALF | options)
    assert trainer.accelerator.num_processes == 2  # launchers fall back to one process without a word
    mine, _ = dppo_run(path, Path(folder), completion_prune_rate=0.0, **HALF | options)
    return relative_difference(*(unwrapped(steps)[0] for steps in (mine, stock)))


def ran(path: str, folder: str, name: str, **options) -> dict:
    """What a run came to, and what each rank forwarded, as pairs of gradient enabled and weights positive.

    Saves the gradients of each rank.
    """
    forwarded, original = [], RowLayout.forward

    def count(self, model, batch, **asked):
        forwarded.append((torch.is_grad_enabled(), bool((batch.weight > 0).any())))
        return original(self, model, batch, **asked)

    with patch.object(RowLayout, "forward", count):
        steps, trainer = dppo_run(path, Path(folder), **HALF | options)
    torch.save(unwrapped(steps), Path(folder, f"{name} rank {dist.get_rank()}.pt"))
    prompts = trainer.in_use.plan.prompts
    known = {"rows": prompts.row_Q, "sizes": prompts.size_Q}
    if prompts.context.expected is not None:
        known["expected"] = prompts.context.expected.mean_QF
    known = {key: None if value is None else value.tolist() for key, value in known.items()}
    of_ranks = [None, None]
    dist.all_gather_object(of_ranks, (known, forwarded))
    (first, on_first), (second, on_second) = of_ranks
    return known | {
        "apart": apart(trainer),
        "agreed": first == second,
        "steps": trainer.state.global_step,
        "logged": trainer.state.log_history,
        "forwarded": [on_first, on_second],
    }


def often(path: str, folder: str) -> dict:
    found = {loss: against_trl(path, folder, loss_type=loss) for loss in ("dapo", "grpo")}
    run = partial(ran, path, folder)
    rates = dict(prompt_prune_rate=0.5, completion_prune_rate=0.5, loss_type="grpo", max_steps=6)
    found["pruned"] = run("pruned", **rates)
    found["no rows"] = run("no rows", reward=constant, max_steps=2)
    found["over ranks"] = run("over ranks", **tiny_runs.UNEVEN, completion_prune_rate=0.5)
    with patch.object(rollouts, "over_ranks", at_home):
        found["at home"] = run("at home", **tiny_runs.UNEVEN, completion_prune_rate=0.5)
        found["last calls"] = run("last calls", **tiny_runs.ACCUMULATED | EIGHTH)
        with patch.object(ForwardPasses, "calls", in_first_calls):
            run("first calls", **tiny_runs.ACCUMULATED | EIGHTH)
    for kind in RESUMED:
        run_on_rows(path, Path(folder, kind), kind)
    return found


def further(path: str, folder: str) -> dict:
    run = partial(ran, path, folder)
    found = {"high entropies": against_trl(path, folder, top_entropy_quantile=0.3, loss_type="grpo")}
    # An odd number of prompts on two ranks with an odd group: the selection is rounded so that rows divide.
    odd = dict(prompts=6, per_device_train_batch_size=9, num_generations=3, rollout=None)
    found["odd"] = run("odd", **odd, prompt_prune_rate=0.5, max_steps=4)
    method_settings.RATES["prompt_prune_rate"] = Auto(fewest=8, least_gain=1.0)
    rates = dict(prompt_prune_rate="auto", completion_prune_rate="auto", loss_type="grpo", max_steps=4)
    found["auto"] = run("auto", reward=first_half_reward, **rates)
    found["auto resumed"] = auto_resumed(path, Path(folder, "auto"))
    with patch.object(rollouts, "over_ranks", at_home):
        found["two generations"] = run("two generations", **tiny_runs.two_generations(ranks=2))
    found["tokens"] = run("tokens", **tiny_runs.CUT)
    found["shares"] = run("shares", **tiny_runs.SHARES | QUARTER)
    for method, loss_type in (("dapo", "dapo"), ("greso", "grpo")):
        found[method] = run(method, method=method, loss_type=loss_type, **tiny_runs.ROUNDS | QUARTER)
    # The odd one of five groups of three: sizes by history, of which a rank may hold a part.
    few = dict(loss_type="grpo", max_steps=8, reward=first_half_reward)
    found["uneven groups"] = run("uneven groups", method="dppo_history_sizes", **odd | few)
    single = odd | few | {"num_generations": 1, "per_device_train_batch_size": 3}
    found["groups of one"] = run("groups of one", method="dppo_history", **single)
    recorded_runs(path, folder)
    for kind in (kind for kind in RUNS if kind not in RESUMED):
        run_on_rows(path, Path(folder, kind), kind)
    return found


def auto_resumed(path: str, folder: Path) -> dict:
    """A run with sampled rollouts, and the same from the middle of its pruned part."""
    straight, again = auto(path, folder / "a"), auto(path, folder / "b")
    straight.train()
    again.train(resume_from_checkpoint=str(folder / "a" / "checkpoint-5"))
    kept = logged(again, "prune/prompts_kept_share")
    return {"alike": all(map(torch.equal, straight.model.parameters(), again.model.parameters())), "kept": kept}


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
    """Threads of gloo in this process, on systems that list threads."""
    tasks, names = Path("/proc/self/task"), []
    for task in tasks.iterdir() if tasks.is_dir() else []:
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if "gloo" in name]


def main(path: str, folder: str, part: str) -> None:
    torch.set_num_threads(1)
    results = {"often": often, "further": further}[part](path, folder)
    if dist.get_rank() == 0:
        Path(folder, f"{part}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert gloo_threads() or sys.platform != "linux", "there are some to be ended"
    _end_group()
    assert not gloo_threads(), gloo_threads()
