"""What every command refuses: exit code 2 and a few lines that name the value and what works, never a traceback."""

import shutil

import pytest
import yaml
from small_runs import TWO_STEPS, write_lines

from dppo.lab.cli.main import main
from dppo.lab.comparison.plan import QUICK
from dppo.trl.checkpoints.files import WRITER_FILE
from dppo.verification.tiny_tokenizer import build_tokenizer

REWARDS = """
def graded(completions, gold, **columns):
    return [0.0] * len(completions)

def nothing(completions, **columns):
    return [None] * len(completions)
"""
TRAIN = {
    "model_name_or_path": "model", "dataset_name": "problems.jsonl", "reward_funcs": ["refused_rewards.nothing"],
    "output_dir": "out", "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 7,
    "report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "max_steps": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory, untrained):
    """A folder with models, problems, rewards, and a configuration for each command."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("model", "no_weights", "no_end"):
        shutil.copytree(untrained, folder / name)
    (folder / "no_weights" / "model.safetensors").unlink()
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder / "no_end")
    rows = [{"problem": f"{n}+{n}=?", "answer": str(2 * n)} for n in range(1, 11)]
    write_lines(folder / "problems.jsonl", rows)
    write_lines(folder / "long.jsonl", [*rows, {"problem": "+".join("1" * 400), "answer": "400"}])
    (folder / "refused_rewards.py").write_text(REWARDS)
    (folder / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "broken.yaml").write_text("a: [1, 2\nb: }")
    compare = yaml.safe_load(QUICK.read_text()) | TWO_STEPS | {"model_name_or_path": "model", "output_dir": "out"}
    for name, fields in (("train", TRAIN), ("empty", TRAIN | {"num_generations": None}), ("compare", compare)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    return folder


REFUSED = [
    # settings
    ("train train.yaml --method ddpo", "Did you mean dapo or dppo or gdpo?"),
    ("train compare.yaml", "'compare'", "dppo compare"),
    ("train empty.yaml", "num_generations: no value", "leave the field out"),
    ("train broken.yaml", "broken.yaml is not YAML"),
    ("train train.yaml --deepspeed zero.json", "DeepSpeed is not served", "Use DDP or FSDP2"),
    ("plan train.yaml --method dppo_histroy", "Did you mean dppo_history?"),
    ("verify --beta 0.1", "--beta needs a configuration"),
    # models
    ("train train.yaml --model_name_or_path mode", "model mode: no such folder", "Did you mean model?", "From the hub"),
    ("train train.yaml --model_name_or_path no_weights", "no_weights", "has no weights"),
    ("train train.yaml --model_name_or_path no_end", "no_end", "no end-of-sequence token", '"eos_token"'),
    ("train train.yaml --model_name_or_path scratch:big", "'scratch:big' is not one of 'scratch:embedded'"),
    # rewards and data
    ("train train.yaml --reward_funcs refused_rewards.grade", "no attribute 'grade'", "Did you mean graded?"),
    ("train train.yaml --reward_funcs refused_rewards.graded", "'gold'", "['problem', 'answer', 'prompt']"),
    ("train train.yaml --dataset_name long.jsonl", "longest: 801", "positions of the model", "on_bad_rows: drop"),
    ("compare compare.yaml --rollout_func nothing.here", "rollout_func: 'nothing.here'"),
    # options of commands
    ("compare --frozen --methods dppo,greatest", "'greatest'"),
    ("compare --frozen --rates 0.5,half", "--rates 0.5,half"),
    ("verify --output /nowhere/all.json", "no folder /nowhere"),
    ("plan", "no configuration is named"),
    ("plan train.yaml --pilot 8 --run runs", "--pilot and --run are different sources"),
    ("plan train.yaml --run nowhere", "is no run"),
    ("plan train.yaml --pilot 3", "must be an even number of prompts >= 4"),
    ("plan train.yaml --pilot 12", "--pilot 12", "10 prompts", "Try --pilot 10"),
    ("verify --prompts 4", "--prompts is for the model of a configuration"),
    ("report nowhere", "nowhere"),
]


@pytest.mark.parametrize(("words", "named"), [(words, named) for words, *named in REFUSED])
def test_bad_input_is_refused_in_a_few_lines_that_name_it(place, monkeypatch, capsys, words, named):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*.json*"))
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    said = error[error.index(f"dppo {words.split()[0]}: ") :]
    assert not [name for name in named if name not in " ".join(said.split())], said
    assert said.count("\n") <= 3 and len(said) < 700, "a sentence, or a short list of problems"
    written = [path for path in sorted(place.rglob("*.json*")) if path not in before and path.name != WRITER_FILE]
    assert not [path for path in written if path.suffix == ".jsonl"], "nothing was trained or sampled"
