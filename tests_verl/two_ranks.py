"""Two data-parallel ranks over gloo: ``two_ranks.py RANK PORT TOY OUT``. Rank 0 is verl's trainer and a worker.

Every outcome of a draw is sent, the gradients of both ranks are reduced by the engine, and their mean is compared with
that of verl's own update of the whole batch.
"""

import sys

from environment import set_up

RANK, PORT = int(sys.argv[1]), int(sys.argv[2])
set_up(RANK, 2, PORT)

import datetime  # noqa: E402
import json  # noqa: E402

import cloudpickle  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from in_process import ACTOR, PRUNING, STORE, LocalGroup, configuration, put, record_gradients  # noqa: E402
from steps import ALL_CUTS, CUTS, ONE_STEP, all_draws, bias, fixed_step, stock_and_ours  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODES = ("token-mean", "seq-mean-token-mean", "cuts", "rows")
FULL = {}
"""verl's own gradients by options of its loss."""


class Pair(LocalGroup):
    """A worker on each rank; rank 0 sends both what to do, and what the queue holds."""

    world_size = 2

    def __init__(self, config):
        super().__init__(config)
        self.gradients = record_gradients(self.worker)

    def answer(self, operation, store, batch, loss_fn):
        """The work of a rank on its part of a batch."""
        if operation == "set_loss_fn":
            return self.worker.set_loss_fn(loss_fn)
        STORE.clear()
        STORE.update(store)
        return getattr(self.worker, operation)(self.data(batch))

    def both(self, operation, batch=None, loss_fn=None):
        """Answers of both ranks and their parts of the batch, cut as verl does."""
        parts = batch.chunk(2) if batch is not None else [None, None]
        store = dict(STORE)
        dist.broadcast_object_list([cloudpickle.dumps((operation, store, parts[1], loss_fn))], src=0)
        mine, gathered = self.answer(operation, store, parts[0], loss_fn), [None, None]
        dist.gather_object(None, gathered, dst=0)
        return [mine, cloudpickle.loads(gathered[1])], parts

    def set_loss_fn(self, loss_fn):
        if not hasattr(self, "gradients"):  # while it is made, every rank by itself
            return self.worker.set_loss_fn(loss_fn)
        self.worker.loss_fn = loss_fn
        return self.both("set_loss_fn", loss_fn=loss_fn)

    def inferred(self, name, batch):
        self.passes.append((name, [sum(tag["seq_len"] for tag in part.tags) for part in batch.chunk(2)]))
        for found, part in zip(*self.both("infer_batch", batch), strict=True):
            names = [name for name in ("log_probs", "entropy") if name in set(found.keys())]
            put(part.keys, part.partition_id, found.select(*names))
        return batch

    def update_actor(self, batch):
        self.calls.append((len(batch), batch.extra_info["mini_batch_size"], batch.extra_info["global_batch_size"]))
        return self.both("train_mini_batch", batch)[0][0]


def options(mode):
    rate = CUTS if mode == "cuts" else f"{PRUNING}.completion_prune_rate=0.5"
    return (f"{ACTOR}.loss_agg_mode={'token-mean' if mode == 'token-mean' else 'seq-mean-token-mean'}", rate)


def prepared(toy, mode, policy):
    """verl's own gradient of the whole batch, and our step."""
    agg, rate = options(mode)
    given = {"group": Pair, "policy": policy}
    if mode != "rows":
        (FULL[agg],), step = stock_and_ours(toy, agg, ours=(rate,), **given)
        return FULL[agg], step
    return FULL[agg], fixed_step(toy, "dynamic_pruning", agg, rate, f"{PRUNING}.layout=rows", **given)


def lead(toy, mode):
    """Rank 0: bias of the mean over all draws, rows sent, and the same with weights that were forgotten."""
    policy = AutoModelForCausalLM.from_pretrained(f"{toy}/model", dtype=torch.float32)
    full, step = prepared(toy, mode, policy)
    group, mean, forgotten, sent, apart = step.made.actor_rollout_wg, 0.0, 0.0, [], []
    longest = max(tag["seq_len"] for tag in step.batch.tags)
    drawn, outcomes = (step.cut, ALL_CUTS) if mode == "cuts" else (step.drawn, all_draws())
    for chance, outcome in outcomes:
        drawn(outcome)
        mean = mean + chance * step.gradients.pop().double()
        sent.append((*group.calls[-1], step.metrics["rows/fillers"]))
        first, second = group.passes[0][1]
        apart.append(abs(first - second) / longest)
        drawn(outcome, weighted=False)
        forgotten = forgotten + chance * step.gradients.pop().double()
    dist.broadcast_object_list([b"next"], src=0)
    biases = {"bias": bias(mean, full), "forgotten": bias(forgotten, full)}
    return {"mode": mode, "sent": sorted(set(sent)), "apart": max(apart), **biases}


def follow(toy, mode):
    """Rank 1: what rank 0 says, until it says ``next``."""
    engine = (f"{ACTOR}.strategy=dppo_rows_fsdp2",) if mode == "rows" else ()
    group = Pair(configuration(toy, "trainer.v1.trainer_mode=dynamic_pruning", *ONE_STEP, *options(mode), *engine))
    while True:
        box = [None]
        dist.broadcast_object_list(box, src=0)
        if box[0] == b"next":
            return
        found = group.answer(*cloudpickle.loads(box[0]))
        dist.gather_object(cloudpickle.dumps(found), None, dst=0)


def main(toy, out):
    patience = datetime.timedelta(minutes=10)
    address = f"tcp://127.0.0.1:{PORT}"
    dist.init_process_group("gloo", init_method=address, rank=RANK, world_size=2, timeout=patience)
    found = [(lead if RANK == 0 else follow)(toy, mode) for mode in MODES]
    if RANK == 0:
        with open(out, "w") as file:
            json.dump(found, file)
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[3:])
