"""A resumed run is bit for bit the run that was never stopped, mid-epoch and mid-generation too."""

import contextlib
import json
import signal

import dpo_runs
import pytest
import sft_runs
import torch
from cases import parameters
from refusals import warned
from resumed_runs import ROUNDS, SAVED, STEPS, TWO_PASSES, trainer
from safetensors.torch import load_file, save_file
from tiny_runs import alike, length_reward, logged, problems, processes, scripted
from transformers import Qwen3MoeForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_layout_cases import mixture, saved

from dppo.trl.checkpoints.files import latest_checkpoint, weight_names
from dppo.trl.checkpoints.resume import load_saved_weights

CASES = {
    "plain": ({}, (3, 5)),
    "two passes": (TWO_PASSES, (2, 5)),
    "rounds": (ROUNDS, (3,)),
    # The file has a weight for each expert, and the model one for all: transformers' loop skips those.
    "experts": ({"model": mixture}, (5,)),
    "tokens": (
        {"token_prune_rate": 0.4, "head_prune_rate": 0.3, "loss_type": "dr_grpo", "rollout": scripted} | TWO_PASSES,
        (3,),
    ),
}
SLOW = {
    "parts of generations": (
        {"steps_per_generation": 4, "gradient_accumulation_steps": 3, "per_device_train_batch_size": 8},
        (2, 5),
    ),
    "fill": ({"prompt_mode": "fill"}, (3,)),
    "pass rates in the data": ({"prompt_prior": {"column": "solve_rate", "completions": 4}}, (1, 3)),
    # What is expected of a prompt, and the size of its group, come from the checkpoint.
    "groups of one": (
        {"method": "dppo_history", "num_generations": 1, "per_device_train_batch_size": 4, "prompt_prune_rate": 0.0},
        (3,),
    ),
    "sizes by history": ({"method": "dppo_history_sizes", "prompt_prune_rate": 0.0}, (3,)),
    "rounds, two passes": (ROUNDS | TWO_PASSES | {"per_device_train_batch_size": 6}, (1,)),
}


@pytest.mark.parametrize("case", parameters(CASES | SLOW, SLOW))
def test_resumed_equals_uninterrupted(case, tiny_path, tmp_path):
    """From checkpoints of a run left alone, which are those that a stopped run leaves: the killed process shows it."""
    (options, stops), straight, path = case, [], tiny_path
    if "model" in options:
        path, options = saved(options["model"](), tiny_path, tmp_path / "model"), {}
    first = trainer(path, tmp_path / "a", seen=straight, **options)
    first.train()
    assert first.method.rounds is None or max(logged(first, "rollout/rounds")) > 1, "the run has several rounds"
    for stop in stops:
        checkpoint, folder, after = tmp_path / "a" / f"checkpoint-{stop}", tmp_path / f"from {stop}", []
        trainer(path, folder, seen=after, **options).train(resume_from_checkpoint=str(checkpoint))
        generation = json.loads((checkpoint / "dppo_state.json").read_text())["session"]["number"]
        assert straight[len(straight) - len(after) :] == after
        assert first.method.rounds is not None or len(straight) == generation + len(after)
        assert alike(tmp_path / "a", folder), stop
    (checkpoint / "dppo_state.json").unlink()
    forgetful = trainer(path, tmp_path / "lost", seen=(lost := []), accept_missing=True, **options)
    with warned("not written by DPPOTrainer"):
        forgetful.train(resume_from_checkpoint=str(checkpoint))
    same = lost == straight[-len(lost) :] and alike(tmp_path / "a", tmp_path / "lost")
    assert not same, "a run that forgets its history is another one"


@pytest.mark.parametrize("runs", [sft_runs, dpo_runs])
def test_a_mixture_of_experts_on_rows(runs, tiny_path, tmp_path):
    """Resumed, and with its best model at the end: that of the largest loss, which is not the last."""
    data = runs.solutions(4) if runs is sft_runs else runs.pairs(4)
    given = dict(save_strategy="steps", save_steps=1, max_steps=4, learning_rate=1e-2, row_prune_rate=0.0)
    given |= dict(eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, greater_is_better=True)
    for folder, point in (("a", None), ("b", str(tmp_path / "a" / "checkpoint-2"))):
        own = {"model": sft_runs.experts(), "eval_dataset": data}
        again = runs.ours(tiny_path, tmp_path / folder, own=own, metric_for_best_model="eval_loss", **given)
        again.train(resume_from_checkpoint=point)
    assert alike(tmp_path / "a", tmp_path / "b")
    best = str(again.state.best_model_checkpoint)
    assert best.endswith("-1")
    assert all(map(torch.equal, again.model.parameters(), Qwen3MoeForCausalLM.from_pretrained(best).parameters()))


