"""What a trainer needs of rewards and prompts: reward functions whose faults are named, and who a prompt is.

``guarded`` turns what would hang a run, or fail deep inside it, into an error that names the reward function.
``identities`` finds a prompt again in a saved history.
"""

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
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from dppo.errors import ConfigError, RewardError, did_you_mean

Reward = Callable[..., Any]
GIVEN = ("prompts", "completions", "completion_ids")
"""Lists that trainers give a reward function beside the columns of the dataset."""


def guarded(reward: Reward, limit_seconds: float | None = None, dropped: Collection[str] = ()) -> Reward:
    """The same reward function, whose faults are errors that say what to do.

    A wrong count, a value that is no number (None and NaN are allowed: unscorable), an infinite one and an exception
    all raise ``RewardError``. With a limit, each call runs in a thread of its own, and one that does not return in
    time is an error too. **That thread cannot be killed**: it goes on until the process ends, and a function that
    uses signals does not work in it. Without a limit nothing runs in another thread.

    Args:
        reward: a function with TRL's signature, also ``async``.
        limit_seconds: wall-clock seconds one call (one batch) may take, > 0, or None for no limit.
        dropped: columns that the trainer removes from the dataset, because ``remove_unused_columns`` is true.

    Returns:
        A function with the same name and signature that returns a list of float or None.

    Raises:
        ConfigError: ``reward`` cannot be called, or the limit is out of range.
    """
    if not callable(reward):
        raise ConfigError(
            f"{reward!r} is no function. Try guarded(my_reward); names of models go to the trainer as they are"
        )
    if limit_seconds is not None and not 0 < limit_seconds < math.inf:
        raise ConfigError(f"limit_seconds={limit_seconds} must be above 0 and finite, or None for no limit")
    target = reward
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", type(target).__name__)

    @functools.wraps(reward)
    def call(*args: Any, **kwargs: Any) -> list[float | None]:
        with _named(reward, name, limit_seconds, dropped, args, kwargs) as blame:
            values = reward(*args, **kwargs) if limit_seconds is None else _within(limit_seconds, reward, args, kwargs)
        return _checked(blame, values, _completions(reward, args, kwargs))

    @functools.wraps(reward)
    async def call_async(*args: Any, **kwargs: Any) -> list[float | None]:
        with _named(reward, name, limit_seconds, dropped, args, kwargs) as blame:
            timer = asyncio.timeout(limit_seconds)
            try:
                async with timer:
                    values = await reward(*args, **kwargs)
            except TimeoutError as error:
                raise _Late if timer.expired() else error from None
        return _checked(blame, values, _completions(reward, args, kwargs))

    wrapper = call_async if is_async(target) else call
    wrapper.__name__ = name
    return wrapper


def is_async(function: Reward) -> bool:
    """Whether calling the function, or the object, gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class _Late(Exception):
    """A call that did not return in time."""


def _within(limit_seconds: float, reward: Reward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the reward returns or raises, or ``_Late``. Context and CUDA device of the caller hold in the thread too."""
    result: list[tuple[bool, Any]] = []
    context = contextvars.copy_context()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            result.append((True, context.run(reward, *args, **kwargs)))
        except BaseException as error:
            result.append((False, error))

    thread = threading.Thread(target=run, daemon=True, name="reward")
    thread.start()
    thread.join(limit_seconds)
    if not result:
        raise _Late
    returned, value = result[0]
    if not returned:
        raise value
    return value


