"""Bad input gets a clear error and loses nothing."""

import threading
from contextlib import nullcontext
from importlib import import_module

import pytest
import torch
from datasets import Dataset
from refusals import refused, warned
from tiny_runs import CONFIG, GENERATIONS, length_reward, logged, problems, relative_difference, scripted
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
from trl_gradients import dppo_run, gradients

from dppo.errors import ConfigError, DataError, RewardError
from dppo.hooked import changed, fingerprint, write_fingerprints
from dppo.pruning import advantage_with_length
from dppo.trl import DPPOConfig, DPPODPOConfig, DPPOSFTConfig, DPPOTrainer
from dppo.trl.served import HOOKED, check_trl_version

UNREAD_SCORE = dict(method="grpo", completion_score="uniform")
UNREAD_FLOOR = dict(method="cppo", accept_bias=True, prune_floor=0.1)
UNREAD_FADE = dict(method="greso", accept_bias=True, prune_schedule="fade")
REFUSED = [
    (DPPOConfig, dict(method="grpo", prompt_prune_rate=0.5), "prompt_prune_rate=0.5"),
    (DPPOConfig, dict(method="grpo", prompt_prune_rate="auto"), "prompt_prune_rate=auto"),
    (DPPOConfig, dict(loss_type="dr_gpro"), "Did you mean dr_grpo?"),
    (DPPOConfig, dict(completion_prune_rat=0.5), "Did you mean completion_prune_rate?"),
    (DPPOConfig, dict(learning_rate="1e-4"), "Try learning_rate: 0.0001."),
    (DPPOConfig, dict(method="cppo"), "accept_bias"),
    (DPPOConfig, dict(method="dapo"), "accept_bias=True"),
    (DPPOConfig, dict(top_entropy_quantile=0.2, prompt_prune_rate=0.5), "prompt_prune_rate: 0"),
    (DPPOConfig, dict(top_entropy_quantile=0.2, num_iterations=2), "num_iterations: 1"),
    (DPPOConfig, dict(top_entropy_quantile=0.2, entropy_coef=0.1), "entropy_coef: 0"),
    (DPPOConfig, dict(prompt_prune_rate="some"), "prompt_prune_rate=some"),
    (DPPOConfig, dict(method="cppo", accept_bias=True, completion_prune_rate="auto"), "method='dppo'"),
    (DPPOConfig, dict(prompt_prune_rate="auto", prune_floor=0.6), "prune_floor=0.6"),
    (DPPOConfig, dict(max_rounds=5), "max_rounds=5"),
    (DPPOConfig, dict(num_generations=1), "num_generations: 2"),
    (DPPOConfig, dict(num_generations=1, per_device_train_batch_size=1), "num_generations: 2"),
    (DPPOConfig, dict(method="dr_grpo", num_generations=1), "method: dppo_history"),
    (DPPOConfig, dict(method="cppo_trl", accept_bias=True, loss_type="grpo"), "loss_type: bnpo"),
    (DPPOConfig, dict(method="pods", accept_bias=True, completion_score="length"), "method='pods'"),
    (DPPOConfig, dict(method="dppo_threshold", completion_budget="tokens"), "completion_budget='tokens'"),
    (DPPOConfig, dict(loss_type="dr_grpo", max_completion_length=None), "max_completion_length: 512"),
    (DPPOConfig, dict(method="a_star_po"), "prompt_values: FILE"),
    (DPPOConfig, dict(method="a_star_po", prompt_values="v", loss_type="grpo"), "loss_type='grpo'"),
    (DPPOConfig, dict(prompt_values="v"), "prompt_values='v'"),
    (DPPOSFTConfig, dict(row_prune_rat=0.5), "row_prune_rat=0.5 is no field. Did you mean row_prune_rate?"),
    (DPPOSFTConfig, dict(deepspeed="zero2.json"), "Use DDP or FSDP2"),
    (DPPOSFTConfig, dict(prune_floor=0.6), "prune_floor=0.6"),
    (DPPOSFTConfig, dict(method="infobath"), "Did you mean infobatch"),
    (DPPOSFTConfig, dict(method="infobatch_kept"), "accept_bias=True"),
    (DPPOSFTConfig, dict(train_sampling_strategy="group_by_length"), "train_sampling_strategy: random"),
    (DPPOSFTConfig, dict(neftune_noise_alpha=5.0), "neftune_noise_alpha"),
    (DPPODPOConfig, dict(use_liger_kernel=True), "use_kernels: true"),
    (DPPODPOConfig, dict(beta=-1.0), "beta: 0.1"),
    (DPPODPOConfig, dict(margin_scal=2.0), "Did you mean margin_scale?"),
    (DPPOConfig, dict(neftune_noise_alpha=5.0), "neftune_noise_alpha"),
    (DPPOConfig, dict(optim="adalomo"), "optim: adamw_torch"),
    (DPPOConfig, dict(optim="galore_adamw_layerwise"), "optim: adamw_torch"),
    (DPPOConfig, dict(prune_floor=0.5), "prune_floor=0.5 must be in (0, 0.45]"),
    (DPPOConfig, dict(prune_until=0.5), "prune_schedule: stop"),
    (DPPOConfig, dict(prompt_mode="fill"), "prompt_prune_rate: auto"),
    (DPPODPOConfig, dict(layout="packed"), "layout: rows"),
    (DPPOConfig, dict(token_prune_rate="auto", prune_floor=0.6), "prune_floor=0.6 must be in (0, 0.45]"),
    (DPPOSFTConfig, dict(prune_until=0.5), "prune_schedule: stop"),
    (DPPOSFTConfig, dict(method="infobatch", sampling_design="systematic"), "sampling_design='systematic'"),
    (DPPOConfig, UNREAD_SCORE, "'grpo' prunes nothing, but completion_score='uniform'. Leave completion_score out"),
    (DPPOConfig, UNREAD_FLOOR, "method='cppo'", "but prune_floor=0.1. Leave prune_floor out"),
    (DPPOConfig, UNREAD_FADE, "method='greso'", "but prune_schedule='fade'. Leave prune_schedule out"),
    (DPPOConfig, dict(method="divergence_ppo_tv", epsilon=0.1), "brings its own token loss", "epsilon=0.1"),
    (DPPOConfig, dict(method="divergence_ppo_tv", delta=2.0), "brings its own token loss", "delta=2.0"),
    (DPPOConfig, dict(method="divergence_ppo_tv", vespo_k_neg=1.0), "brings its own token loss", "vespo_k_neg=1.0"),
]


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_cannot_be_are_named(case):
    config, options, *named = case
    with refused(ConfigError, *named):
        config(**CONFIG | {"per_device_train_batch_size": 8} | options)