def test_names_of_saved_weights_and_a_file_without_some(tiny_path, tmp_path):
    path, file = saved(mixture(), tiny_path, tmp_path / "model"), tmp_path / "model" / "model.safetensors"
    Qwen3MoeForCausalLM.from_pretrained(path).save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    names = weight_names(tmp_path / "parts")
    assert names == weight_names(tmp_path / "model") and names - mixture().state_dict().keys()
    assert weight_names(tmp_path) == set()
    save_file({name: value for name, value in load_file(file).items() if "q_proj" not in name}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights model\.layers\.0\.self_attn\.q_proj"):
        load_saved_weights(mixture(), path)


class EndsAfterSix(TrainerCallback):
    """Ends a run by itself, without an exception, which would drop the generation."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 6


def test_a_trainer_that_goes_on_in_the_same_process_forgets_its_own_generation(tiny_path, tmp_path):
    """As in a notebook: it trained two steps further than the checkpoint, which lies between two generations."""
    trainer(tiny_path, tmp_path / "a", **TWO_PASSES).train()
    again = trainer(tiny_path, tmp_path / "b", callbacks=[EndsAfterSix()], **TWO_PASSES)
    again.train()
    assert again.calls % again.schedule.length, "it stopped in the middle of a generation"
    again.remove_callback(EndsAfterSix)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    assert alike(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow  # three more processes: resumed runs of this file, and of test_trl_auto, are those of one process
@pytest.mark.parametrize(("kind", "ranks"), [("auto", 1), ("auto", 2), ("sft", 2), ("dpo", 2)])
def test_a_killed_run_goes_on_bit_for_bit(kind, ranks, tiny_path, tmp_path):
    """SIGKILL in step 6, where prompts, rows or pairs are pruned; rollouts are sampled."""
    for folder, step, end in (("a", 0, 0), ("b", 6, -signal.SIGKILL if ranks == 1 else 1), ("b", 0, 0)):
        done = processes(ranks, "killed_runs.py", kind, tiny_path, tmp_path / folder, step)
        assert done.returncode == end, done.stderr.decode()[-3000:]
        assert latest_checkpoint(tmp_path / folder) == tmp_path / folder / f"checkpoint-{5 if step else STEPS}"
    assert alike(tmp_path / "a", tmp_path / "b")
    logs = json.loads((tmp_path / "a" / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())["log_history"]
    share = "prune/prompts_kept_share" if kind == "auto" else "prune/kept_share"
    assert min(row[share] for row in logs if share in row and row["step"] < 6) < 1, "pruned before it was killed"


@pytest.mark.parametrize(
    "change",
    [{"loss_type": "dapo"}, {"entropy_coef": 0.5}, {"gradient_accumulation_steps": 2}],
    ids=["loss", "bonus", "schedule"],
)
def test_a_generation_made_for_another_step_is_rolled_out_again(change, tiny_path, tmp_path):
    """Its denominator, and which completions are in it, are the loss's: the wrong twin's step was 7 times too long."""
    options = {"steps_per_generation": 2, "per_device_train_batch_size": 8, "loss_type": "grpo", "max_steps": 4}
    trainer(tiny_path, tmp_path, **options).train()
    for asked, seen in (({}, []), (change, [])):
        made = trainer(tiny_path, tmp_path / "b", seen=seen, **options | asked)
        checkpoint = str(tmp_path / "checkpoint-3")
        with warned(*change, "rolled out again") if asked else contextlib.nullcontext():
            made.train(resume_from_checkpoint=checkpoint)
        assert bool(seen) == bool(asked) and made.state.global_step == 4


def test_trl_alone_replays_the_first_epoch(tiny_path, tmp_path):
    """The reason why the prompt order is ours: if this fails, TRL has been mended and the stream could go."""
    seen = []

    def reward(prompts, completions, **_):
        seen.append(tuple(prompts))
        return length_reward(prompts, completions)

    for folder, checkpoint in (("a", None), ("b", str(tmp_path / "a" / "checkpoint-3"))):
        config = GRPOConfig(str(tmp_path / folder), **SAVED | dict(max_completion_length=4, max_steps=5))
        stock = GRPOTrainer(tiny_path, reward, args=config, train_dataset=problems(8))
        stock.train(resume_from_checkpoint=checkpoint)
    assert len(seen) == 5 + 2 and seen[5:] != seen[3:5]
