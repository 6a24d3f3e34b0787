"""A run of six steps in a process of its own: ``resume_run.py TOY CHECKPOINTS [KILLED_AT]``.

It resumes from the newest checkpoint, saves after every second step, and writes its parameters and what it asked for.
With KILLED_AT it kills itself in the middle of that step, when prompts are drawn and rolled out but not yet trained on.
"""

import os
import signal
import sys

from environment import set_up

set_up()

import torch  # noqa: E402
from in_process import PRUNING, parameters, sized, train, trainer  # noqa: E402

OPTIONS = (*sized(8, 2, mini_batch=4), "data.train_max_samples=16", "data.shuffle=True", "data.seed=1")
OPTIONS += ("trainer.total_training_steps=6", "trainer.save_freq=2", "trainer.resume_mode=auto")
# A filler of verl has 128 tokens.
OPTIONS += (f"{PRUNING}.prompt_prune_rate=0.4", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=256")


def main(toy, checkpoints, killed_at=None):
    made = trainer(toy, "dynamic_pruning", *OPTIONS, f"trainer.default_local_dir={checkpoints}")
    if killed_at is not None:
        update = made._update_actor

        def killed(batch, metrics):
            if made.global_steps == int(killed_at):
                os.kill(os.getpid(), signal.SIGKILL)
            return update(batch, metrics)

        made._update_actor = killed
    first = made.global_steps
    logged = train(made, 7 - first)
    kept = [each["prune/prompts_kept_share"] for each in logged]
    found = {"parameters": parameters(made), "asked": made.agent_loop_manager.asked, "first": first, "kept": kept}
    torch.save(found, f"{checkpoints}/found.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