WORDS = problems(8)
TALKS = Dataset.from_list([{"prompt": [{"role": "user", "content": f"w{i} w1"}]} for i in range(8)])
TEXTS = TALKS.map(lambda row: {"prompt": row["prompt"][-1]["content"]})
STREAM = problems(32).to_iterable_dataset()
UNSURE = {"completion_score": "uncertainty"}
AT_CONSTRUCTION = [
    (WORDS, UNSURE, ConfigError, ["use_vllm: true", "completion_score: length"]),
    (TALKS, {}, ConfigError, ["chat template"]),
    (STREAM, {"prompt_prune_rate": 0.5, "max_steps": 2}, ConfigError, ["prompt_prune_rate=0.5"]),
    (WORDS.select([]), {}, DataError, ["the dataset has 0 prompts"]),
    (problems(5), {}, DataError, ["5 prompts"]),
    (WORDS.rename_column("prompt", "text"), {}, DataError, ["no column 'p"]),
    (Dataset.from_list([{"prompt": 17}] * 8), {}, DataError, ["prompt of row 0 is 17"]),
    (Dataset.from_list([*WORDS, {"prompt": "w1 " * 40_000}]), {}, DataError, ["row 8 has 40000 tokens"]),
]


def made(path, data, kind=DPPOConfig, tokenizer=None, **options):
    args = kind(**CONFIG, per_device_train_batch_size=32, num_generations=GENERATIONS, **options)
    return DPPOTrainer(path, length_reward, args=args, train_dataset=data, processing_class=tokenizer)


@pytest.mark.parametrize(("data", "options", "error", "named"), AT_CONSTRUCTION)
def test_what_cannot_be_trained_on_is_named_at_construction(data, options, error, named, tiny_path):
    with refused(error, *named):
        made(tiny_path, data, **options)


