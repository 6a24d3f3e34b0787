"""Reward functions whose faults are errors that name them, and identities of prompts for a saved history."""

import asyncio
import contextvars
import functools
import hashlib
import inspect
import json
import math
import numbers
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from dppo.errors import ConfigError, RewardError, did_you_mean
from dppo.typed import check_range

Reward = Callable[..., Any]
GIVEN = ("prompts", "completions", "completion_ids")
"""Lists that trainers give a reward function beside the columns of the dataset."""
HINT = "Return one number (or None) per completion, for example [0.0] * len(completions)."


def guarded(reward: Reward, limit_seconds: float | None = None, dropped: Collection[str] = ()) -> Reward:
    """The same reward function, which raises ``RewardError`` for its faults.

    Faults are an exception, a wrong number of values, an infinite value, and one that is not a number. None and NaN
    are allowed: the completion cannot be scored. With a limit, each call runs in a thread of its own, and a call that
    does not return in time is a fault. **That thread cannot be killed**: it runs until the process ends. Functions that
    use signals do not work in it.

    Args:
        reward: a function with TRL's signature, also ``async``.
        limit_seconds: wall-clock seconds of one call (one batch), > 0, or None for no limit.
        dropped: columns that the trainer removes from the dataset, because ``remove_unused_columns`` is true.
    """
    if not callable(reward):
        raise ConfigError(f"{reward!r} is no function. Try guarded(my_reward); names of models are given as they are")
    check_range("guarded", "limit_seconds", limit_seconds, "(0, inf)", "limit_seconds=60, or None for no limit")
    target = reward
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", type(target).__name__)
    made = functools.partial(_Call, reward, name, limit_seconds, dropped)

    @functools.wraps(reward)
    def call(*args: Any, **kwargs: Any) -> list[float | None]:
        one = made(args, kwargs)
        with one.faults_named():
            values = reward(*args, **kwargs) if limit_seconds is None else one.in_thread()
        return one.checked(values)

    @functools.wraps(reward)
    async def call_async(*args: Any, **kwargs: Any) -> list[float | None]:
        one = made(args, kwargs)
        with one.faults_named():
            timer = asyncio.timeout(limit_seconds)
            try:
                async with timer:
                    values = await reward(*args, **kwargs)
            except TimeoutError as error:
                raise one.late() if timer.expired() else error from None
        return one.checked(values)

    wrapper = call_async if is_async(target) else call
    wrapper.__name__ = name
    return wrapper


