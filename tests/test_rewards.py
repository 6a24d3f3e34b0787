"""Every fault of a reward function is an error that names it; who a prompt is does not depend on the process."""

import asyncio
import functools
import hashlib
import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from answer_judge.problems import required_columns
from dppo.errors import ConfigError, DataError, RewardError
from dppo.rewards import guarded, identities


def returning(value):
    def my_reward(prompts, completions, **columns):
        return value

    return my_reward


def call(reward, count=2, **columns):
    return reward(prompts=["q"] * count, completions=[f"text {i}" for i in range(count)], **columns)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ([1, 0.5], [1.0, 0.5]),
        ((True, False), [1.0, 0.0]),
        ([None, 1], [None, 1.0]),
        (np.array([1, 2]), [1.0, 2.0]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        ([np.float32(0.5), torch.tensor(2)], [0.5, 2.0]),
    ],
)
@pytest.mark.parametrize("limit", [None, 60])
def test_what_is_right_passes(value, result, limit):
    assert call(guarded(returning(value), limit)) == result


def test_nan_passes():
    first, second = call(guarded(returning([math.nan, 1])))
    assert math.isnan(first) and second == 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0] * 3, "returned 3 values for 2 completions"),
        ([], "returned 0 values"),
        ([1.0, "high"], r"returned 'high' for completion 1 of 2.*'text 1'"),
        ([1.0, [1.0]], r"returned \[1.0\] for completion 1"),
        ([math.inf, 1.0], "returned inf for completion 0"),
        ([10**400, 1.0], "for completion 0"),
        ([1j, 1.0], "for completion 0"),
        (np.ones((2, 2)), "for completion 0"),
        ([torch.ones(2), 1.0], "for completion 0"),
        (1.0, "returned 1.0, not a list"),
        (None, "returned None, not a list"),
        ("ab", "returned 'ab', not a list"),
        ({0: 1.0, 1: 2.0}, "not a list"),
        ((x for x in (1.0, 2.0)), "not a list"),
    ],
)
def test_what_is_wrong_is_named(value, message):
    with pytest.raises(RewardError, match=message) as caught:
        call(guarded(returning(value)), trainer_state=SimpleNamespace(global_step=17))
    assert "'my_reward' at step 17" in str(caught.value)
    assert "[0.0] * len(completions)" in str(caught.value)


@pytest.mark.parametrize("limit", [None, 60])
def test_an_exception_is_named_and_kept_as_the_cause(limit):
    def my_reward(prompts, completions, **columns):
        raise KeyError("gold")

    with pytest.raises(RewardError, match=r"'my_reward' raised KeyError: 'gold' on a batch of 3") as caught:
        call(guarded(my_reward, limit), 3)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_our_own_passes_as_it_is():
    def my_reward(prompts, completions, **columns):
        raise DataError("the column is empty")

    with pytest.raises(DataError, match=r"^the column is empty$"):
        call(guarded(my_reward))


def test_a_hanging_function_is_an_error():
    release = threading.Event()

    def my_reward(prompts, completions, **columns):
        release.wait()
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match=r"'my_reward' did not return within 0.1 seconds.*limit_seconds=1\)"):
        call(guarded(my_reward, limit_seconds=0.1))
    release.set()


def test_without_a_limit_it_runs_in_the_callers_thread_and_with_one_it_does_not():
    def my_reward(prompts, completions, **columns):
        return [float(threading.current_thread() is threading.main_thread())]

    assert call(guarded(my_reward), 1) == [1.0]
    assert call(guarded(my_reward, limit_seconds=60), 1) == [0.0]


def test_async_functions_stay_async():
    async def good(prompts, completions, **columns):
        return [1.0] * len(completions)

    async def hanging(prompts, completions, **columns):
        await asyncio.sleep(3600)

    async def raising(prompts, completions, **columns):
        raise TimeoutError("of its own")

    class Model:
        async def __call__(self, prompts, completions, **columns):
            return [1.0]

    assert asyncio.run(call(guarded(good, 60))) == [1.0, 1.0]
    with pytest.raises(RewardError, match="did not return within"):
        asyncio.run(call(guarded(hanging, 0.1)))
    with pytest.raises(RewardError, match="raised TimeoutError: of its own"):
        asyncio.run(call(guarded(raising, 60)))
    with pytest.raises(RewardError, match="'Model' returned 1 values for 2"):
        asyncio.run(call(guarded(Model())))


def test_names_and_signatures_stay():
    def my_reward(prompts, completions, gold, **columns):
        return [float(c == g) for c, g in zip(completions, gold, strict=True)]

    class Scorer:
        def __call__(self, prompts, completions, **columns):
            return [1.0] * len(completions)

    assert guarded(my_reward).__name__ == "my_reward"
    assert required_columns(guarded(my_reward)) == ("gold",)
    assert guarded(Scorer()).__name__ == "Scorer"
    partial = guarded(functools.partial(my_reward, gold=["a", "b"]))
    assert partial.__name__ == "my_reward"
    assert partial(["q"] * 2, ["a", "c"]) == [1.0, 0.0]  # TRL passes names; positions work too


def test_settings():
    with refused(ConfigError, "Qwen/reward-model", "function"):
        guarded("Qwen/reward-model")  # type: ignore[arg-type]
    for limit in (0, -1, math.inf):
        with refused(ConfigError, "limit_seconds", limit):
            guarded(returning([]), limit)


PROMPTS = [
    "1 + 1 = ?",
    "½ und ü",
    [{"role": "user", "content": "1 + 1 = ?"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "1 + 1 = ?"}],
]
GOLDEN = [11968714485964562616, 443006540115991368, 10384051378058337448, 132280497501393987]


def test_identities_are_these_for_ever():
    found = identities(PROMPTS)
    assert found.dtype == np.uint64 and found.tolist() == GOLDEN
    by_hand = hashlib.blake2b(b'"1 + 1 = ?"', digest_size=8).digest()
    assert found[0] == np.frombuffer(by_hand, "<u8")[0]
    by_hand = hashlib.blake2b(b'[{"content":"1 + 1 = ?","role":"user"}]', digest_size=8).digest()
    assert found[2] == np.frombuffer(by_hand, "<u8")[0]


def salted(code):
    """What a program prints under two seeds of Python's own hash."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        for seed in ("0", "1")
    ]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr
    return {run.stdout for run in runs}


def test_identities_do_not_depend_on_the_process():
    code = f"from dppo.rewards import identities; print(identities({PROMPTS!r}).tolist())"
    assert salted(code) == {f"{GOLDEN}\n"}
    assert len(salted("print(hash('1 + 1 = ?'))")) == 2  # what the check would catch


def test_identity_is_content_and_nothing_else():
    messages = [{"role": "user", "content": "q"}]
    turned = [{"content": "q", "role": "user", "name": None}]  # as a table returns it
    through_a_table = Dataset.from_dict({"prompt": [messages, [{"role": "user", "content": "q", "name": "n"}]]})
    keys = identities([messages, turned, *through_a_table["prompt"], "q"]).tolist()
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys)) == 3
    assert identities([]).shape == (0,)


@given(st.lists(st.text(), max_size=20))
def test_different_prompts_have_different_identities(texts):
    keys = identities(texts).tolist()
    assert len(set(keys)) == len(set(texts))
    assert identities(texts[::-1]).tolist() == keys[::-1]
