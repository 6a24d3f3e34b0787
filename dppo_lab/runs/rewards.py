"""What a run calls: its reward functions and what completes its prompts, by name or dotted path."""

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from answer_judge import problems as judged
from answer_judge.files import current_folder_first
from answer_judge.problems.checkers import is_check
from dppo.errors import ConfigError, did_you_mean
from dppo.methods import METHODS
from dppo.methods.own import is_own, method_named
from dppo_lab.demo import task
from dppo_lab.demo.rollouts import EmbeddedRollouts
from dppo_lab.gym import CHECK, COLUMN, is_gym
from dppo_lab.runs.embedded import EMBEDDED, TASKS
from dppo_lab.runs.parsing import AnyRun


def load_rewards(run: AnyRun, dataset: Dataset | None) -> list[Callable[..., Any]]:
    """The reward functions of a run, by name or dotted path, checked against the columns of the dataset if given."""
    names = run.data.reward_funcs or [own_reward(run.data.dataset_name)]
    functions = [reward_maker(name, run)() for name in names]
    if dataset is not None:
        judged.check_rewards(dataset, functions)
        for sandbox in (getattr(function, "sandbox", None) for function in functions):
            if sandbox is not None:  # it may be refused here, before anything is trained
                PartialState().print(f"dppo | {sandbox.describe()}")
    return functions


def own_reward(source: str) -> str:
    """The default reward of the problems of a run."""
    return EMBEDDED if source in TASKS else COLUMN if is_gym(source) else "accuracy"


def reward_maker(name: str, run: AnyRun) -> Callable[[], Callable[..., Any]]:
    """What makes the reward of a name, a check or a dotted path; an error where there is none, and nothing is made."""
    data, longest = run.data, run.training.max_completion_length or 0
    makers: dict[str, Callable[[], Callable[..., Any]]] = {
        "accuracy": lambda: judged.accuracy_reward(
            benchmark=data.reward_rule, workers=data.reward_workers, limit_seconds=data.answer_time_limit
        ),
        "format": judged.format_reward,
        "overlong": lambda: judged.overlong_penalty(longest, data.overlong_cache_tokens),
        "majority_vote": lambda: _vote(run),
        "code_tests": lambda: judged.code_tests(
            workers=data.reward_workers, limits=run.program_limits, accept_weak_sandbox=data.accept_weak_sandbox
        ),
        EMBEDDED: lambda: task.score,
        COLUMN: lambda: _gym(run),
    }
    if name in makers:
        return makers[name]
    if is_check(name):
        return lambda: judged.checker_reward(name, workers=data.reward_workers, limit_seconds=data.answer_time_limit)
    function = imported(name, field="reward_funcs", known=makers)
    return lambda: function


def _gym(run: AnyRun) -> Callable[..., Any]:
    """The score of a task of reasoning-gym, computed in worker processes: some scorers can hang on a model's text."""
    data = run.data
    reward = judged.checker_reward(CHECK, workers=data.reward_workers, limit_seconds=data.answer_time_limit)
    reward.__dict__["required_columns"] = (COLUMN,)
    return reward


def _vote(run: AnyRun) -> Callable[..., Any]:
    """The majority vote of a run's groups, which must all have one size: another size is another reward."""
    name = getattr(run.training, "method", "")  # of TRL's own trainer there is none
    own = method_named(name) if is_own(name) else METHODS.get(name)
    if own is not None and own.sizes is not None:
        raise ConfigError(
            f"reward_funcs: majority_vote is another reward in groups of another size, and method={own.name!r} gives "
            "prompts as many completions as their history says. Write method: dppo_history"
        )
    votes, held_out = run.training.num_generations, run.training.num_generations_eval
    if run.training.eval_strategy != "no" and held_out not in (None, votes):
        raise ConfigError(
            f"reward_funcs: majority_vote rewards by a vote of num_generations={votes}, and another vote, of "
            f"num_generations_eval={held_out}, is another reward. Write num_generations_eval: {votes}"
        )
    data = run.data
    return judged.majority_vote_reward(
        votes=votes, benchmark=data.reward_rule, workers=data.reward_workers, limit_seconds=data.answer_time_limit
    )


def imported(name: str, *, field: str, known: Iterable[str]) -> Callable[..., Any]:
    """The function of a dotted path, looked up in the current folder first; errors name the ``field``."""
    module, _, attribute = name.rpartition(".")
    if not module:
        path = f"Write one of {', '.join(known)}, or the dotted path of a function."
        raise ConfigError(f"{field}: {name!r} is not known. {did_you_mean(name, known)}{path}")
    try:
        with current_folder_first():
            return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        meant = did_you_mean(attribute, vars(sys.modules[module]) if module in sys.modules else ())
        raise ConfigError(f"{field}: {name!r} cannot be imported: {error}. {meant}".rstrip()) from error


def load_rollouts(run: AnyRun) -> Callable[..., Any] | None:
    """The ``rollout_func`` of a run, by name or dotted path; None where transformers or vLLM generate."""
    name = run.data.rollout_func
    if name is None:
        return None
    if name != EMBEDDED:
        return imported(name, field="rollout_func", known=[EMBEDDED])
    if run.training.use_vllm:
        raise ConfigError("rollout_func: embedded decodes by itself, use_vllm would start vLLM for nothing. Use one.")
    return EmbeddedRollouts()
