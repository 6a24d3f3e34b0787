"""Gradients of short runs, TRL's and ours, their relative difference, and their means over draws."""

from dataclasses import replace
from functools import partial

import pytest
import torch
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
from dppo.trl.grpo import rollouts
from dppo.trl.metrics import LossMetrics
from dppo.verification.enumerate import enumerated, every_way

TOLERANCE = 1e-5


def constant(prompts, completions, **_):
    """Rewards by which no group has a gradient."""
    return [1.0] * len(prompts)


def gradients(trainer_class, config_class, path, tmp_path, *, rollout=scripted, reward=length_reward, **options):
    """Gradients of each step, and the trainer."""
    recorder, prompts = GradientRecorder(), options.pop("prompts", 8)
    peft, data, processing_class = (options.pop(name, None) for name in ("peft", "data", "processing_class"))
    settings = SHORT | dict(
        max_steps=1, optim="sgd", max_grad_norm=0.0, output_dir=str(tmp_path / trainer_class.__name__)
    )
    settings |= {"per_device_train_batch_size": prompts * GENERATIONS}
    settings |= (LOG_ALL if config_class is DPPOConfig else {}) | options
    trainer = trainer_class(
        model=path,
        reward_funcs=reward,
        args=config_class(**settings),
        train_dataset=problems(prompts) if data is None else data,
        processing_class=processing_class,
        rollout_func=rollout,
        peft_config=peft() if peft else None,
        callbacks=[recorder],
    )
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    return recorder.steps, trainer


def dppo_run(path, folder, **options):
    """Gradients of each step of our trainer, and the trainer."""
    return gradients(DPPOTrainer, DPPOConfig, path, folder, **options)


def trl_run(path, folder, **options):
    """The same of TRL's trainer."""
    return gradients(GRPOTrainer, GRPOConfig, path, folder, **options)


OF_TRL = {}
"""Gradients of TRL's runs by their options: many tests compare other settings of ours with the same run."""


def compare(path, tmp_path, ours=None, **options):
    key = (path, *((name, value if callable(value) else repr(value)) for name, value in sorted(options.items())))
    if key not in OF_TRL:
        OF_TRL[key], _ = trl_run(path, tmp_path, **options)
    stock = OF_TRL[key]
    mine, trainer = dppo_run(path, tmp_path, **{"completion_prune_rate": 0.0, **(ours or {})}, **options)
    assert len(mine) == len(stock)
    return [relative_difference(a, b) for a, b in zip(mine, stock, strict=True)], trainer


def split(options, calls):
    return options | {"per_device_train_batch_size": 8 * GENERATIONS // calls, "gradient_accumulation_steps": calls}


def mean_over_draws(session, gradient):
    """``gradient(tape)`` with nothing pruned, and its mean over every draw of the method of a session."""
    method, session.source = session.method, None  # nothing is learned from one gradient for the next
    whole = replace(method, completions=method.completions.at_rate(0.0), tokens=method.tokens.at_rate(0.0, 0.0))
    drawn = replace(method, completions=enumerated(method.completions), tokens=enumerated(method.tokens))

    def of(method, tape):
        session.method, session.samples = method, None
        return gradient(tape)

    full, ways = of(whole, None), list(every_way(partial(of, drawn)))
    assert len(ways) > 3 and sum(chance for _, chance in ways) == pytest.approx(1)
    return full, {name: sum(chance * found[name] for found, chance in ways) for name in full}


def full_and_mean(trainer, *, changed=lambda plan: plan):
    """The full batch's gradient of a generation, and the mean over every draw, by the trainer's own passes and loss.

    ``changed`` makes another plan of each: a wrong twin.
    """
    trainer.model.double()
    trainer.forwards.enter()
    prompts, generated = trainer._roll_out_step(None)
    rewards, tokens = trainer._rewards_of(generated), trainer.method.tokens.active
    everything = rollouts.rolled_out(generated, rewards, trainer.accelerator, tokens=tokens)
    trainer.current_gradient_accumulation_steps = 1

    def gradient(tape):
        plan = changed(trainer.session.plan(prompts, everything, streams=lambda *_: tape))
        new = replace(generated, prompt_ids=generated.prompt_ids.clone())  # passes are laid out once in a generation
        batch = rollouts.rank_batch(new, plan, rank=0)
        batch = trainer.forwards.with_log_probs(trainer.forwards.with_policy_mask(batch, new.place_B, 1))
        (call,), _ = trainer.forwards.calls(batch.cut(slice(0, 1)), batch.weight_UB[0], 1)
        trainer.model.zero_grad()
        for each in call:
            trainer._micro_batch_loss(trainer.model, each, 0, LossMetrics(trainer.method)).backward()
        parameters = dict(trainer.model.named_parameters())
        return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}

    return mean_over_draws(trainer.session, gradient)


def unweighted(plan):
    """The wrong twin of a plan: what is kept counts once."""
    return replace(plan, weight_UN=(plan.weight_UN > 0).double())
