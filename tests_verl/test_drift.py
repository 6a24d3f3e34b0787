"""Parts of verl that are overridden or called are as they were when they were read: a new release fails here first."""

import ast
import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from dppo.errors import ConfigError
from dppo.hooked import changed
from dppo.verl.support import HOOKED, check_verl_version

RECORD = Path(__file__).parent / "verl_parts.json"
PARTS = {
    "trainer/ppo/v1/trainer_base.py": (
        *("PPOTrainer.__init__", "PPOTrainer._init_dataloader", "PPOTrainer._fetch_one_gen_batch", "PPOTrainer.step"),
        *("PPOTrainer._next_train_batch", "PPOTrainer._submit_batch_to_rollout", "PPOTrainer._step_once"),
        *("PPOTrainer._balance_batch", "PPOTrainer._get_required_batch_multiple", "PPOTrainer._update_actor"),
        *("PPOTrainer._compute_old_log_prob", "PPOTrainer._compute_ref_log_prob", "PPOTrainer._compute_metrics"),
        *("PPOTrainer._compute_advantage", "PPOTrainer._save_checkpoint", "PPOTrainer._load_checkpoint"),
        *("PPOTrainer.fit", "register_trainer", "PPOTrainer._add_async_warmup_batches"),
        *("PPOTrainer._add_prompts_to_generate", "PPOTrainer._add_batch_to_generate", "PPOTrainer.prepare_step"),
        "PPOTrainer._reissue_inflight_prompts",
    ),
    "trainer/ppo/v1/trainer_sync.py": ("PPOTrainerSync.on_init_end",),
    "trainer/ppo/v1/trainer_colocate_async.py": (
        *("PPOTrainerColocateAsync.on_train_begin", "PPOTrainerColocateAsync.on_step_end"),
        "PPOTrainerColocateAsync.on_sample_end",
    ),
    "trainer/ppo/v1/trainer_separate_async.py": (
        *("PPOTrainerSeparateAsync.__init__", "PPOTrainerSeparateAsync.on_train_begin"),
        *("PPOTrainerSeparateAsync._compute_old_log_prob", "PPOTrainerSeparateAsync.prepare_step"),
    ),
    "trainer/ppo/v1/agent_loop_tq.py": ("AgentLoopWorkerTQ._run_prompt", "AgentLoopWorkerTQ._agent_loop_postprocess"),
    "trainer/ppo/v1/replay_buffer.py": (
        *("ReplayBuffer.sample", "ReplayBuffer._clear_groups", "ReplayBuffer._materialize_batch"),
        *("ReplayBufferAsync.sample", "ReplayBufferAsync.wait_for_sampleable"),
        "ReplayBufferAsync._terminal_eviction_reasons",
    ),
    "trainer/ppo/rollout_corr_helper.py": ("compute_rollout_correction_and_add_to_batch",),
    "utils/seqlen_balancing.py": ("log_seqlen_unbalance",),
    "utils/metric/utils.py": ("reduce_metrics",),
    "workers/utils/padding.py": ("response_to_nested",),
    "trainer/ppo/padding_utils.py": ("upsample_batch_to_divisible_size",),
    "trainer/ppo/core_algos.py": (
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_policy_loss_gspo",
        "compute_policy_loss_bypass_mode",
        "kl_penalty",
        "kl_penalty_forward",
    ),
    "workers/utils/losses.py": ("ppo_loss",),
    "workers/engine_workers.py": ("TrainingWorker.train_mini_batch", "ActorRolloutRefWorker.set_loss_fn"),
    "workers/engine/fsdp/transformer_impl.py": ("FSDPEngine.forward_backward_batch",),
    "workers/engine/megatron/transformer_impl.py": (
        *("MegatronEngine._build_tf_config", "MegatronEngine.forward_backward_batch"),
        "MegatronEngineWithLMHead.postprocess_micro_batch_func",
    ),
}
"""Parts of verl that the adapter relies on, by file."""


def digests(folder: Path) -> dict[str, str]:
    """A hash of the code of each part, comments and docstrings of the file around it aside."""
    found = {}
    for file, names in PARTS.items():
        nodes = {}
        for node in ast.parse((folder / file).read_text()).body:
            nodes[getattr(node, "name", "")] = node
            if isinstance(node, ast.ClassDef):
                nodes |= {f"{node.name}.{part.name}": part for part in node.body if hasattr(part, "name")}
        for name in names:
            code = ast.dump(nodes[name]) if name in nodes else "missing"
            found[f"{file}:{name}"] = hashlib.sha256(code.encode()).hexdigest()[:16]
    return found


@pytest.fixture(scope="module")
def installed():
    return Path(importlib.util.find_spec("verl").submodule_search_locations[0])


def differences(found: dict[str, str], recorded: dict[str, list[str]]) -> list[str]:
    """Parts whose code is none of those that were read."""
    return [name for name, digest in found.items() if digest not in recorded.get(name, [])]


def test_every_part_that_is_relied_on_is_one_that_was_read(installed):
    assert differences(digests(installed), json.loads(RECORD.read_text())) == []


def test_the_record_is_of_these_parts_and_a_changed_one_is_seen(installed, tmp_path):
    found, recorded = digests(installed), json.loads(RECORD.read_text())
    assert set(found) == set(recorded) and len(found) > 20
    for file in PARTS:
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((installed / file).read_text().replace("config.entropy_coeff", "2 * config.entropy_coeff"))
    changed = differences(digests(tmp_path), recorded)
    assert "workers/utils/losses.py:ppo_loss" in changed


def test_the_fingerprints_are_of_the_installed_verl_and_of_all_parts_that_were_read():
    assert changed(HOOKED) == [], f"python -m dppo.hooked {HOOKED}"
    listed = {f"{path}.{name}" for path, names in json.loads(HOOKED.read_text()).items() for name in names}
    parts = {f"verl.{file[:-3].replace('/', '.')}.{name}" for file, names in PARTS.items() for name in names}
    assert parts <= listed


def test_a_newer_verl_is_served_with_one_line_if_what_is_overridden_is_the_same(monkeypatch):
    with pytest.warns(UserWarning, match=r"verl 0\.10\.0 is newer than the tested .*the same"):
        check_verl_version("0.10.0", "separate_async", megatron=True)
    monkeypatch.setattr("verl.workers.utils.losses.ppo_loss", check_verl_version)
    monkeypatch.delattr("verl.trainer.ppo.v1.trainer_base.PPOTrainer._balance_batch")
    with pytest.raises(ConfigError, match=r"verl 0\.10\.0 .*: PPOTrainer\._balance_batch, losses\.ppo_loss\. Install"):
        check_verl_version("0.10.0")
    with pytest.raises(ConfigError, match="0 is not supported"):
        check_verl_version("0.8.0")
