"""A run that is killed in a step, or goes on from its newest checkpoint: ``killed_runs.py KIND MODEL FOLDER STEP``.

The last of its processes dies, in the step of that number; in none where it is 0.
"""

import os
import signal
import sys

import dpo_runs
import torch
from resumed_runs import trainer
from sft_runs import ours, solutions
from transformers import TrainerCallback

from dppo.methods import from_settings as method_settings
from dppo.pruning import Auto
from dppo.trl.checkpoints.files import latest_checkpoint

SAVING = dict(save_strategy="steps", save_steps=1, max_steps=8)


def steady(prompts, completions, answer, **_):
    """The first four problems have a gradient and the others none, whatever was sampled: some are sure to be pruned."""
    return [float(place % 2) if int(number) < 4 else 1.0 for place, number in enumerate(answer)]


def auto(path, folder, **own):
    """Rollouts are sampled, and prompts pruned from eight visits on."""
    method_settings.RATES["prompt_prune_rate"] = Auto(fewest=8, least_gain=1.0)
    size = 16 // int(os.environ.get("WORLD_SIZE", "1"))
    settings = dict(per_device_train_batch_size=size, prompt_prune_rate="auto", reward=steady, prompts=8)
    return trainer(path, folder, seen=[], **settings, **own)


KINDS = {
    "auto": auto,
    "sft": lambda path, folder, **own: ours(path, folder, data=solutions(12), **SAVING, **own),
    "dpo": lambda path, folder, **own: dpo_runs.ours(path, folder, data=dpo_runs.pairs(12), **SAVING, **own),
}


class Killed(TrainerCallback):
    """Ends the process without a word before the checkpoint of a step is written."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and args.process_index == args.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, path, folder, step = sys.argv[1:]
    found = latest_checkpoint(folder)
    made = KINDS[kind](path, folder, callbacks=[Killed(int(step))])
    made.train(resume_from_checkpoint=None if found is None else str(found))
