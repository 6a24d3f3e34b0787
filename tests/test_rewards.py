"""Every fault of a reward function is an error that names it; who a prompt is does not depend on the process."""

import asyncio
import functools
import hashlib
import math
import os
import subprocess
import sys
import threading
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from refusals import refused

from dppo.errors import ConfigError, RewardError
from dppo.rewards import guarded, identities


def returning(value):
    def my_reward(prompts, completions, **columns):
        return value

    return my_reward


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    """By keyword, by position in a partial function, and not where a default or ``**columns`` takes its place."""

    def graded(completions, gold_answer, strict=True, **columns):
        return [1.0] * len(completions)

    reward = guarded(graded)
    named = ("'graded'", "'gold_answer'", "has answer, level", "Did you mean answer?")
    with refused(RewardError, *named, "rename_column('answer', 'gold_answer')") as info:
        call(reward, answer=["1", "2"], level=[1, 2])
    assert info.value.__cause__ is None and "None for a completion" not in str(info.value)
    assert call(reward, gold_answer=["1", "2"]) == [1.0, 1.0]
    assert call(guarded(functools.partial(graded, gold_answer="1"))) == [1.0, 1.0]


@pytest.mark.parametrize("limit", [None, 60])
def test_a_function_that_does_not_take_what_it_is_given_is_told_to(limit):
    """The wrong twin took its TypeError for a completion that cannot be scored, and advised to return None."""

    def mine(completions, level: int = 1):
        return [1.0] * len(completions)

    with refused(RewardError, "'mine'", "does not take prompts, answer.", "def mine(completions, level=1, **kwargs)"):
        call(guarded(mine, limit), answer=["1", "2"])

    def raising(completions, **kwargs):
        raise TypeError("raising() got an unexpected keyword argument 'prompts'")

    with refused(RewardError, "'raising'", "Return None for a completion"):
        call(guarded(raising, limit))


def test_a_column_that_the_trainer_removes_is_told_from_one_that_is_not_there():
    def named(completions, row, **columns):
        return [1.0] * len(completions)

    def by_key(completions, **columns):
        return [float(row) for row in columns["row"]]

    for reward in (named, by_key):
        with refused(RewardError, "'row'", "remove_unused_columns: true", "false"):
            call(guarded(reward, dropped={"row"}))
    with refused(RewardError, "KeyError: 'row'"):
        call(guarded(by_key))


def call(reward, count=2, **columns):
    return reward(prompts=["q"] * count, completions=[f"text {i}" for i in range(count)], **columns)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ([1, 0.5], [1.0, 0.5]),
        ([None, 1], [None, 1.0]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        ([np.float32(0.5), torch.tensor(2)], [0.5, 2.0]),
        ([Decimal("0.5"), Fraction(1, 2)], [0.5, 0.5]),
    ],
)
@pytest.mark.parametrize("limit", [None, 60])
def test_what_is_right_passes(value, result, limit):
    assert call(guarded(returning(value), limit)) == result


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([1.0], ("1 values", "2 completions")),
        ([1.0, "high"], ("'high'", "completion 1", "'text 1'")),
        ([math.inf, 1.0], ("inf", "completion 0")),
        ([10**400, 1.0], ("completion 0",)),
        (np.ones((2, 2)), ("completion 0",)),
        (None, ("None", "not a list")),
        ("ab", ("'ab'", "not a list")),
    ],
)
def test_what_is_wrong_is_named(value, named):
    with refused(RewardError, "'my_reward' at step 17", *named, "[0.0] * len(completions)"):
        call(guarded(returning(value)), trainer_state=SimpleNamespace(global_step=17))


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize(("error", "named"), [(KeyError("gold"), "KeyError: 'gold'"), (SystemExit(3), "SystemExit: 3")])
def test_an_exception_is_named_and_kept_as_the_cause(error, named, limit):
    def my_reward(prompts, completions, **columns):
        raise error

    with refused(RewardError, "'my_reward'", named, "batch of 3") as caught:
        call(guarded(my_reward, limit), 3)
    assert caught.value.__cause__ is error


def test_a_hanging_function_is_an_error():
    release = threading.Event()
    with refused(RewardError, "'<lambda>'", "0.1 seconds", "limit_seconds=1"):
        call(guarded(lambda **given: release.wait(), limit_seconds=0.1))
    release.set()
    with refused(ConfigError, "Qwen/reward-model", "function"):
        guarded("Qwen/reward-model")  # type: ignore[arg-type]
    with refused(ConfigError, "limit_seconds", 0):
        guarded(returning([]), 0)


def test_async_functions_stay_async():
    async def good(prompts, completions, **columns):
        return [1.0] * len(completions)

    async def hanging(prompts, completions, **columns):
        await asyncio.sleep(3600)

    async def raising(prompts, completions, **columns):
        raise TimeoutError("of its own")

    assert asyncio.run(call(guarded(good, 60))) == [1.0, 1.0]
    with refused(RewardError, "did not return within"):
        asyncio.run(call(guarded(hanging, 0.1)))
    with refused(RewardError, "TimeoutError: of its own"):
        asyncio.run(call(guarded(raising, 60)))


PROMPTS = ["1 + 1 = ?", "½ und ü", [{"role": "user", "content": "1 + 1 = ?"}]]
GOLDEN = [11968714485964562616, 443006540115991368, 10384051378058337448]


def test_identities_are_these_for_ever_in_every_process():
    """Python's own hash, the wrong twin, differs between two processes."""
    by_hand = hashlib.blake2b(b'[{"content":"1 + 1 = ?","role":"user"}]', digest_size=8).digest()
    assert GOLDEN[2] == np.frombuffer(by_hand, "<u8")[0]
    code = f"from dppo.rewards import identities; print(identities({PROMPTS!r}).tolist(), '|', hash('1 + 1 = ?'))"
    other = {"env": os.environ | {"PYTHONHASHSEED": "12345"}, "capture_output": True, "text": True}
    found, salted = subprocess.run([sys.executable, "-c", code], **other).stdout.split(" | ")
    assert found == str(identities(PROMPTS).tolist()) == str(GOLDEN) and int(salted) != hash("1 + 1 = ?")


def test_identity_is_content_and_nothing_else():
    """Also of rows that an environment makes its prompts of, with what JSON has no word for."""
    messages = [{"role": "user", "content": "q"}]
    turned = [{"content": "q", "role": "user", "name": None}]  # as a table returns it
    through_a_table = Dataset.from_dict({"prompt": [messages, [{"role": "user", "content": "q", "name": "n"}]]})
    keys = identities([messages, turned, *through_a_table["prompt"], "q"])
    assert keys.dtype == np.uint64 and keys[0] == keys[1] == keys[2] and len({*keys.tolist()}) == 3
    made = [(datetime(2024, 1, 1), b"a"), (datetime(2024, 1, 2), b"a"), (datetime(2024, 1, 1), b"b")]
    rows = [{"at": at, "data": data, "cost": Decimal(1), "picture": object()} for at, data in made]
    keys = identities(rows).tolist()
    assert len({*keys}) == 3 and keys == identities([row | {"picture": object()} for row in rows]).tolist()
    assert len({*identities(Dataset.from_list([row | {"picture": None} for row in rows])).tolist()}) == 3
