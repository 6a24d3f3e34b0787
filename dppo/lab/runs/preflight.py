"""Errors that would stop a run late, found before anything is loaded: by dry runs, and when a run starts."""

from collections.abc import Iterator
from pathlib import Path

from dppo.errors import ConfigError, raise_problems
from dppo.lab.gym import PREFIX, is_gym
from dppo.lab.runs.data import is_local
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.models import model_problems
from dppo.lab.runs.parsing import AnyRun
from dppo.lab.runs.rewards import reward_maker
from dppo.methods.settings import setting_problems
from dppo.trl.safeguards import weights_mismatch
from dppo.trl.served import ranges_of


def check_run(run: AnyRun) -> None:
    """Raise a ``ConfigError`` with a line for each of ``preflight_problems``."""
    raise_all("this run", preflight_problems(run))


def raise_all(title: str, problems: list[str]) -> None:
    """Raise a single problem as it is, and several as a list under a title."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise_problems(title, problems)


def preflight_problems(run: AnyRun) -> list[str]:
    """One sentence per problem that would stop the run after its model is loaded."""
    checks = (model_problems, data_problems, reward_problems)
    # ``DPPOConfig`` has checked its ranges already, TRL's own arguments have not.
    ranges = setting_problems(run.training, ranges=ranges_of(run.training))
    return [*ranges, *(problem for check in checks for problem in check(run))]


def data_problems(run: AnyRun) -> Iterator[str]:
    """Local sets that do not exist, found before a model from scratch is warmed up; hub names are not looked up."""
    data = run.data
    if data.task_arguments and not any(map(is_gym, (data.dataset_name, *(data.eval_benchmarks or [])))):
        yield (
            f"task_arguments={data.task_arguments} need a task of reasoning-gym, and dataset_name is "
            f"{data.dataset_name!r}. Leave them out, or write dataset_name: {PREFIX}chain_sum"
        )
    sources = {"dataset_path" if data.dataset_path else "dataset_name": data.dataset_path or data.dataset_name}
    if run.training.eval_strategy != "no":
        sources["eval_dataset_name"] = data.eval_dataset_name or ""
    sources["prompt_values"] = getattr(run.training, "prompt_values", None) or ""  # TRL's own trainer has none
    for field, name in sources.items():
        if is_gym(name):
            try:
                run.gym_task(name)
            except ConfigError as error:
                yield str(error)
        elif field.endswith("name") and (not name or name in TASKS or not is_local(name)):
            continue
        elif name and not Path(name).expanduser().exists():
            yield f"{field}={name}: no such file or folder (looked in {Path.cwd()})"


def reward_problems(run: AnyRun) -> Iterator[str]:
    """Rewards that are not known or cannot be imported, and their weights."""
    if wrong := weights_mismatch(run.training.reward_weights, len(run.data.reward_funcs or [""])):
        yield wrong
    for name in run.data.reward_funcs or ():
        try:
            reward_maker(name, run)
        except ConfigError as error:
            yield str(error)
