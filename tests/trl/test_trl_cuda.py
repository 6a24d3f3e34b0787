"""On a GPU, in bfloat16: what a CPU cannot show. The other files run there too: ``TEST_ON=cuda pytest tests/trl``."""

import math

import pytest
import torch
from dpo_runs import ours as preferences
from sft_runs import ours as supervised
from tiny_runs import SHORT, length_reward, logged, problems, relative_difference, scripted
from trl_gradients import dppo_run, trl_run

from dppo.packing.kernels import SEGMENT_SDPA, candidates, choose_kernel, probe
from dppo.packing.rows import Segments
from dppo.trl import DPPOConfig, DPPOTrainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
HALF = dict(use_cpu=False, bf16=True)
CUDA = torch.device("cuda")
LONG = Segments(length_S=(150, 130, 400, 1, 77, 129, 513, 33), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_kernel_is_chosen_that_agrees_on_long_segments_too(dtype, head_dim):
    kernel = choose_kernel(CUDA, dtype, head_dim)
    if dtype != torch.float32 and head_dim >= 64 and torch.cuda.get_device_capability() >= (8, 0):
        assert kernel.name == "torch varlen", kernel.reason
    assert probe(kernel, CUDA, dtype, head_dim, segments=LONG, windows=(None, 128)) == ""


@pytest.mark.parametrize("kernel", candidates(CUDA, torch.bfloat16), ids=lambda kernel: kernel.name)
def test_no_kernel_is_silently_wrong(kernel):
    problem = probe(kernel, CUDA, torch.bfloat16, 64, segments=LONG, windows=(None, 128))
    assert not problem.startswith("its "), problem
    assert kernel is not SEGMENT_SDPA or not problem


@pytest.mark.parametrize(
    "options", [dict(beta=0.0), dict(beta=0.2, num_iterations=2, max_steps=2), dict(loss_type="grpo")]
)
def test_the_gradient_is_trls_up_to_rounding(options, tiny_path, tmp_path):
    """Against TRL's in float32, bfloat16 is off by about the same for both trainers."""
    exact, _ = trl_run(tiny_path, tmp_path / "exact", use_cpu=False, **options)
    stock, _ = trl_run(tiny_path, tmp_path / "stock", **HALF, **options)
    mine, trainer = dppo_run(tiny_path, tmp_path / "mine", completion_prune_rate=0.0, **HALF, **options)
    assert next(trainer.model.parameters()).is_cuda
    for ours, theirs, wanted in zip(mine, stock, exact, strict=True):
        assert relative_difference(ours, wanted) < max(2 * relative_difference(theirs, wanted), 1e-3)


EVERYTHING = {
    "default": {},
    "kl": dict(beta=0.04, prompt_prune_rate="auto"),
    "two updates": dict(num_iterations=2),
    "tokens": dict(completion_prune_rate=0.0, token_prune_rate=0.4, head_prune_rate=0.3, rollout=scripted),
    "rates": dict(prompt_prune_rate=0.5, completion_prune_rate=0.5),
    "padded": dict(layout="padded", completion_prune_rate=0.5),
    "float16": dict(bf16=False, fp16=True, completion_prune_rate=0.5),
    "checkpointing": dict(gradient_checkpointing=True, completion_prune_rate=0.5),
}


@pytest.mark.parametrize("options", EVERYTHING.values(), ids=EVERYTHING)
def test_a_run_that_generates_goes_to_its_end_and_on(options, tiny_path, tmp_path):
    settings = SHORT | HALF | dict(output_dir=str(tmp_path), per_device_train_batch_size=16, max_steps=6) | options
    settings |= dict(save_strategy="steps", save_steps=3, loss_type="dr_grpo")
    own = dict(train_dataset=problems(12), rollout_func=settings.pop("rollout", None))
    first, again = (DPPOTrainer(tiny_path, length_reward, args=DPPOConfig(**settings), **own) for _ in range(2))
    first.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for run in (first, again):
        assert run.state.global_step == 6 and all(math.isfinite(value) for value in logged(run, "loss"))
        assert next(run.model.parameters()).is_cuda


@pytest.mark.parametrize("make", [supervised, preferences])
def test_rows_of_data(make, tiny_path, tmp_path):
    made = make(tiny_path, tmp_path, row_prune_rate=0.5, max_steps=4, **HALF)
    made.train()
    assert all(math.isfinite(value) for value in logged(made, "loss"))
