"""What TRL documents for its trainer, done with both trainers: with nothing pruned, the same comes out."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import one_in
from peft import LoraConfig
from tiny_runs import length_reward, problems, scripted
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer
from trl_behaviours_cases import (
    Build,
    Scene,
    differences,
    ids_reward,
    in_environment,
    sampled,
    save_models,
    setting,
    tools,
    words,
)

from dppo.trl import DPPOTrainer

ADAPTER = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
EVALUATED = dict(eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8)


@pytest.fixture(scope="module")
def models(tiny_path, tmp_path_factory):
    """Paths of a scene's models."""
    return save_models(tiny_path, tmp_path_factory.mktemp("behaviours"))


@pytest.fixture
def both(models, tmp_path):
    """Runs a scene with both trainers."""

    def run(build, ours=DPPOTrainer):
        kinds = {"stock": GRPOTrainer, "ours": ours}
        return [Scene(folder=tmp_path / name, **models).trained(kind, build) for name, kind in kinds.items()]

    return run


def rollout_fields(scene: Scene) -> dict:
    def rollout(prompts, trainer):
        found = scripted(prompts, trainer)
        return found | {"number": [float(sum(ids) % 3) for ids in found["completion_ids"]], "of_all": "same"}

    def number_reward(number, **_):
        return number

    return words(scene, rollout_func=rollout, reward_funcs=scene.watched(number_reward))


def weighted_rewards(scene: Scene) -> dict:
    rewards = [scene.watched(ids_reward), scene.watched(length_reward)]
    return words(scene, reward_funcs=rewards, config=dict(reward_weights=[1.0, 0.3]))


def rewards_of_none(scene: Scene) -> dict:
    def sometimes(completion_ids, **_):
        return [None if sum(ids) % 4 == 0 else float(sum(ids) % 3) for ids in completion_ids]

    def at_first(completion_ids, trainer_state, **_):
        return [None if trainer_state.global_step else float(len(ids)) for ids in completion_ids]

    return words(scene, reward_funcs=[scene.watched(sometimes), scene.watched(at_first)])


def logging_rewards(scene: Scene) -> dict:
    def telling(completion_ids, log_extra, log_metric, **_):
        log_extra("first id", [ids[0] for ids in completion_ids])
        log_metric("tokens", float(sum(map(len, completion_ids))))
        return ids_reward(completion_ids)

    return words(scene, reward_funcs=scene.watched(telling))


def optimizer_given(scene: Scene) -> dict:
    model = AutoModelForCausalLM.from_pretrained(scene.words)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    return words(scene, model=model, optimizers=(optimizer, schedule))


class Events(TrainerCallback):
    """Keeps every event with what the control says, and stops the run after three steps."""

    def __init__(self, seen: list):
        for event in (name for name in dir(TrainerCallback) if name.startswith("on_")):
            setattr(self, event, partial(self.keep, seen, event))

    @staticmethod
    def keep(seen, event, args, state, control, **_):
        seen.append((event, state.global_step, state.epoch, dict(vars(control))))
        control.should_training_stop |= state.global_step == 3


def callbacks(scene: Scene) -> dict:
    every = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    config = every | dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=6)
    return words(scene, eval_dataset=problems(2), callbacks=[Events(scene.seen)], config=config)


BEST = dict(save_strategy="steps", save_steps=1, load_best_model_at_end=True, metric_for_best_model="eval_loss")
TWICE = dict(num_iterations=2, steps_per_generation=2, per_device_train_batch_size=8, learning_rate=2e-3, max_steps=4)

BEHAVIOURS: dict[str, Build] = {
    "callbacks": callbacks,
    "evaluation": lambda scene: words(scene, eval_dataset=problems(4), config=EVALUATED),
    "evaluation sets": lambda scene: words(scene, eval_dataset={"a": problems(2), "b": problems(6)}, config=EVALUATED),
    "best model": lambda scene: words(scene, eval_dataset=problems(4), config=EVALUATED | BEST),
    "lora": lambda scene: words(scene, peft_config=copy.copy(ADAPTER)),
    "tools": tools,
    "environment": in_environment,
    "environment, no dataset": lambda scene: in_environment(scene, train_dataset=None),
    "rollout fields": rollout_fields,
    "sampled text": lambda scene: words(scene, rollout_func=None, config=dict(max_steps=3)),
    "sampling settings": setting(sampled, temperature=0.8, top_p=0.9, top_k=50, repetition_penalty=1.1),
    "streamed dataset": lambda scene: words(scene, train_dataset=problems(8).to_iterable_dataset()),
    "weighted rewards": weighted_rewards,
    "rewards of none": rewards_of_none,
    "logging rewards": logging_rewards,
    "no reference": lambda scene: words(scene, reward_funcs=scene.watched(length_reward), config=dict(beta=0.0)),
    "synced reference": setting(sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=0.5, max_steps=3),
    "accumulation": setting(gradient_accumulation_steps=2, **TWICE),
    "masked truncation": setting(sampled, mask_truncated_completions=True, max_steps=3),
    "padding to a multiple": setting(pad_to_multiple_of=8),
    "optimizer given": optimizer_given,
    "arguments by position": lambda scene: dict(more=(problems(8), problems(4)), config=EVALUATED),
    "epochs": setting(num_train_epochs=2, max_steps=-1),
}

