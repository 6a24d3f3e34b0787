"""docs/metrics.md against what runs log: no name that is not there, and none that never appears."""

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "trl"), str(HERE / "lab")]

from tiny_runs import GENERATIONS, length_reward, tiny_path  # noqa: E402
from toy_evaluation import ASKER, toy_set  # noqa: E402
from transformers import Trainer, TrainerCallback  # noqa: E402
from trl_layout_cases import mixture  # noqa: E402
from trl_recorder_runs import make  # noqa: E402

from dppo.lab.runs.benchmarks import BenchmarkCallback, figures_of  # noqa: E402
from dppo.lab.subject import SubjectSampling  # noqa: E402

__all__ = ["tiny_path"]
PAGE = HERE.parent / "docs" / "metrics.md"


def pattern(name):
    name = re.escape(name).replace("<benchmark>", r"(?!average/)[\w.-]+")
    return re.compile(name.replace("<function>", r"\w+"))


def differences(names, logged):
    """Logged names that no documented one fits, and documented ones that fit no logged one."""
    unknown = {name for name in logged if not any(pattern(each).fullmatch(name) for each in names)}
    return unknown, {name for name in names if not any(map(pattern(name).fullmatch, logged))}


def mixed_then_equal(prompts, completions, answer, **_):
    """Rewards that differ within the groups of the first four problems only."""
    rewards = [reward / 2 for reward in length_reward(prompts, completions)]
    return [r if int(n) < 4 else float(int(n) % 2 == 0) for r, n in zip(rewards, answer, strict=True)]


def with_sampler(trainer):
    """A run whose completions come with the log-probabilities of vLLM, for which no engine is needed here."""
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)


def with_benchmarks(trainer):
    asked = (toy_set(3, "one"),), ASKER, SubjectSampling(max_new_tokens=40)
    log = lambda metrics: Trainer.log(trainer, metrics)  # noqa: E731
    trainer.add_callback(BenchmarkCallback(lambda: figures_of(*asked), log, every=2))


ROUNDS = {"accept_bias": True, "prompt_prune_rate": 0.0, "completion_prune_rate": 0.0, "reward": mixed_then_equal}
ROUNDS |= {"per_device_train_batch_size": 3 * GENERATIONS}
RUNS = {
    "dppo": ({"beta": 0.1, "num_iterations": 2}, [with_sampler, with_benchmarks]),
    "greso": ({"method": "greso", "loss_type": "grpo", **ROUNDS}, []),
    "tokens": ({"token_prune_rate": 0.3, "head_prune_rate": 0.3, "max_steps": 1}, []),
    "visits": ({"max_steps": 6, "prompt_prune_rate": 0.0}, []),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0, "entropy_coef": 0.01, "max_steps": 1}, []),
    "vespo": ({"loss_type": "vespo", "prompt_prune_rate": 0.0, "max_steps": 1}, []),
    "mixture": ({"router_aux_loss_coef": 0.01, "max_steps": 1, "gradient_accumulation_steps": 2}, []),
    "main": ({"log_metrics": "main", "max_steps": 1, "recorded": False}, []),
    "trl": ({"ours": False, "beta": 0.1}, []),
}


def test_the_page_lists_what_runs_log(tiny_path, tmp_path_factory):
    """Runs with all features, together: the names of all records, as ``report_to`` gets them."""

    class Logged(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logged.update(logs)

    logged, experts = set(), tmp_path_factory.mktemp("experts")
    shutil.copytree(tiny_path, experts, dirs_exist_ok=True)
    mixture().save_pretrained(experts)
    with pytest.MonkeyPatch.context() as patch:  # what was saved is known after the first generation
        patch.setattr("dppo.costs.MEASURED_GENERATIONS", 1)
        for name, (options, changes) in RUNS.items():
            path = str(experts) if name == "mixture" else tiny_path
            trainer, _ = make(path, tmp_path_factory.mktemp(name), callbacks=[Logged()], **options)
            for change in changes:
                change(trainer)
            trainer.train()
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) == len(set(names)) > 60 and differences(names, logged) == (set(), set())
    assert differences([*names, "prune/never"], logged) == (set(), {"prune/never"})
    assert differences([n for n in names if n != "eval/average/pass@1"], logged)[0] == {"eval/average/pass@1"}
