"""Bad input gets a clear error and loses nothing."""

import pytest
import torch
from conftest_trl import CONFIG, GENERATIONS, length_reward, problems, scripted
from datasets import IterableDataset
from refusals import refused
from test_trl_contract import gradients
from trl import GRPOConfig

from dppo.errors import ConfigError, DataError, RewardError
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.support import check_trl_version

BAD = [
    (dict(method="grpo", prompt_prune_rate=0.5), r"method='grpo' prunes nothing, but prompt_prune_rate=0\.5"),
    (dict(method="dppo_histroy"), r"method='dppo_histroy' is not one of .*\. Did you mean dppo_history\?$"),
    (dict(loss_type="dr_gpro"), r"loss_type='dr_gpro' is not one of .*\. Did you mean dr_grpo\?$"),
    (dict(method="cppo"), r"method='cppo' is biased: .* accept_bias"),
    (dict(top_entropy_quantile=0.8), r"top_entropy_quantile=0\.8 .* Use top_entropy_quantile: 1\.0"),
    (dict(steps_per_generation=3, gradient_accumulation_steps=2, generation_batch_size=None), r"mix\s+parts of two"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(list(o)[-1]) for o, _ in BAD])
def test_bad_settings_are_named_with_what_to_use(options, message):
    with pytest.raises(ConfigError, match=message):
        DPPOConfig(**CONFIG | {"per_device_train_batch_size": 8} | options)


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError, match="3 problems"):
        DPPOConfig(**CONFIG, completion_prune_rate=2.0, prompt_prune_rate=2.0, prompt_mode="no")


def test_confidence_without_a_sampler_that_reports_it(tiny_path):
    config = DPPOConfig(**CONFIG, completion_score="confidence", num_generations=GENERATIONS)
    with refused(ConfigError, "use_vllm: true", "completion_score: length"):
        DPPOTrainer(tiny_path, length_reward, args=config, train_dataset=problems(8))


@pytest.mark.parametrize("version", ["1.15.3", "1.17.0", "2.0"])
def test_other_trl_versions_are_refused(version):
    with refused(ConfigError, version, "1.16 <= TRL < 1.17"):
        check_trl_version(version)


def test_trl_config_is_not_taken_for_ours(tiny_path):
    with pytest.raises(
        ConfigError, match=r"is GRPOConfig, expected DPPOConfig\. Try DPPOConfig in place of GRPOConfig"
    ):
        DPPOTrainer(tiny_path, length_reward, args=GRPOConfig(**CONFIG), train_dataset=problems(8))


def test_fewer_prompts_than_a_block(tiny_path):
    config = DPPOConfig(**CONFIG, per_device_train_batch_size=8 * GENERATIONS, num_generations=GENERATIONS)
    with refused(DataError, "5 prompts", 8):
        DPPOTrainer(tiny_path, length_reward, args=config, train_dataset=problems(5))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (problems(8).select([]), "the dataset has 0 prompts"),
        (problems(8).rename_column("prompt", "text"), "no column 'p"),
    ],
)
def test_a_dataset_without_prompts_is_named_at_construction(rows, message, tiny_path):
    with pytest.raises(DataError, match=message):
        DPPOTrainer(tiny_path, length_reward, args=DPPOConfig(**CONFIG), train_dataset=rows)


def test_streamed_dataset_prunes_completions_only(tiny_path, tmp_path):
    rows = problems(32)
    stream = IterableDataset.from_generator(lambda: iter(rows))
    settings = dict(
        CONFIG, output_dir=str(tmp_path), per_device_train_batch_size=32, num_generations=GENERATIONS, max_steps=2
    )
    with refused(ConfigError, "prompt_prune_rate=0.5"):
        DPPOTrainer(tiny_path, length_reward, args=DPPOConfig(**settings, prompt_prune_rate=0.5), train_dataset=stream)
    trainer = DPPOTrainer(
        tiny_path, length_reward, args=DPPOConfig(**settings), train_dataset=stream, rollout_func=scripted
    )
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.source is None


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda prompts, completions, **_: [1.0], "returned 1 values for 32 completions"),
        (lambda prompts, completions, **_: 1 / 0, "ZeroDivisionError"),
        (lambda prompts, completions, **_: ["high"] * len(prompts), "'high'"),
    ],
    ids=["count", "raises", "text"],
)
def test_broken_rewards_are_named(reward, message, tiny_path, tmp_path):
    with pytest.raises(RewardError, match=message):
        gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, reward=reward)


def test_hanging_reward_stops_the_run(tiny_path, tmp_path):
    import threading

    release = threading.Event()

    def hangs(prompts, completions, **_):
        release.wait(30)
        return [0.0] * len(prompts)

    with pytest.raises(RewardError, match="hangs"):
        gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, reward=hangs, reward_time_limit=0.2)
    release.set()


def test_equal_rewards_warn_and_leave_the_weights_alone(tiny_path, tmp_path):
    def always(prompts, completions, **_):
        return [0.1] * len(prompts)

    with pytest.warns(UserWarning, match="for 10 generations"):
        _, trainer = gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, reward=always, max_steps=11)
    assert all(row["grad_norm"] == 0 for row in trainer.state.log_history if "grad_norm" in row)


def test_non_finite_step_is_skipped_and_counted(tiny_path, tmp_path):
    class Breaks(DPPOTrainer):
        def _micro_batch_loss(self, *args):
            loss = super()._micro_batch_loss(*args)
            return loss * float("nan") if self.state.global_step == 1 else loss

    before = {}

    class Remember(Breaks):
        def training_step(self, *args, **kwargs):
            if self.state.global_step in (1, 2):
                before[self.state.global_step] = [p.detach().clone() for p in self.model.parameters()]
            return super().training_step(*args, **kwargs)

    with pytest.warns(UserWarning, match="step 1: "):
        _, trainer = gradients(Remember, DPPOConfig, tiny_path, tmp_path, max_steps=3, optim="adamw_torch")
    assert all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))  # step 1 changed nothing
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before[2], trainer.model.parameters(), strict=True))
    assert [row["skipped_step_share"] for row in trainer.state.log_history if "skipped_step_share" in row] == [0, 1, 0]
