"""What we rely on in TRL, compared with the TRL that is installed; and that nothing else of it is touched."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest
import transformers
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

import dppo
from dppo.lab.runs.watch import WATCHED
from dppo.trl import DPPODPOTrainer, DPPOSFTTrainer, DPPOTrainer
from dppo.trl.async_grpo.trainer import DPPOAsyncTrainer
from dppo.trl.grpo.hooks import GRPOHooks
from dppo.trl.loop import TrainingLoop
from dppo.trl.rows.trainer import RowTrainer

TRAINERS = (GRPOTrainer, SFTTrainer, DPOTrainer)
SOURCES = [inspect.getmodule(kind) for kind in (*TRAINERS, GRPOTrainer.__mro__[1], transformers.Trainer)]
RELIED_ON = json.loads(Path(__file__).with_name("trl_methods.json").read_text())["relied_on"]
"""By trainer and method: its parameters, and lines of its source that must be there."""
CLASSES = {
    "GRPOTrainer": [GRPOTrainer],
    "on rows": [SFTTrainer, DPOTrainer],
    "DPOTrainer": [DPOTrainer],
    "AsyncGRPOTrainer": [AsyncGRPOTrainer],
    "_AsyncRolloutLoop": [_AsyncRolloutLoop],
}
ALL = [(kind, of, name) for of, kinds in CLASSES.items() for kind in kinds for name in RELIED_ON[of]]


def missing(trainer_class: type, of: str, name: str) -> list[str]:
    """What is said of a method and is not so in ``trainer_class``."""
    signature, lines = RELIED_ON[of][name]
    method = inspect.unwrap(getattr(trainer_class, name))
    found = f"({', '.join(inspect.signature(method).parameters)})"
    source = inspect.getsource(method)
    return [f"{name}{found}"] * (found != signature) + [line for line in lines if line not in source]


@pytest.mark.parametrize(("kind", "of", "name"), ALL)
def test_what_we_rely_on_is_there(kind, of, name):
    assert missing(kind, of, name) == []


def test_another_trl_is_noticed_and_says_where():
    class Renamed(GRPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions):
            rewards_per_func = gather(inputs)  # noqa: F821
            return rewards_per_func

    assert missing(Renamed, "GRPOTrainer", "_calculate_rewards") == [
        "_calculate_rewards(self, inputs, prompts, completions)",
        "rewards_per_func = gather(rewards_per_func)",
    ]


def private_names() -> set[str]:
    """What TRL's trainers and those they are built on call by a name with an underscore."""
    names = {name for trainer in TRAINERS for kind in trainer.__mro__ for name in vars(kind)}
    for module in SOURCES:
        names |= set(re.findall(r"self\.(_\w+)", inspect.getsource(module)))
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def used_in(file: Path, *, of_self: bool = True) -> set[str]:
    """Attributes that a file reads or sets, names it spells out in strings and, in a trainer, those it defines."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            found |= set() if own and not of_self else {node.attr}
        elif isinstance(node, ast.FunctionDef) and of_self:
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return found


def overridden(theirs, *ours):
    return {name for kind in ours for name in vars(kind) if hasattr(theirs, name) and not name.startswith("__")}


def test_every_overridden_name_is_listed():
    found = overridden(GRPOTrainer, GRPOHooks, TrainingLoop)
    known = {*RELIED_ON["GRPOTrainer"], "train", "get_batch_samples"}  # these two pass on what they get
    assert found <= known and {"_generate", "_save_checkpoint"} <= found
    assert {name for name in WATCHED.values() if name.startswith("_")} - {"_plan"} <= known, "all but our own method"
    wanted = {*RELIED_ON["AsyncGRPOTrainer"]} - {"_save_checkpoint", "_inner_training_loop"}
    assert overridden(AsyncGRPOTrainer, DPPOAsyncTrainer) == wanted


def test_no_other_file_knows_a_name_that_trl_keeps_private():
    private, root = private_names(), Path(dppo.__file__).parent
    assert {"_step", "_metrics", "_logs", "_generate_and_score_completions", "_is_vlm"} <= private
    hooks = {root / "trl" / name for name in ("grpo/hooks.py", "loop.py")}
    assert {"_step", "_metrics"} <= set.union(*map(used_in, hooks)), "the search finds them where they are"
    names = ("forwards", "grpo/trainer", "rows/trainer", "rows/sft", "rows/dpo")
    trainers = [root / "trl" / f"{name}.py" for name in names]  # elsewhere ``self`` is no trainer
    # Without another engine's trainer, and without what measures TRL's own.
    files = [file for file in root.rglob("*.py") if not {"verl", "lab"} & {*file.relative_to(root).parts}]
    used = {file: used_in(file, of_self=file in trainers) for file in files}
    found = {file for file, names in used.items() if names & private}
    lists = {root / "trl" / "served.py"}  # of names, of which it reads one
    assert found <= hooks | lists, found - hooks - lists


ON_ROWS = {"get_train_dataloader", "get_batch_samples", "compute_loss", "loss_is_scaled_for_ga"}


@pytest.mark.parametrize(
    ("ours", "replaced"), [((DPPOTrainer,), {"train", "log"}), ((RowTrainer, DPPOSFTTrainer, DPPODPOTrainer), ON_ROWS)]
)
def test_our_own_names_do_not_hide_trls(ours, replaced):
    """A method of ours with a name of TRL's would be called by TRL; ``replaced`` are those that call TRL's."""
    assert set.union(*(overridden(theirs, *ours) for theirs in TRAINERS)) == replaced
    assert {name for kind in ours for name in vars(kind)} & private_names() == set()