NOT_FORWARDED = "completions without an advantage are not forwarded: it is a mean over the others"
OF_PASSES = ("kl", "entropy", *(f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max")))
OF_STEP = "a mean over the step, and not over means of its micro-batches"
DIFFERENT = {
    "no reference": {"entropy": NOT_FORWARDED},
    "callbacks": dict.fromkeys(("kl", "entropy"), OF_STEP),
    "accumulation": dict.fromkeys({*OF_PASSES, "clip_ratio/region_mean"} - {"clip_ratio/low_min"}, OF_STEP),
    # Every completion is truncated: no pass is run, and nothing is measured. TRL logs zeros.
    "masked truncation": dict.fromkeys((*OF_PASSES, "clip_ratio/region_mean"), NOT_FORWARDED),
}
"""Metrics that differ from TRL's, by behaviour, with the reason."""

OCCURS = {
    "evaluation sets": "eval_b_runtime",
    "lora": "kl",
    "tools": "tools/failure_frequency",
    "logging rewards": "tokens",
    "accumulation": "clip_ratio/high_mean",
    "masked truncation": "completions/clipped_ratio",
}
"""A figure that is above 0 where the behaviour occurs at all."""


@pytest.mark.parametrize("name", one_in(3, {name: name for name in BEHAVIOURS}))
def test_same_as_trl(name, both):
    stock, ours = both(BEHAVIOURS[name])
    assert differences(stock, ours, DIFFERENT.get(name, {})) == []
    found = "\n".join(differences(stock, ours))
    assert all(f": {figure} is" in found for figure in DIFFERENT.get(name, {})), "listed, but it is the same"
    assert name not in OCCURS or max(entry.get(OCCURS[name], 0.0) for entry in stock.logs) > 0


SAVED = setting(sampled, max_steps=4, save_strategy="steps", save_steps=2)


@pytest.fixture(scope="module")
def straight(models, tmp_path_factory):
    """Runs of four steps with a checkpoint in the middle."""
    folder, kinds = tmp_path_factory.mktemp("straight"), {"TRL": GRPOTrainer, "ours": DPPOTrainer}
    return {name: Scene(folder=folder / name, **models).trained(kind, SAVED) for name, kind in kinds.items()}


@pytest.mark.parametrize("by", [GRPOTrainer, DPPOTrainer])
@pytest.mark.parametrize("whose", ["TRL", "ours"])
def test_resumed_is_straight(whose, by, straight, models, tmp_path):
    """A checkpoint of either trainer goes on in either, and the sampled completions are those of a run never stopped.

    TRL's own checkpoint is taken at the end of an epoch: ours begins with the first prompt again, and says so.
    """
    checkpoint = straight[whose].folder / "checkpoint-2"
    foreign = whose == "TRL" and by is DPPOTrainer
    with pytest.warns(UserWarning, match="not written by DPPOTrainer") if foreign else nullcontext():
        resumed = Scene(folder=tmp_path, **models).trained(by, SAVED, resume_from_checkpoint=str(checkpoint))
    whole = straight["TRL"]
    rest = replace(whole, files=set(), seen=whole.seen[2:])
    assert differences(rest, resumed, {"train_loss": "a mean since the resume"}) == []
    assert differences(whole, straight["ours"]) == []


class DropsWeights(DPPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reward_weights = torch.ones_like(self.reward_weights)


class EvaluatesNothing(DPPOTrainer):
    def evaluate(self, *args, **kwargs):
        return {}


class TrainsOnTools(DPPOTrainer):
    def roll_out(self, examples, **groups):
        found = super().roll_out(examples, **groups)
        return replace(found, loss_mask=found.completion_mask)


BROKEN = {
    DropsWeights: ("weighted rewards", "weights differ"),
    EvaluatesNothing: ("evaluation", "3 logs for 5"),
    TrainsOnTools: ("tools", "weights differ"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_behaviour_is_seen(kind, both):
    name, sign = BROKEN[kind]
    assert any(sign in line for line in differences(*both(BEHAVIOURS[name], ours=kind)))
