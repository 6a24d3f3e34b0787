"""Training with vLLM beside it or in a server, against stand-ins: what is said at start, and when it dies.

The real library is in tests_vllm.
"""

import sys
import warnings
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import test_trl_dealing as dealing
import torch
import trl.trainer.grpo_trainer
from conftest_trl import GENERATIONS, SHORT, length_reward, problems, scripted
from refusals import refused

from dppo.errors import ConfigError, EngineError
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.batch import correction
from dppo.trl.forwards import ForwardPasses
from dppo_lab.cli.main import main


class Engine:
    """Stands in for TRL's ``VLLMGeneration``: scripted completions, an engine of some precision, and a day to die."""

    broken = None
    dtype, dies_in, error = torch.float32, None, RuntimeError("EngineCore encountered an issue.\nSee stack trace.")

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


def installed(monkeypatch):
    """A library that is installed, and the class that the trainer makes its engine of."""
    library = ModuleType("vllm")
    library.__version__ = "0.30.0"
    monkeypatch.setitem(sys.modules, "vllm", library)
    kind = type("Engine", (Engine,), {})
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", kind)
    return kind


@pytest.fixture
def engine(monkeypatch):
    return installed(monkeypatch)


def run(path, folder, **options):
    settings = SHORT | dict(
        output_dir=str(folder),
        use_vllm=True,
        per_device_train_batch_size=4 * GENERATIONS,
        prompt_prune_rate=0.5,
        completion_prune_rate=0.5,
        completion_score="confidence",
        loss_type="dr_grpo",
        max_steps=6,
        save_strategy="steps",
        save_steps=2,
    )
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


def test_completions_that_no_draw_keeps_have_a_finite_correction(monkeypatch):
    """Their old log-probabilities are not computed; an idle forward may meet one, and weight 0 times inf is NaN."""
    batch = dealing.rolled_out(0)
    batch = replace(batch, sampler_logp=torch.full_like(batch.sampler_logp, -50.0))
    kept_B = batch.weight_UB.sum(0) > 0
    trainer = SimpleNamespace(
        **dict(use_vllm=True, vllm_importance_sampling_correction=True, model=None, method=SimpleNamespace(beta=0.0)),
        **dict(vllm_importance_sampling_clip_min=0.5, vllm_importance_sampling_clip_max=None),
        **dict(vllm_importance_sampling_mode="sequence_truncate", add_figures=lambda figures: None),
        accelerator=SimpleNamespace(gather=lambda value: value),
    )
    forwards = object.__new__(ForwardPasses)
    forwards._trainer = trainer
    old = torch.where(kept_B[:, None], torch.full_like(batch.sampler_logp, -50.1), 0.0)
    monkeypatch.setattr(forwards, "log_probs", lambda part, weight_B, model: old)
    ratio = forwards.with_log_probs(batch).ratio[:, 0]
    assert not kept_B.all() and (ratio[~kept_B] == 1).all() and (ratio[kept_B] < 1).any()
    twin = correction(old, batch.sampler_logp, batch.loss_mask, mode="sequence_truncate", low=0.5, high=None)
    assert twin[~kept_B].isinf().any(), "the wrong twin masks by loss alone"


NO_MEMORY = ValueError("Free memory on device (2.1/79.2 GiB) on startup is less than desired\nGPU memory utilization.")
NO_SERVER = ConnectionError("The vLLM server can't be reached at http://gpu7:8000 after 240 seconds.")
COLOCATED = "vllm_mode: colocate: vLLM could not start in the trainer's process"


@pytest.mark.parametrize(
    ("broken", "options", "failed", "works"),
    [
        (
            NO_MEMORY,
            {"vllm_gpu_memory_utilization": 0.35, "vllm_max_model_length": 64},
            COLOCATED,
            "Its part of the memory is vllm_gpu_memory_utilization: 0.35, its longest sequence "
            "vllm_max_model_length: 64",
        ),
        (
            NO_SERVER,
            {"vllm_mode": "server", "vllm_server_base_url": "http://gpu7:8000"},
            "vllm_mode: server: no vLLM server could be used at http://gpu7:8000",
            'Start one: VLLM_SERVER_DEV_MODE=1 vllm serve {path} --weight-transfer-config \'{{"backend": "nccl"}}\' '
            "--logprobs-mode processed_logprobs",
        ),
    ],
)
def test_an_engine_that_does_not_start_is_one_line(broken, options, failed, works, engine, tiny_path, tmp_path):
    engine.broken = broken
    with pytest.raises(EngineError) as caught:
        run(tiny_path, tmp_path, **options)
    said = str(caught.value)
    cause = " ".join(f"{type(broken).__name__}: {broken}".split())
    assert f"{failed} ({cause}). " in said and works.format(path=tiny_path) in said and "\n" not in said
    assert said.endswith(". Or without vLLM: use_vllm: false") and caught.value.__cause__ is broken


def test_the_command_says_it_without_a_traceback_and_exits_with_2(engine, tiny_path, tmp_path, capsys):
    engine.broken = NO_MEMORY
    words = f"--dataset_name embedded --model_name_or_path {tiny_path} --use_cpu true --bf16 false "
    words += "--num_generations 4 --per_device_train_batch_size 16 --max_completion_length 8 --use_vllm"
    assert main(["train", *words.split(), "--output_dir", str(tmp_path / "out")]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dppo train: ")]
    assert said.startswith(f"dppo train: {COLOCATED} (ValueError: Free memory") and said.endswith("use_vllm: false")


@pytest.fixture(scope="module")
def straight(tiny_path, tmp_path_factory):
    """A run left alone, and its checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        installed(patch)
        trainer = run(tiny_path, folder)
        trainer.train()
    return trainer, folder


def test_an_engine_that_dies_names_the_last_checkpoint_and_the_line_that_resumes(engine, straight, tiny_path, tmp_path):
    engine.dies_in = 5
    died = run(tiny_path, tmp_path / "died")
    folder = tmp_path / "died" / "checkpoint-4"
    named = ("step 5", "RuntimeError: EngineCore encountered an issue. See stack trace.", str(folder), "--resume")
    with refused(EngineError, *named, f"trainer.train(resume_from_checkpoint='{folder}')") as caught:
        died.train()
    assert caught.value.__cause__ is engine.error

    engine.dies_in = None
    resumed = run(tiny_path, tmp_path / "died")
    resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.vllm_generation.asked == straight[0].vllm_generation.asked[4:]
    for one, other in zip(straight[0].model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_that_cannot_be_sent_are_its_failure_and_a_reward_is_not(engine, tiny_path, tmp_path, monkeypatch):
    def refuse(self):
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(engine, "sync_weights", refuse)
    with refused(EngineError, "step 0", "ConnectionError: the server is gone"):
        run(tiny_path, tmp_path).train()


def test_training_without_vllm_names_the_install_line(tiny_path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with refused(ConfigError, "use_vllm: true", "pip install 'vllm>=0.22,<0.32'"):
        run(tiny_path, tmp_path)


@pytest.mark.parametrize("version", ["0.21.3", "0.32.0"])
def test_training_with_a_version_that_trl_does_not_take_is_refused(version, engine, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    with refused(ConfigError, "use_vllm: true", version, "vllm>=0.22,<0.32"):
        run(tiny_path, tmp_path)
