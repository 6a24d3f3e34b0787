"""Short runs that write a checkpoint after each step, for tests that resume them."""

from tiny_runs import GENERATIONS, LOG_ALL, SHORT, length_reward, problems

from dppo.trl import DPPOConfig, DPPOTrainer

STEPS = 8
SAVED = SHORT | dict(per_device_train_batch_size=4 * GENERATIONS, max_completion_length=8, max_steps=STEPS)
SAVED |= dict(save_strategy="steps", save_steps=1)


def trainer(path, folder, *, seen=None, callbacks=(), prompts=10, reward=length_reward, rollout=None, **options):
    def seen_reward(prompts, completions, **columns):
        if seen is not None:
            seen.append(tuple(prompts))
        return reward(prompts, completions, **columns)

    seen_reward.__name__ = reward.__name__
    settings = SAVED | dict(output_dir=str(folder), prompt_prune_rate=0.5, completion_prune_rate=0.5) | options
    data = problems(prompts)
    if "prompt_prior" in options:
        data = data.add_column("solve_rate", [0.5, 1.0] * (prompts // 2))
    return DPPOTrainer(
        model=path,
        reward_funcs=seen_reward,
        args=DPPOConfig(**LOG_ALL | settings),
        train_dataset=data,
        rollout_func=rollout,
        callbacks=list(callbacks),
    )


def half_flat(prompts, completions, **_):
    """Groups of prompts of an even number of words have equal rewards."""
    rewards = length_reward(prompts, completions)
    return [reward if len(prompt.split()) % 2 else 1.0 for prompt, reward in zip(prompts, rewards, strict=True)]


# An epoch is 2.5 blocks of 4 prompts: with a step for each generation, step 3 is in epoch 1, in mid-block.
TWO_PASSES = {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 8}
"""Two steps for each generation, and two passes: steps 2, 3 and 5 are in the middle of a generation."""
ROUNDS = dict(method="dapo", loss_type="dapo", accept_bias=True, reward=half_flat)
ROUNDS |= dict(prompt_prune_rate=0.0, completion_prune_rate=0.0, per_device_train_batch_size=3 * GENERATIONS)
