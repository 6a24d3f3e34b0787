"""Seconds of verl's step without rollout with completions left out of every pass, in turns with verl's own.

.venv-verl/bin/python tests_verl/speed.py [--quick] [--output benchmarks/results/verl.json]

verl's own trainer, FSDP engine and loss in one process, as ``tests_verl`` runs them on a CPU, on made-up rollouts that
all take alike: 128 completions of 16 prompts, lengths lognormal, 3.2 million parameters. Seconds are CPU seconds of one
thread, so that other work on the machine counts little.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from environment import set_up

set_up()

import in_process  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import toy  # noqa: E402
from steps import Step  # noqa: E402

from dppo.files import write_json  # noqa: E402
from dppo.lab.environment import environment  # noqa: E402

SEED, TURNS, PROMPTS, GENERATIONS, LONGEST = 0, 11, 16, 8, 320
PHASES = ("old", "ref", "update")
MODEL = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "max_position_embeddings": 512}
KL = ("actor_rollout_ref.actor.use_kl_loss=True",)
SIZES = (
    *(f"data.train_batch_size={PROMPTS}", f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}"),
    *(f"actor_rollout_ref.rollout.n={GENERATIONS}", f"data.max_response_length={LONGEST}"),
    *("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512", "actor_rollout_ref.actor.optim.lr=0"),
)
SILENT = ", no KL, 60% dead"
CASES = {
    "verl": (None, True, 0.0),
    "0.5": ("completion_prune_rate=0.5", True, 0.0),
    "0.7": ("completion_prune_rate=0.7", True, 0.0),
    "cuts 0.5": ("token_prune_rate=0.5", True, 0.0),
    "cuts 0.7": ("token_prune_rate=0.7", True, 0.0),
    f"verl{SILENT}": (None, False, 0.6),
    f"0.5{SILENT}": ("completion_prune_rate=0.5", False, 0.6),
}
"""Rate (None for verl's own trainer), whether the loss has a KL term, and the share of silent groups."""

SPLITS = ((10, 29, 28, 31), (30, 17, 0, 49), (45, 14, 0, 34), (70, 6, 4, 17))
"""Percent of a step that users of verl logged: rollout, old log-probabilities, reference, update."""


def sampled(model, ids, longest, eos, rng):
    """A completion of made-up tokens; its length is lognormal, its probabilities those of a policy in training."""
    length = int(min(longest, max(8, 120 * torch.randn((), generator=rng).mul(0.6).exp())))
    return torch.randint(5, 45, (length,), generator=rng).tolist(), (-0.5 * torch.rand(length, generator=rng)).tolist()


class Timed(in_process.LocalGroup):
    """A worker that notes the CPU seconds of each pass, its rows and its tokens, prompts included."""

    seconds: dict[str, float]
    rows: dict[str, int]
    tokens: dict[str, int]

    def inferred(self, name, batch):
        return self.noted(name, batch, lambda: super(Timed, self).inferred(name, batch))

    def update_actor(self, batch):
        return self.noted("update", batch, lambda: super(Timed, self).update_actor(batch))

    def noted(self, name, batch, run):
        self.rows[name], self.tokens[name] = len(batch), sum(tag["seq_len"] for tag in batch.tags)
        start = time.process_time()
        found = run()
        self.seconds[name] = time.process_time() - start
        return found


def prepared(folder, rate, kl, silent):
    """A trainer's step on rollouts that are the same for all of them, and what its queue holds."""
    given = [*SIZES, *(KL if kl else ())]
    given += [] if rate is None else [f"{in_process.PRUNING}.{rate}"]
    made = in_process.trainer(folder, "sync" if rate is None else "dynamic_pruning", *given, group=Timed)
    rng = np.random.default_rng(SEED)
    rewards = (rng.random((PROMPTS, GENERATIONS)) < 0.5).astype(float)
    rewards[: round(silent * PROMPTS)] = 0.0
    return Step(made, rewards.ravel().tolist()), in_process.STORE.pop("train")


def timed(step, store):
    """One step: CPU seconds of all of it and of each pass, and tokens and rows that passes go over."""
    in_process.STORE["train"] = store
    worker = step.made.actor_rollout_wg
    worker.seconds, worker.rows, worker.tokens = {}, {}, {}
    start = time.process_time()
    step.run()
    seconds = time.process_time() - start
    return {"step": seconds, **worker.seconds}, worker.tokens, worker.rows


def spread(name, values):
    """Median, lowest and highest of some turns, by names of a record."""
    return {name: float(np.median(values)), f"{name}_lowest": min(values), f"{name}_highest": max(values)}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    args = parser.parse_args(argv)
    in_process.sampled = sampled
    found = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        toy.write(Path(folder), **MODEL)
        steps = {name: prepared(folder, *case) for name, case in CASES.items()}
        for turn in range(2 if args.quick else 1 + TURNS):
            for name, (step, store) in steps.items():
                torch.manual_seed(turn)
                metrics = timed(step, store)
                found[name] += [metrics] if turn else []  # the first is not counted
    rows, ratios = [], {}
    for name, turns in found.items():
        stock = found["verl" if CASES[name][1] else f"verl{SILENT}"]
        for phase in ("step", *PHASES):
            if phase not in turns[0][0]:
                continue
            seconds = [turn[0][phase] for turn in turns]
            share = [mine[0][phase] / theirs[0][phase] for mine, theirs in zip(turns, stock, strict=True)]
            rows.append(
                {"case": name, "phase": phase, "unit": "CPU s", **spread("seconds", seconds), **spread("share", share)}
            )
            if phase == "step":
                ratios[name] = float(1 / np.median(share))
                continue
            kept = turns[0][1][phase] / stock[0][1][phase]
            rows[-1] |= {"rows": turns[0][2][phase], "tokens": turns[0][1][phase], "tokens_share": kept}
            rows[-1]["per_token"] = rows[-1]["share"] / kept
            print(f"{name}, {phase}: {rows[-1]['rows']} rows, tokens {kept:.3f}, seconds {rows[-1]['share']:.3f}")
        print(f"{name}: {ratios[name]:.2f} times as fast as verl's own step")
    for rollout, old, ref, update in SPLITS:
        passes, names = old + ref + update, ("0.5", "0.7", *(() if ref else (f"0.5{SILENT}",)))
        faster = {name: 100 / (100 - passes * (1 - 1 / ratios[name])) for name in names}
        print(f"{rollout}/{old}/{ref}/{update}:", ", ".join(f"{name}: {ratio:.2f}" for name, ratio in faster.items()))
    if args.output is not None:
        found = {"step_without_rollout": ratios, "rows": rows, "environment": environment(seeds=[SEED])}
        kept = json.loads(args.output.read_text()) if args.output.exists() else {}  # of benchmarks.speed.verl_rows
        write_json(args.output, kept | found)


if __name__ == "__main__":
    main()
