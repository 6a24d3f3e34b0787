"""Training with vLLM beside it or in a server, against stand-ins: what is said at start, and when it dies.

The real library is in tests_vllm.
"""

import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace

import dealt_batches as dealing
import pytest
import torch
import trl.trainer.grpo_trainer
from refusals import refused
from tiny_runs import GENERATIONS, SHORT, length_reward, logged, problems, scripted

from dppo.errors import ConfigError, EngineError
from dppo.lab.cli.main import main
from dppo.packing.attention import use_rows
from dppo.packing.head import add_scored_head
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.batch import MicroBatch
from dppo.trl.correction import sampling_ratio
from dppo.trl.forwards import ForwardPasses
from dppo.trl.layouts import RowLayout


class Engine:
    """Stands in for TRL's ``VLLMGeneration``: scripted completions, an engine of some precision, and a day to die."""

    dtype, broken, dies_in = torch.float32, None, None
    error = RuntimeError("EngineCore encountered an issue.\nSee stack trace.")

    def __init__(self, *, processing_class, mode, **options):
        self.tokenizer, self.asked = processing_class, []
        if self.broken is not None:
            raise self.broken
        config = SimpleNamespace(dtype=self.dtype, max_model_len=512)
        if mode == "colocate":
            self.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))
        else:
            described = {"dtype": str(self.dtype), "logprobs_mode": "processed_logprobs"}
            self.vllm_client = SimpleNamespace(get_server_info=lambda: {"model_config": described})

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations, profiler):
        if len(self.asked) == self.dies_in:
            raise self.error
        self.asked.append(prompts)
        texts = self.tokenizer.batch_decode(prompts)
        output = scripted(texts, SimpleNamespace(processing_class=self.tokenizer))
        return prompts, output["completion_ids"], [[[p] for p in one] for one in output["logprobs"]], None


@pytest.fixture
def engine(monkeypatch):
    """A library that is installed, and the class that the trainer makes its engine of."""
    library = ModuleType("vllm")
    library.__version__ = "0.30.0"
    monkeypatch.setitem(sys.modules, "vllm", library)
    kind = type("Engine", (Engine,), {})
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", kind)
    return kind


def run(path, folder, **options):
    settings = SHORT | dict(output_dir=str(folder), use_vllm=True, per_device_train_batch_size=4 * GENERATIONS)
    settings |= dict(prompt_prune_rate=0.5, completion_prune_rate=0.5, completion_score="uncertainty")
    settings |= dict(loss_type="dr_grpo", max_steps=6, save_strategy="steps", save_steps=2)
    args = DPPOConfig(**settings | options)
    return DPPOTrainer(path, length_reward, args=args, train_dataset=problems(8))


@pytest.mark.parametrize(("sampled", "times"), [(torch.bfloat16, 1), (torch.float32, 0)], ids=str)
def test_a_float32_trainer_says_once_that_vllm_samples_in_bfloat16(sampled, times, engine, tiny_path, tmp_path):
    engine.dtype = sampled
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tiny_path, tmp_path, vllm_mode="server")
    said = [str(warning.message) for warning in caught if "vLLM samples" in str(warning.message)]
    assert len(said) == times and all(text.endswith("start the server with --dtype float32") for text in said)


def test_an_idle_pass_has_a_finite_correction():
    """Its row is one that no draw keeps, and weight 0 times inf is NaN."""
    settings = {"mode": "sequence_truncate", "clip_min": 0.5, "clip_max": None}
    args = SimpleNamespace(**{f"vllm_importance_sampling_{name}": value for name, value in settings.items()})
    batch, places = dealing.rolled_out(0), [0, 1]
    batch = replace(batch, sampler_logp=torch.full_like(batch.sampler_logp, -1000.0))
    idle = MicroBatch(batch, places, torch.tensor(places), torch.zeros(2), 10, idle=True)
    found, twin = (
        each.tokens_of(torch.zeros(2, idle.completion_width), first=True, correct=partial(sampling_ratio, args))
        for each in (idle, replace(idle, idle=False))
    )
    assert (found.correction_B1 == 1).all() and twin.correction_B1.isinf().any(), "the wrong twin"