def _completions(reward: Reward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if "completions" in kwargs:
        return kwargs["completions"]
    return inspect.signature(reward).bind(*args, **kwargs).arguments["completions"]


@contextmanager
def _named(
    reward: Reward,
    name: str,
    limit_seconds: float | None,
    dropped: Collection[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Iterator[str]:
    """Turns what a reward function raises into an error that names it; errors of this library pass as they are.

    Gives how it is named in messages: with the step, where the trainer told it.
    """
    step = getattr(kwargs.get("trainer_state"), "global_step", None)
    blame = f"reward function {name!r}" + (f" at step {step}" if step is not None else "")
    try:
        yield blame
    except _Late:
        raise RewardError(
            f"{blame} did not return within {limit_seconds:g} seconds. Its thread cannot be killed and ends with the "
            "process. Give its slow part a limit of its own, or allow a batch more time: "
            f"guarded({name}, limit_seconds={10 * (limit_seconds or 1):g}); in a configuration that is "
            "reward_time_limit"
        ) from None
    except (Exception, SystemExit) as error:  # which would end the process without a word
        if getattr(error, "explained", False):
            raise
        if isinstance(error, TypeError) and not args and (wrong := _mismatch(reward, name, dropped, kwargs)):
            raise RewardError(f"{blame} {wrong}") from None
        if isinstance(error, KeyError) and error.args and error.args[0] in dropped:
            raise RewardError(f"{blame} {_removed(error.args[0])}") from error
        count = len(kwargs.get("completions", ()))
        batch = f" on a batch of {count} completions" if count else ""
        raise RewardError(
            f"{blame} raised {type(error).__name__}: {error}{batch}. "
            "Return None for a completion that cannot be scored: the others still count."
        ) from error


def _mismatch(reward: Reward, name: str, dropped: Collection[str], kwargs: dict[str, Any]) -> str:
    """How the parameters of a function differ from what it is given; empty if it takes all and has all it needs."""
    asked = inspect.signature(reward).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in asked):
        known = {each.name for each in asked if each.kind is not each.POSITIONAL_ONLY}
        if unknown := [each for each in kwargs if each not in known]:
            own = [str(each.replace(annotation=each.empty)) for each in asked]
            return f"does not take {', '.join(unknown)}. Add **kwargs: def {name}({', '.join([*own, '**kwargs'])})"
    needed = [each for each in asked if each.default is each.empty]
    named = [each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    wanted = next((name for name in named if name not in kwargs), None)
    if wanted is None:
        return ""
    if wanted in dropped:
        return _removed(wanted)
    columns = [name for name, value in kwargs.items() if isinstance(value, list) and name not in GIVEN]
    return (
        f"asks for the column {wanted!r}, and the dataset has {', '.join(columns) or 'none'}. "
        f"{did_you_mean(wanted, columns)}Rename one: dataset.rename_column({(columns or ['mine'])[0]!r}, {wanted!r})"
    )


def _removed(column: str) -> str:
    return f"asks for the column {column!r}, which remove_unused_columns: true removes. Write it false, TRL's default"


def _checked(blame: str, values: Any, completions: Any) -> list[float | None]:
    """The values as float or None, one per completion."""
    hint = "Return one number (or None) per completion, for example [0.0] * len(completions)."
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise RewardError(f"{blame} returned {_short(values)}, not a list. {hint}")
    values = list(values)
    if len(values) != len(completions):
        raise RewardError(f"{blame} returned {len(values)} values for {len(completions)} completions. {hint}")
    for row, value in enumerate(values):
        if not _is_score(value):
            raise RewardError(
                f"{blame} returned {_short(value)} for completion {row} of {len(values)}, expected a finite number, "
                f"NaN or None. The completion: {_short(completions[row])}. {hint}"
            )
    return [None if value is None else float(value) for value in values]


def _is_score(value: Any) -> bool:
    """Whether a value is None, or one real number that is not infinite."""
    if value is None:
        return True
    if not isinstance(value, numbers.Number) and not hasattr(value, "item"):  # a Decimal is no Real
        return False
    try:
        return not math.isinf(float(cast(Any, value)))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def identities(prompts: Iterable[Any]) -> np.ndarray:
    """Who each prompt is, a text or a list of messages: 64 bits of a hash of its content, the same on every machine.

    Equal prompts have equal identities, wherever they stand: rows that repeat a prompt stay separate rows of the
    dataset, each with a history of its own; a saved history finds its rows again by identity. A
    message's fields that are None count as absent, since a table fills them in.

    Returns:
        (rows,) uint64. Among 10 million different prompts two share an identity with probability 3e-6.
    """
    texts = (json.dumps(_present(prompt), sort_keys=True, separators=(",", ":"), default=_said) for prompt in prompts)
    hashes = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), dtype=np.uint64)


def _said(value: Any) -> str:
    """What JSON has no word for, such as a date or bytes, without an address, which differs from run to run."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(entry) for key, entry in value.items() if entry is not None}
    return [_present(entry) for entry in value] if isinstance(value, list) else value