def test_what_a_refusal_advises_is_taken(tiny_path, tmp_path):
    assert made(tiny_path, TEXTS).train_dataset is not None
    _, trainer = dppo_run(tiny_path, tmp_path, data=STREAM, max_steps=2)
    assert trainer.state.global_step == 2 and trainer.session.source is None


def test_a_configuration_of_trl_and_a_tokenizer_without_an_end_are_refused(tiny_path):
    with refused(ConfigError, "GRPOConfig", "Try DPPOConfig"):
        made(tiny_path, WORDS, GRPOConfig)
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.eos_token = None
    with refused(ConfigError, "no end-of-sequence token", "tokenizer.eos_token ="):
        made(tiny_path, WORDS, tokenizer=tokenizer)


def test_a_column_that_the_trainer_removes_is_not_said_to_be_missing(tiny_path, tmp_path):
    def graded(completions, answer, **columns):
        return [1.0] * len(completions)

    with refused(RewardError, "'graded'", "'answer'", "remove_unused_columns: true"):
        dppo_run(tiny_path, tmp_path, reward=graded, remove_unused_columns=True)


def silent(prompts, trainer):
    """Rollouts without log-probabilities."""
    return scripted(prompts, trainer) | {"logprobs": None}


def of_vllm(prompts, trainer):
    trainer.use_vllm = True  # here: this machine has none
    return silent(prompts, trainer)


CUT = {"completion_score": "length", "loss_type": "dr_grpo", "token_prune_rate": 0.5}
SILENT = {
    "corrected": (of_vllm, {}, "vllm_importance_sampling_correction: false"),
    # All tokens would count as equally unsure: whole completions would be dropped, which nobody asked for.
    "cut": (silent, CUT, "token_prune_rate: 0"),
    "ranked": (silent, UNSURE, "completion_score: length"),
    "not corrected, which works": (of_vllm, {"vllm_importance_sampling_correction": False}, ""),
    "cut without looking, which works": (silent, CUT | {"method": "nat_rpc"}, ""),
}


@pytest.mark.parametrize(("rollout", "options", "named"), SILENT.values(), ids=SILENT)
def test_what_needs_log_probabilities_is_refused_without(rollout, options, named, tiny_path, tmp_path):
    with refused(ConfigError, named) if named else nullcontext():
        found, _ = dppo_run(tiny_path, tmp_path, rollout=rollout, **{"completion_score": "length"} | options)
        assert len(found) == 1


def test_a_rollout_without_log_probabilities_is_ranked_by_another_score(tiny_path, tmp_path):
    """By the score that the run would have had without a ``rollout_func``, and said once."""
    run = dict(rollout=silent, completion_prune_rate=0.5, max_steps=2)
    with warned("logprobs: None", "completion_score: length") as said:
        found, trainer = dppo_run(tiny_path, tmp_path, **run)
    wanted, _ = dppo_run(tiny_path, tmp_path, completion_score="length", **run)
    assert trainer.method.score is advantage_with_length and len(found) == 2
    assert sum("logprobs: None" in str(each.message) for each in said) == 1
    assert max(relative_difference(*pair) for pair in zip(found, wanted, strict=True)) == 0


SIZES = dict(per_device_train_batch_size=8, num_generations=8)


@pytest.mark.parametrize(
    ("settings", "name", "works"),
    [
        (SIZES | dict(per_device_train_batch_size=12), "per_device_train_batch_size", 16),
        (SIZES | dict(per_device_train_batch_size=1, gradient_accumulation_steps=4), "per_device_train_batch_size", 2),
        (SIZES | dict(generation_batch_size=20), "generation_batch_size", 24),
        (SIZES | dict(per_device_eval_batch_size=6, do_eval=True, eval_strategy="epoch"), "per_device_eval_batch", 8),
    ],
)
def test_a_batch_of_broken_groups_is_refused_with_a_size_that_works(settings, name, works):
    with refused(ConfigError, "divisible", f"Write {name}") as found:
        DPPOConfig(**CONFIG, **settings)
    field, _, value = str(found.value).rpartition("Write ")[2].rstrip(".").partition(": ")
    assert int(value) == works
    DPPOConfig(**CONFIG, **settings | {field: works})


@pytest.mark.parametrize(("version", "experimental"), [("1.14.2", False), ("1.15.3", True)])
def test_an_older_trl_is_refused(version, experimental):
    with refused(ConfigError, version, f"trl>={'1.16' if experimental else '1.15'},<1.17"):
        check_trl_version(version, experimental=experimental)
    if experimental:
        check_trl_version(version)


