"""A step of a vision-language model on two ranks, compared with one process. Arguments: model, folder."""

import os
import sys
from pathlib import Path

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from tiny_pictures import mine
from tiny_runs import GENERATIONS, relative_difference

from benchmarks.swap.pictures import KINDS
from dppo.trl.grpo import rollouts

if __name__ == "__main__":
    path, folder = sys.argv[1], Path(sys.argv[2])
    expected = torch.load(folder / "expected.pt")
    moved, dealt, last = [], rollouts.dealt, []

    def seen(batch, *others):
        moved.append(dealt(batch, *others))
        return moved[-1]

    rollouts.dealt = seen
    options = torch.load(folder / "options.pt")
    model = (path, KINDS["qwen"]()[1])
    found, trainer = mine(model, folder, per_device_train_batch_size=3 * GENERATIONS, **options)
    calls, _ = trainer.forwards.calls(moved[-1], moved[-1].weight_UB[0], 1)
    last = [None, None]
    dist.all_gather_object(last, [bool(batch.seen().get("num_images")) for batch in calls[-1]])
    # A rank ends with a pass without pictures; and completions have moved, so their pictures have too.
    assert not all(each[-1] for each in last), last
    assert any(any(each) for each in last), last
    different = relative_difference(found[0], expected)
    assert different < 1e-5, different
    dist.barrier()
