"""Two processes under FSDP2: one process's gradients and weights, a model that loads, a resume, an adapter."""

import dpo_runs
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from tiny_runs import GENERATIONS, SHARDED, UNEVEN, relative_difference, two_processes
from transformers import AutoModelForCausalLM
from trl_gradients import TOLERANCE, dppo_run

pytestmark = pytest.mark.slow  # another start of two processes: tests/trl/test_trl_ranks.py is quick


@pytest.fixture(scope="module")
def folder(tiny_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    two_processes("fsdp_two_ranks.py", tiny_path, str(folder))
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return torch.load(folder / "results.pt")


def test_a_run_in_shards_is_that_of_one_process_and_its_model_is_written_whole(folder, results, tiny_path, tmp_path):
    """TRL's own ``save_model`` writes nothing there: the wrong twin is what the folder of a checkpoint holds."""
    alone, trainer = dppo_run(tiny_path, tmp_path, **SHARDED)
    assert results["wrapper"] == "FSDPQwen3ForCausalLM" and results["sharded"] > 20
    assert relative_difference(results["first"], alone[0]) < TOLERANCE
    saved, start = (AutoModelForCausalLM.from_pretrained(each) for each in (folder / "saved", tiny_path))
    ours, before, theirs = (dict(each.named_parameters()) for each in (saved, start, trainer.model))
    moved = {name: theirs[name] - before[name] for name in theirs}
    assert relative_difference({name: ours[name] - before[name] for name in ours}, moved) < 1e-3
    resumed, straight = (load_file(folder / name / "model.safetensors") for name in ("resumed", "saved"))
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    checkpoints = folder / "straight" / "DPPOTrainer"
    assert (checkpoints / "checkpoint-2" / "dppo_files.json").exists()
    last = checkpoints / "checkpoint-4"
    assert (last / "pytorch_model_fsdp_0").is_dir() and not (last / "model.safetensors").exists()


def test_a_rank_without_rows_changes_no_gradient(results, tiny_path, tmp_path):
    """Left at home all rows are the first rank's; the second forwards as often, at weight 0."""
    first, second = results["rows of each rank"]
    assert first > 0 == second
    alone, _ = dppo_run(tiny_path, tmp_path, completion_prune_rate=0.5, **UNEVEN)
    assert len(results["empty"]) == len(alone) == 2
    assert max(relative_difference(*pair) for pair in zip(results["empty"], alone, strict=True)) < TOLERANCE


def test_gradients_are_synchronized_once_in_a_step(results, tiny_path, tmp_path):
    """By the last pass of the last call. accelerate's ``no_sync`` alone leaves it on within the first call.

    The second rank has no rows, and runs as many passes: each gathers parameters.
    """
    first, second = results["synchronized"]
    assert all(map(all, results["each batch"])), "with sync_each_batch every pass reduces, on both ranks"
    assert first == second == [False] * (len(first) - 1) + [True] and len(first) > 3
    options = UNEVEN | {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4 * GENERATIONS}
    options |= {"completion_prune_rate": 0.0, "num_iterations": 1, "max_steps": 1}
    (alone,), _ = dppo_run(tiny_path, tmp_path, **options)
    assert max(relative_difference(together, alone) for together in results["halves"]) < TOLERANCE


def test_an_adapter_is_written_whole(folder):
    model = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter")
    grown = [value for name, value in model.named_parameters() if "lora_B" in name]
    assert grown and all(bool(value.abs().max() > 0) for value in grown), "they begin at 0"


def test_a_rank_without_pairs_gathers_the_reference_with_the_other(results, tiny_path, tmp_path):
    """Steps of two pairs, of which the second epoch keeps one: a rank that left the reference out would hang both."""
    assert results["reference"] == [True, True] and sum(results["idle"]) > 0
    options = {"data": dpo_runs.pairs(12), "max_steps": 9, "learning_rate": 1e-3}
    one = dpo_runs.ours(tiny_path, tmp_path, per_device_train_batch_size=2, **options)
    one.train()
    assert results["scores"] == pytest.approx(one.source.scores.score.tolist(), rel=1e-2)
