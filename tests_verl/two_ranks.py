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
import math  # noqa: E402
from dataclasses import replace  # noqa: E402
from itertools import product  # noqa: E402

import cloudpickle  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from in_process import PRUNING, STORE, LocalGroup, configuration, put, record_gradients, trainer  # noqa: E402
from test_trainer import PROB_N, Given, full_gradient, rolled_out  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODES = ("token-mean", "seq-mean-token-mean")
OPTIONS = ("data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4")


class Pair(LocalGroup):
    """A worker on each rank; rank 0 sends both what to do, and what the queue holds."""

    world_size = 2

    def __init__(self, config):
        super().__init__(config)
        self.gradients = record_gradients(self.worker)

    def answer(self, operation, store, batch, loss_fn):
        """What a rank does with its part of a batch."""
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

    def compute_log_prob(self, batch):
        for found, part in zip(*self.both("infer_batch", batch), strict=True):
            names = [name for name in ("log_probs", "entropy") if name in set(found.keys())]
            put(part.keys, part.partition_id, found.select(*names))
        return batch

    compute_ref_log_prob = compute_log_prob

    def update_actor(self, batch):
        self.calls.append((len(batch), batch.extra_info["mini_batch_size"], batch.extra_info["global_batch_size"]))
        return self.both("train_mini_batch", batch)[0][0]


def options(mode):
    return (*OPTIONS, f"actor_rollout_ref.actor.loss_agg_mode={mode}", f"{PRUNING}.completion_prune_rate=0.5")


def lead(toy, mode):
    """Rank 0: bias of the mean over all draws, rows sent, and the same with weights that were forgotten."""
    policy = AutoModelForCausalLM.from_pretrained(f"{toy}/model", dtype=torch.float32)
    made = trainer(toy, "dynamic_pruning", *options(mode), group=Pair, policy=policy)
    group = made.actor_rollout_wg
    batch = rolled_out(made)
    full = full_gradient(made, group, batch, group.gradients)
    free = [place for place, p in enumerate(PROB_N.tolist()) if p < 1]
    (mean, forgotten), sent = torch.zeros(2, *full.shape, dtype=torch.float64), []
    for kept in product((False, True), repeat=len(free)):
        keep_N = torch.ones(len(PROB_N), dtype=torch.bool)
        keep_N[free] = torch.tensor(kept)
        chance = math.prod(torch.where(keep_N, PROB_N, 1 - PROB_N).tolist())
        made.method = replace(made.method, completions=Given(keep_N=keep_N))
        metrics = {}
        made._update_actor(batch, metrics)
        mean += chance * group.gradients.pop().double()
        sent.append((*group.calls[-1], metrics["rows/fillers"]))
        made.method = replace(made.method, completions=Given(keep_N=keep_N, weighted=False))
        made._update_actor(batch, {})
        forgotten += chance * group.gradients.pop().double()
    bias = [float((each - full).norm() / full.norm()) for each in (mean, forgotten)]
    dist.broadcast_object_list([b"next"], src=0)
    return {"mode": mode, "bias": bias[0], "forgotten": bias[1], "sent": sorted(set(sent))}


def follow(toy, mode):
    """Rank 1: what rank 0 says, until it says ``next``."""
    group = Pair(configuration(toy, "trainer.v1.trainer_mode=dynamic_pruning", *options(mode)))
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
