"""Errors that would stop a run late, found before anything is loaded: by dry runs, and when a run starts."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch.optim import SGD
from transformers import SchedulerType, get_scheduler
from transformers.integrations import integration_utils

from dppo.errors import ConfigError, did_you_mean, first_line, raise_problems
from dppo.lab.gym import PREFIX, is_gym
from dppo.lab.judge import judge
from dppo.lab.runs.data import is_local
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.models import model_problems
from dppo.lab.runs.parsing import AnyRun
from dppo.lab.runs.rewards import reward_maker
from dppo.lab.runs.words import unwritable
from dppo.methods.settings import setting_problems
from dppo.trl.safeguards import weights_mismatch
from dppo.trl.served import ranges_of

TRACKERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"azure_ml": ("azureml", "azureml-mlflow"), "comet_ml": ("comet", "comet-ml"), "flyte": ("flytekit", "flytekit")}
    | {name: (name, name) for name in ("clearml", "codecarbon", "dagshub", "dvclive", "kubeflow", "mlflow", "neptune")}
    | {name: (name, name) for name in ("swanlab", "tensorboard", "trackio", "wandb")}
)
"""By name: the word in transformers' ``is_..._available``, and the package to install."""


OF_FIGURES = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow what is evaluated, with fields for each group of parameters."""


def check_run(run: AnyRun) -> None:
    """Raise a ``ConfigError`` with a line for each of ``preflight_problems``."""
    raise_all("this run", preflight_problems(run))


def raise_all(title: str, problems: list[str]) -> None:
    """Raise a single problem as it is, and several as a list under a title."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise_problems(title, problems)


def preflight_problems(run: AnyRun) -> list[str]:
    """One sentence per problem that would stop the run after its model is loaded.

    Nothing is loaded, and nothing stays on the disk.
    """
    checks = (
        output_problems,
        model_problems,
        data_problems,
        value_problems,
        tracker_problems,
        weight_problems,
        schedule_problems,
        rule_problems,
        reward_problems,
    )
    # ``DPPOConfig`` has checked its ranges already, TRL's own arguments have not.
    return [
        *setting_problems(run.training, ranges=ranges_of(run.training)),
        *(problem for check in checks for problem in check(run)),
    ]


def output_problems(run: AnyRun) -> Iterator[str]:
    """An output folder that cannot be made or written into; tried with a temporary file."""
    folder = Path(run.training.output_dir or "")
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if why := unwritable(there) if there.is_dir() else f"{there} is a file":
        yield f"output_dir={folder} cannot be written: {why}. Try --output_dir runs/mine"


def data_problems(run: AnyRun) -> Iterator[str]:
    """Local training or evaluation sets that do not exist; hub names are not looked up.

    A model from scratch would be warmed up before they are read.
    """
    data = run.data
    if data.task_arguments and not any(map(is_gym, (data.dataset_name, *(data.eval_benchmarks or [])))):
        yield (
            f"task_arguments={data.task_arguments} need a task of reasoning-gym, and dataset_name is "
            f"{data.dataset_name!r}. Leave them out, or write dataset_name: {PREFIX}chain_sum"
        )
    sources: list[tuple[str, str | None, str | None]] = [("dataset", data.dataset_name, data.dataset_path)]
    if run.training.eval_strategy != "no":
        sources.append(("eval_dataset", data.eval_dataset_name, data.eval_dataset_path))
    for field, name, path in sources:
        if name and is_gym(name) and not path:
            yield from _gym_problems(run, name)
            continue
        local = path or (name if name and name not in TASKS and is_local(name) else None)
        if local and not Path(local).expanduser().exists():
            yield (
                f"{field}_{'path' if path else 'name'}={local}: no such file or folder (looked in {Path.cwd()}). Write "
                f"{field}_path: FILE.jsonl, or {field}_name: a name of the hub"
            )


def _gym_problems(run: AnyRun, name: str) -> Iterator[str]:
    """A task of reasoning-gym that is unknown or refuses its arguments; reasoning-gym that is missing."""
    try:
        run.gym_task(name)
    except ConfigError as error:
        yield str(error)


def value_problems(run: AnyRun) -> Iterator[str]:
    """A file of prompt values that does not exist yet."""
    path = getattr(run.training, "prompt_values", None)  # TRL's own trainer has none
    if path is not None and not Path(path).is_file():
        write = "python examples/prompt_values.py CONFIG.yaml"
        yield f"prompt_values={path}: no such file (looked in {Path.cwd()}). Write it first: {write}"


def tracker_problems(run: AnyRun) -> Iterator[str]:
    """Trackers that are unknown or not installed."""
    found = run.training.report_to
    for name in [found] if isinstance(found, str) else found or ():
        if name not in TRACKERS:
            meant = did_you_mean(str(name), TRACKERS)
            yield f"report_to: {name!r} is not one of {', '.join(sorted(TRACKERS))}. {meant}Write report_to: none"
            continue
        probe, package = TRACKERS[name]
        installed: Callable[[], bool] = getattr(integration_utils, f"is_{probe}_available")
        if not installed():
            yield f"report_to: {name} is not installed. Write report_to: none, or pip install {package}"


def weight_problems(run: AnyRun) -> Iterator[str]:
    """Another number of ``reward_weights`` than of rewards."""
    if wrong := weights_mismatch(run.training.reward_weights, len(run.data.reward_funcs or [""])):
        yield wrong


def schedule_problems(run: AnyRun) -> Iterator[str]:
    """A schedule that lacks one of its ``lr_scheduler_kwargs``, or has one that it does not know."""
    name, given = SchedulerType(run.training.lr_scheduler_type).value, run.training.lr_scheduler_kwargs
    given = given if isinstance(given, dict) else {}  # a text was read when the fields were
    if name in OF_FIGURES or not run.training.learning_rate >= 0:  # which has a sentence of its own
        return
    try:
        get_scheduler(name, SGD([torch.zeros(())], lr=run.training.learning_rate), 0, 2, given)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        example = "lr_scheduler_kwargs: {min_lr_rate: 0.1}, or " * ("min_lr" in str(error))
        yield (
            f"lr_scheduler_type={name}, lr_scheduler_kwargs={given}: {first_line(error)}. Write {example}"
            "lr_scheduler_type: linear"
        )


def rule_problems(run: AnyRun) -> Iterator[str]:
    """A rule to judge by that is none."""
    if (rule := run.data.reward_rule) is None:
        return
    rules = judge("grading.rules", f"reward_rule: {rule}").RULES
    if rule not in rules:
        yield f"reward_rule={rule!r} is no rule to judge by. {did_you_mean(rule, rules)}Use one of {', '.join(rules)}."


def reward_problems(run: AnyRun) -> Iterator[str]:
    """Rewards by a name that is not known, or by a path that cannot be imported."""
    for name in run.data.reward_funcs or ():
        try:
            reward_maker(name, run)
        except ConfigError as error:
            yield str(error)