@pytest.fixture
def passes(monkeypatch):
    """The gradient mode and the rows of every forward pass of a run, and its ratios of sampler and trainer."""
    passes, forward, tokens_of = [], RowLayout.forward, MicroBatch.tokens_of

    def counted(self, model, batch, **asked):
        passes.append({"gradient": torch.is_grad_enabled(), "rows": list(batch.places)})
        return forward(self, model, batch, **asked)

    def watched(self, logp, **asked):
        tokens = tokens_of(self, logp, **asked)
        passes[-1] |= {"ratio": tokens.correction_B1, "logp": logp.detach(), "batch": self}
        return tokens

    monkeypatch.setattr(RowLayout, "forward", counted)
    monkeypatch.setattr(MicroBatch, "tokens_of", watched)
    monkeypatch.setattr(ForwardPasses, "check_once", lambda self: None)
    return passes


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_with_one_draw_the_training_pass_is_the_old_pass(mode, engine, passes, tiny_path, tmp_path):
    """No pass without a gradient is run, and the ratio is the one that such a pass would give, bit for bit."""
    options = dict(max_steps=1, save_strategy="no", vllm_importance_sampling_mode=mode)
    trainer = run(tiny_path, tmp_path, vllm_mode="server", **options)
    correct, copy = trainer.forwards.correction, deepcopy(trainer.model)
    trainer.train()
    (trained,) = passes
    assert trained["gradient"]
    use_rows(copy)
    add_scored_head(copy, temperature=1.0)
    batch = trained["batch"]
    with torch.no_grad():
        old = trainer.forwards.layout.forward(copy, batch, entropy=False, router=False).logp_BT
    mask, sampler = (batch.completion(t) for t in (batch.rank_batch.loss_mask, batch.rank_batch.sampler_logp))
    assert torch.equal(correct(old, sampler, mask), trained["ratio"])
    off = ((old - sampler).abs() * mask).sum() / mask.sum()
    assert logged(trainer, "sampling/sampling_logp_difference/mean") == [pytest.approx(float(off), rel=1e-5)]


def test_with_several_draws_only_later_ones_need_the_old_pass(engine, passes, tiny_path, tmp_path):
    options = dict(max_steps=2, num_iterations=2, save_strategy="no", completion_prune_rate=0.5)
    trainer = run(tiny_path, tmp_path, vllm_mode="server", **options)
    trainer.train()
    weight_UB = trainer.in_use.batch.weight_UB
    later = {row for each in passes if not each["gradient"] for row in each["rows"]}
    second, any_draw = (set(weight_B.nonzero().flatten().tolist()) for weight_B in (weight_UB[1], weight_UB.sum(0)))
    assert later == second != any_draw
    assert all(each["ratio"] is not None for each in passes if each["gradient"])


def test_a_server_that_is_not_there_is_one_line(engine, tiny_path, tmp_path):
    address = "http://gpu7:8000"
    engine.broken = ConnectionError(f"The vLLM server can't be reached at {address} after\n240 seconds.")
    cause = f"ConnectionError: The vLLM server can't be reached at {address} after 240 seconds."
    with refused(EngineError, cause, f"used at {address}", "vllm serve ", "use_vllm: false") as caught:
        run(tiny_path, tmp_path, vllm_mode="server", vllm_server_base_url=address)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is engine.broken


def test_the_command_says_that_vllm_did_not_start_and_exits_with_2(engine, tiny_path, tmp_path, capsys):
    engine.broken = ValueError("Free memory on device (2.1/79.2 GiB) is less than desired\nGPU memory utilization.")
    words = f"--dataset_name embedded --model_name_or_path {tiny_path} --use_cpu true --bf16 false --use_vllm "
    words += "--num_generations 4 --per_device_train_batch_size 16 --max_completion_length 8 "
    words += "--vllm_gpu_memory_utilization 0.35"
    assert main(["train", *words.split(), "--output_dir", str(tmp_path / "out")]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dppo train: ")]
    assert "vllm_mode: colocate: vLLM could not start in the trainer's process (ValueError: Free memory" in said
    assert "vllm_gpu_memory_utilization: 0.35" in said and said.endswith("use_vllm: false")


def test_an_engine_that_dies_names_the_last_checkpoint_and_the_line_that_resumes(engine, tiny_path, tmp_path):
    straight, folder = run(tiny_path, tmp_path / "straight"), tmp_path / "died" / "checkpoint-4"
    straight.train()
    engine.dies_in = 5
    named = ("step 5", "RuntimeError: EngineCore encountered an issue. See stack trace.", str(folder), "--resume")
    with refused(EngineError, *named, f"trainer.train(resume_from_checkpoint='{folder}')") as caught:
        run(tiny_path, tmp_path / "died").train()
    assert caught.value.__cause__ is engine.error

    engine.dies_in = None
    resumed = run(tiny_path, tmp_path / "died")
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.vllm_generation.asked == straight.vllm_generation.asked[4:]
    assert all(map(torch.equal, straight.model.parameters(), resumed.model.parameters()))


def test_weights_that_cannot_be_sent_are_its_failure_and_a_reward_is_not(engine, tiny_path, tmp_path, monkeypatch):
    def refuse(self):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(engine, "sync_weights", refuse)
    with refused(EngineError, "step 0", "ConnectionError: the server is gone"):
        run(tiny_path, tmp_path).train()


@pytest.mark.parametrize("version", ["", "0.21.3", "0.31.0"])
def test_without_vllm_and_with_a_version_that_is_not_served_a_run_is_refused(version, tiny_path, tmp_path, monkeypatch):
    library = SimpleNamespace(__version__=version, __spec__=None) if version else None
    monkeypatch.setitem(sys.modules, "vllm", library)
    with refused(ConfigError, "use_vllm: true", version, "vllm>=0.22,<0.31"):
        run(tiny_path, tmp_path)