def is_async(function: Reward) -> bool:
    """True if calling the function, or the object, returns an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a reward function, for the errors that name its faults."""

    reward: Reward
    name: str
    limit_seconds: float | None
    dropped: Collection[str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def in_thread(self) -> Any:
        """Result of the call in a thread, with the caller's context and CUDA device; an error after the limit."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def run() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)
                future.set_result(context.run(self.reward, *self.args, **self.kwargs))
            except BaseException as error:
                future.set_exception(error)

        # No thread of an executor: the interpreter waits for those at its end.
        threading.Thread(target=run, daemon=True, name="reward").start()
        if not wait([future], self.limit_seconds).done:
            raise self.late()
        return future.result()

    def fault(self, what: str) -> RewardError:
        """The error for a fault, with the step if the trainer gave it."""
        step = getattr(self.kwargs.get("trainer_state"), "global_step", None)
        return RewardError(f"reward function {self.name!r}{'' if step is None else f' at step {step}'} {what}")

    def late(self) -> RewardError:
        """The error for a call that did not return in time."""
        limit = self.limit_seconds or 1
        more = f"guarded({self.name}, limit_seconds={10 * limit:g}); in a configuration that is reward_time_limit"
        late = f"did not return within {limit:g} seconds, and its thread ends with the process. Allow more time"
        return self.fault(f"{late}: {more}")

    @contextmanager
    def faults_named(self) -> Iterator[None]:
        """Turn errors of a reward function into ``RewardError``; those of this library pass unchanged."""
        try:
            yield
        except (Exception, SystemExit) as error:  # SystemExit would end the process without a message
            if getattr(error, "explained", False):
                raise
            if isinstance(error, TypeError) and not self.args and (wrong := self._mismatch()):
                raise self.fault(wrong) from None
            if isinstance(error, KeyError) and error.args and error.args[0] in self.dropped:
                raise self.fault(_removed(error.args[0])) from error
            count = len(self.kwargs.get("completions", ()))
            batch = f" on a batch of {count} completions" if count else ""
            advice = "Return None for a completion that cannot be scored: the others still count."
            raise self.fault(f"raised {type(error).__name__}: {error}{batch}. {advice}") from error

    def _mismatch(self) -> str:
        """Difference between the parameters of the function and the arguments; empty if they match."""
        parameters = inspect.signature(self.reward).parameters.values()
        known = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
        unknown = [each for each in self.kwargs if each not in known]
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            own = [*(str(each.replace(annotation=each.empty)) for each in parameters), "**kwargs"]
            return f"does not take {', '.join(unknown)}. Add **kwargs: def {self.name}({', '.join(own)})"
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = (each.name for each in parameters if each.default is each.empty and each.kind not in variadic)
        wanted = next((name for name in needed if name not in self.kwargs), None)
        if wanted is None or wanted in self.dropped:
            return "" if wanted is None else _removed(wanted)
        columns = [name for name, value in self.kwargs.items() if isinstance(value, list) and name not in GIVEN]
        near = f"{did_you_mean(wanted, columns)}dataset.rename_column({(columns or ['mine'])[0]!r}, {wanted!r})"
        return f"asks for the column {wanted!r}, and the dataset has {', '.join(columns) or 'none'}. {near}"

    def checked(self, values: Any) -> list[float | None]:
        """The values as float or None, one per completion."""
        completions = self.kwargs.get("completions")
        if completions is None:
            completions = inspect.signature(self.reward).bind(*self.args, **self.kwargs).arguments["completions"]
        if hasattr(values, "tolist"):
            values = values.tolist()
        if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
            raise self.fault(f"returned {values!r:.120}, not a list. {HINT}")
        values = list(values)
        if len(values) != len(completions):
            raise self.fault(f"returned {len(values)} values for {len(completions)} completions. {HINT}")
        for row, value in enumerate(values):
            if not _is_score(value):
                place = f"for completion {row} of {len(values)}, not a finite number, NaN or None"
                raise self.fault(f"returned {value!r:.120} {place}. The completion: {completions[row]!r:.120}. {HINT}")
        return [None if value is None else float(value) for value in values]


def _removed(column: str) -> str:
    return f"asks for the column {column!r}, which remove_unused_columns: true removes. Write it false, TRL's default"


def _is_score(value: Any) -> bool:
    """True for None, NaN and finite real numbers."""
    number = isinstance(value, numbers.Number) or hasattr(value, "item")  # a Decimal is a Number, but not a Real
    try:
        return value is None or (number and not math.isinf(float(cast(Any, value))))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def identities(prompts: Iterable[Any]) -> np.ndarray:
    """(rows,) uint64 hashes of the content of prompts, each a text or a list of messages, equal on every machine.

    Rows that repeat a prompt have equal identities, and each has a history of its own. Among 10 million different
    prompts two share an identity with probability 3e-6.
    """
    texts = (json.dumps(_present(prompt), sort_keys=True, separators=(",", ":"), default=_text) for prompt in prompts)
    hashes = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), dtype=np.uint64)


def _text(value: Any) -> str:
    """Text of a value that JSON cannot hold, without its address, which differs by run."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _present(value: Any) -> Any:
    """A value without the fields of dictionaries that are None, which a table fills in."""
    if isinstance(value, dict):
        return {key: _present(entry) for key, entry in value.items() if entry is not None}
    return [_present(entry) for entry in value] if isinstance(value, list) else value
