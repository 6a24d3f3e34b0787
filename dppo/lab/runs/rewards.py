"""Reward functions of a run, and what completes its prompts, by name or dotted path."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from dppo.errors import ConfigError, DataError, did_you_mean
from dppo.files import current_folder_first
from dppo.lab.demo import task
from dppo.lab.demo.rollouts import EmbeddedRollouts
from dppo.lab.gym import COLUMN, GymScorer, is_gym
from dppo.lab.judge import judge
from dppo.lab.runs.embedded import EMBEDDED, TASKS
from dppo.lab.runs.parsing import AnyRun
from dppo.rewards import GIVEN

Reward = Callable[..., Any]
CHECK = "check:"
"""How a reward begins that is a function of one completion and its row, called by the judge in worker processes."""
JUDGED = ("accuracy", "format", "code_tests")
"""Rewards of answer-judge by name."""
PASSED = (*GIVEN, "trainer_state", "log_extra", "log_metric", "environments")
"""Arguments that trainers give a reward function beside the columns of the dataset."""


def load_rewards(run: AnyRun, dataset: Dataset | None) -> list[Reward]:
    """The reward functions of a run, checked against the columns of the dataset if that is given."""
    source = run.data.dataset_name
    names = run.data.reward_funcs or [EMBEDDED if source in TASKS else COLUMN if is_gym(source) else "accuracy"]
    functions = [reward_maker(name, run)() for name in names]
    if dataset is None:
        return functions
    for function in functions:
        check_columns(function, dataset.column_names)
    if judged := [each for each, name in zip(functions, names, strict=True) if is_judged(name)]:
        judge("problems", f"reward_funcs: {names[0]}").check_rewards(dataset, judged)
    for sandbox in (getattr(function, "sandbox", None) for function in functions):
        if sandbox is not None:  # it may be refused here, before anything is trained
            PartialState().print(f"dppo | {sandbox.describe()}")
    return functions


def check_columns(function: Reward, columns: Iterable[str]) -> None:
    """Raise a ``DataError`` if a function needs a column that is not there: by its parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    declared = [each.name for each in parameters if each.kind in kinds and each.default is each.empty]
    present = [*columns]
    for name in getattr(function, "required_columns", declared):
        if name not in PASSED and name not in present:
            raise DataError(
                f"the reward {getattr(function, '__name__', function)} needs a column {name!r}, and the dataset has "
                f"{present}. {did_you_mean(name, present)}Rename the column in the file"
            )


def is_judged(name: str) -> bool:
    """True if a reward is one of answer-judge."""
    return name in JUDGED or name.startswith(CHECK)


def reward_maker(name: str, run: AnyRun) -> Callable[[], Reward]:
    """A function that makes the reward of a name, a check or a dotted path; an error if there is none of that name."""
    data = run.data
    workers: dict[str, Any] = {"workers": data.reward_workers, "limit_seconds": data.answer_time_limit}
    if not is_judged(name) and name not in (EMBEDDED, COLUMN):
        function = imported(name, field="reward_funcs", known=(*JUDGED, EMBEDDED, COLUMN))
        return lambda: function
    problems: Any = judge("problems", f"reward_funcs: {name}") if is_judged(name) else None
    makers: dict[str, Callable[[], Reward]] = {
        EMBEDDED: lambda: task.score,
        COLUMN: lambda: GymScorer(**workers),
        "accuracy": lambda: problems.accuracy_reward(**workers),
        "format": lambda: problems.format_reward(),
        "code_tests": lambda: problems.code_tests(
            workers=data.reward_workers,
            limits=judge("sandbox", name).Limits.of(data.program_cpu_seconds, data.program_memory_mb),
            accept_weak_sandbox=data.accept_weak_sandbox,
        ),
    }
    return makers.get(name, lambda: problems.checker_reward(name, **workers))


def imported(name: str, *, field: str, known: Iterable[str]) -> Callable[..., Any]:
    """The function of a dotted path, looked up in the current folder first; errors name the ``field``."""
    module, _, attribute = name.rpartition(".")
    if not module:
        meant = did_you_mean(name, known)
        raise ConfigError(f"{field}: {name!r} is not known. {meant}It is one of {', '.join(known)}, or a dotted path")
    try:
        with current_folder_first():
            return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        meant = did_you_mean(attribute, vars(sys.modules[module]) if module in sys.modules else ())
        raise ConfigError(f"{field}: {name!r} cannot be imported: {error}. {meant}".rstrip()) from error


def load_rollouts(run: AnyRun) -> Callable[..., Any] | None:
    """The ``rollout_func`` of a run, by name or dotted path; None if transformers or vLLM generate."""
    name = run.data.rollout_func
    if name is None:
        return None
    if name != EMBEDDED:
        return imported(name, field="rollout_func", known=[EMBEDDED])
    if run.training.use_vllm:
        raise ConfigError("rollout_func: embedded does not use vLLM. Leave use_vllm out")
    return EmbeddedRollouts()
