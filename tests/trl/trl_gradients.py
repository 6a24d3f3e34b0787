"""Gradients of short runs, TRL's and ours, and their relative difference."""

from tiny_runs import (
    GENERATIONS,
    LOG_ALL,
    SHORT,
    GradientRecorder,
    length_reward,
    problems,
    relative_difference,
    scripted,
)
from trl import GRPOConfig, GRPOTrainer

from dppo.trl import DPPOConfig, DPPOTrainer

TOLERANCE = 1e-5


def gradients(
    trainer_class, config_class, path, tmp_path, rollout=scripted, reward=length_reward, peft=None, **options
):
    recorder = GradientRecorder()
    prompts = options.pop("prompts", 8)
    settings = SHORT | dict(
        output_dir=str(tmp_path / trainer_class.__name__),
        per_device_train_batch_size=prompts * GENERATIONS,
        max_steps=1,
        optim="sgd",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
    )
    settings |= (LOG_ALL if config_class is DPPOConfig else {}) | options
    trainer = trainer_class(
        model=path,
        reward_funcs=reward,
        args=config_class(**settings),
        train_dataset=problems(prompts),
        rollout_func=rollout,
        peft_config=peft() if peft else None,
        callbacks=[recorder],
    )
    trainer.train()
    return recorder.steps, trainer


def dppo_run(path, folder, **options):
    """Gradients of each step of our trainer, and the trainer."""
    return gradients(DPPOTrainer, DPPOConfig, path, folder, **options)


def trl_run(path, folder, **options):
    """The same of TRL's trainer."""
    return gradients(GRPOTrainer, GRPOConfig, path, folder, **options)


OF_TRL = {}
"""Gradients of TRL's runs by their options: many tests compare other settings of ours with the same run."""


def of_trl(path, tmp_path, options):
    key = (path, *((name, value if callable(value) else repr(value)) for name, value in sorted(options.items())))
    if key not in OF_TRL:
        OF_TRL[key], _ = trl_run(path, tmp_path, **options)
    return OF_TRL[key]


def compare(path, tmp_path, ours=None, **options):
    stock = of_trl(path, tmp_path, options)
    mine, trainer = dppo_run(path, tmp_path, **{"completion_prune_rate": 0.0, **(ours or {})}, **options)
    assert len(mine) == len(stock)
    return [relative_difference(a, b) for a, b in zip(mine, stock, strict=True)], trainer


def split(options, calls):
    return options | {"per_device_train_batch_size": 8 * GENERATIONS // calls, "gradient_accumulation_steps": calls}