@pytest.mark.parametrize("experimental", [False, True])
def test_a_newer_trl_is_decided_by_its_methods(monkeypatch, experimental):
    with pytest.warns(UserWarning, match=r"1\.17\.0 is newer"):
        check_trl_version("1.17.0", experimental=experimental)

    def changed(self, inputs):  # a line of it is another one
        return inputs

    owner, name = (AsyncGRPOTrainer, "get_train_dataloader") if experimental else (GRPOTrainer, "_generate")
    monkeypatch.setattr(owner, name, changed)
    with refused(ConfigError, "1.17.0", f"{owner.__name__}.{name}"):
        check_trl_version("1.17.0", experimental=experimental)
    with pytest.warns(UserWarning):  # the other part of TRL is as it was
        check_trl_version("1.17.0", experimental=not experimental)
    monkeypatch.delattr(owner, name)
    for version in ("1.17.0", "1.17.0.dev0"):  # a development build is newer too
        with refused(ConfigError, f"{owner.__name__}.{name}"):
            check_trl_version(version, experimental=experimental)


def test_comments_and_blank_lines_are_no_change(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = {}
    for name, body in {"plain": "return 1", "commented": "# a number\n\n    return 1", "other": "return 2"}.items():
        (tmp_path / f"{name}_body.py").write_text(f"def one():\n    {body}\n")
        found[name] = fingerprint(import_module(f"{name}_body").one)
    assert found["plain"] == found["commented"] != found["other"]


def test_the_fingerprints_are_of_the_installed_trl(tmp_path, monkeypatch):
    assert changed(HOOKED) == [], f"python -m dppo.hooked {HOOKED}"
    added = tmp_path / "hooked.json"
    added.write_text(HOOKED.read_text().replace("{", '{"trl.GRPOTrainer": {"train": "", "no_such": ""}, ', 1))
    assert changed(added) == ["GRPOTrainer.train"], "one that is not there has an empty fingerprint"
    assert changed(added, lambda path: path != "trl.GRPOTrainer") == []
    imported = []
    monkeypatch.setattr("dppo.hooked.resolve_name", imported.append)
    assert changed(added, lambda path: False) == imported == [], "a part that is not used may fail to import"
    monkeypatch.undo()
    write_fingerprints(added)
    assert changed(added) == [] and '"no_such": ""' in added.read_text()


def test_a_hanging_reward_stops_the_run(tiny_path, tmp_path):
    release = threading.Event()

    def hangs(prompts, completions, **_):
        release.wait(30)
        return [0.0] * len(prompts)

    with refused(RewardError, "hangs"):
        dppo_run(tiny_path, tmp_path, reward=hangs, reward_time_limit=0.2)
    release.set()


@pytest.mark.parametrize(
    ("pair", "steps", "said"),
    [([None, float("nan")], 1, "NaN or None for 1 generation"), ([0.1, 0.1], 11, "for 10 generations")],
)
def test_generations_without_a_signal_warn_and_leave_the_weights_alone(pair, steps, said, tiny_path, tmp_path):
    def reward(prompts, completions, **_):
        return pair * (len(prompts) // 2)

    with pytest.warns(UserWarning, match=said):
        _, trainer = dppo_run(tiny_path, tmp_path, reward=reward, max_steps=steps)
    assert not any(logged(trainer, "grad_norm"))


def test_non_finite_step_is_skipped_and_counted(tiny_path, tmp_path):
    before = {}

    class Breaks(DPPOTrainer):
        def _micro_batch_loss(self, *args):
            loss = super()._micro_batch_loss(*args)
            return loss * float("nan") if self.state.global_step == 1 else loss

        def training_step(self, *args, **kwargs):
            before[self.state.global_step] = [p.detach().clone() for p in self.model.parameters()]
            return super().training_step(*args, **kwargs)

    with pytest.warns(UserWarning, match="step 1: "):
        _, trainer = gradients(Breaks, DPPOConfig, tiny_path, tmp_path, max_steps=3, optim="adamw_torch")
    assert all(torch.equal(a, b) for a, b in zip(before[1], before[2], strict=True))  # step 1 changed nothing
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before[2], trainer.model.parameters(), strict=True))
    assert logged(trainer, "skipped_step_share") == [0, 1, 0]
