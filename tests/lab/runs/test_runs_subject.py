"""A subject from a configuration: the model, problems and rewards it names, and nothing else."""

import sys

import pytest
from small_runs import small_words, write_lines
from trl import GRPOConfig, GRPOTrainer

from dppo.errors import ConfigError
from dppo.lab.runs import subject as from_run
from dppo.lab.runs.parsing import parse_given, read_flags
from dppo.lab.runs.subject import subject_from_run
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.verification.parity import one_step, relative_difference, script_of
from dppo.verification.tiny_tokenizer import build_tokenizer

REWARDS = """
def length(prompts, completions, completion_ids, answer, **columns):
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    assert isinstance(prompts[0], list) and completions[0][0]["role"] == "assistant"
    assert columns["trainer_state"].global_step == 0
    return [float(len(ids) % 2) for ids in completion_ids]

async def answered(completions, answer, **columns):
    return [None if int(a) % 3 == 0 else 10.0 for a in answer]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six problems and reward functions on disk."""
    path = tmp_path_factory.mktemp("run")
    write_lines(path / "problems.jsonl", [{"problem": f"{n}+{n}=?", "answer": str(2 * n)} for n in range(1, 7)])
    (path / "my_rewards.py").write_text(REWARDS)
    return path


@pytest.fixture
def run(folder, untrained, monkeypatch):
    """Parsed arguments, with changes."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    sys.modules.pop("my_rewards", None)

    def parsed(**changes):
        given = {"reward_funcs": ["my_rewards.length"], "max_completion_length": 7, "per_device_train_batch_size": 8}
        words = small_words(folder / "out", model=untrained, dataset=folder / "problems.jsonl")
        return parse_given(read_flags(words) | given | changes)

    return parsed


def test_model_problems_and_rewards_are_the_runs_own(run, untrained):
    subject = subject_from_run(run())
    assert subject.reward_PG.shape == (6, 4) and subject.max_tokens == 7 and "kept whole" in subject.describe()
    assert subject.reward_PG.flatten().tolist() == [float(len(ids) % 2) for ids in subject.completion_tokens]
    assert "problems.jsonl" in subject.title and str(untrained) in subject.title
    texts = {*map(build_tokenizer().decode, subject.prompt_tokens)}
    assert texts == {f"<user>{n}+{n}=?<assistant>" for n in range(1, 7)}


def test_rewards_are_added_with_their_weights_and_missing_ones_left_out(run):
    both = ["my_rewards.length", "my_rewards.answered"]
    subject = subject_from_run(run(reward_funcs=both, reward_weights=[1.0, 0.5]))
    tokenizer = build_tokenizer()
    for place, tokens in enumerate(subject.completion_tokens):
        number = int(tokenizer.decode(subject.prompt_tokens[place // 4]).removeprefix("<user>")[0])
        extra = 0.0 if number % 3 == 0 else 5.0
        assert subject.rewards.total_N[place] == len(tokens) % 2 + extra
        of_each = subject.rewards.reward_NF[place].nan_to_num(-1.0).tolist()
        assert of_each == [len(tokens) % 2, 10.0 if extra else -1.0], "each function's own, for methods that need them"


def test_large_models_have_fewer_and_shorter_completions_unless_prompts_are_asked_for(run, monkeypatch):
    monkeypatch.setattr(from_run, "SMALL", 1000)
    asked = subject_from_run(run(num_generations=8, max_completion_length=20), prompts=4)
    assert asked.reward_PG.shape == (4, 8) and asked.max_tokens == 20, "prompts that are asked for: as in training"
    with pytest.raises(ConfigError, match="--prompts 1 must be at least 2"):
        subject_from_run(run(), prompts=1)
    few = subject_from_run(run(num_generations=8, max_completion_length=200))
    assert few.generations == 4 and few.max_tokens == 64 and few.rewards.groups == 6


def test_adapters_alone_are_trained(run):
    subject = subject_from_run(run(use_peft=True, lora_r=2, lora_target_modules=["q_proj", "v_proj"]))
    assert subject.describe().split(": ")[1].startswith("2,688 trained parameters")
    assert subject.gram_NN.diagonal().min() > 0
    theirs = one_step(GRPOTrainer, GRPOConfig, script_of(subject))
    ours = one_step(DPPOTrainer, DPPOConfig, script_of(subject), completion_prune_rate=0.0)
    assert len(ours.gradient) == 12
    assert relative_difference(ours.gradient, theirs.gradient) < 1e-5
