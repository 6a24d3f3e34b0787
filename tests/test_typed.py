"""No argument of the wrong type ends in a bare TypeError or AttributeError, wherever a user can pass one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pytest

import dppo.evaluation
import dppo.grading
import dppo.problems
from dppo.errors import ConfigError, DPPOError
from dppo.evaluation import Benchmark, ModelSpec, Sampling, load_set
from dppo.grading import Verifier
from dppo.grading.vote import Stopping
from dppo.problems import accuracy_reward, format_reward, majority_vote_reward, overlong_penalty
from dppo.typed import check, typed


@typed("add(1, 2.0)")
def add(left: int, right: float, *, names: Sequence[str] | None = None, **more: Any) -> float:
    return left + right


def test_what_fits_passes():
    assert add(np.int64(1), 2) == 3 and add(1, right=np.float32(2), names=("a",), other=None) == 3.0
    assert add(1, 2, names=datasets.Dataset.from_dict({"a": ["x"]})["a"]) == 3
    for value, hint in ((len, Callable[..., int]), ("x", Literal["y"]), (None, Any), ({}, Mapping[str, int] | None)):
        check("value", value, hint, "f()")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 2.0), r"left=None is NoneType, expected a whole number. Try add\(1, 2.0\)"),
        ((1.5, 2.0), "left=1.5 is float, expected a whole number"),
        ((True, 2.0), "left=True is bool, expected a whole number"),
        ((1, "2"), "right='2' is str, expected a number"),
        ((1, "2" * 200), r"right='2{76}\.\.\. is str"),
    ],
)
def test_what_does_not_fit_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        add(*arguments)


def test_text_is_no_list_and_a_list_is_no_text():
    with pytest.raises(ConfigError, match="names='abc' is str, expected a list or None"):
        add(1, 2, names="abc")
    with pytest.raises(ConfigError, match=r"x=\['a'\] is list, expected (text or Path|Path or text)"):
        check("x", ["a"], str | Path, "f('a')")


def my_reward(prompts, completions, **columns):
    return [0.0] * len(completions)


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A call that works of every public function and record, as (function, arguments)."""
    folder = tmp_path_factory.mktemp("public")
    (folder / "p.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    table = datasets.Dataset.from_dict({"prompt": ["a", "b"], "answer": ["1", "2"]})
    own = Benchmark(name="own", path=str(folder / "p.jsonl"))
    verifier = Verifier(workers=1)
    asked = {"prompts": ["q"], "completions": [r"\boxed{2}"]}
    parts = (dppo.grading, dppo.problems, dppo.evaluation)
    named = {
        "Verifier": {"workers": 1, "limit_seconds": 5.0, "memory_mb": 1024},
        "verify": {"completion": r"\boxed{2}", "answer": "2", "benchmark": None, "details": None},
        "load_problems": {"source": own.path, "split": "train", "path": None, "prompt_column": None, "extract": None}
        | {"answer_column": None, "template": None, "chat": True, "answers": True},
        "load_solutions": {"source": own.path, "split": "train", "path": None, "solution_column": "answer"}
        | {"template": None, "chat": True},
        "check_problems": {"dataset": table, "tokenizer": None, "max_prompt_tokens": None, "minimum": 1}
        | {"on_bad_rows": "error"},
        "identities": {"prompts": ["a"]},
        "check_rewards": {"dataset": table, "rewards": [my_reward]},
        "accuracy_reward": {"answer_column": "answer", "benchmark": None, "workers": 1, "limit_seconds": 5.0}
        | {"verifier": None},
        "format_reward": {"has_format": None},
        "code_tests": {"answer_column": "answer", "workers": 1, "limits": None, "accept_weak_sandbox": False},
        "checker_reward": {"name": "check:json:loads", "workers": 1, "limit_seconds": 5.0},
        "Checker": {"name": "check:json:loads", "workers": 1, "limit_seconds": 5.0, "memory_mb": 1024},
        "Judges": {"workers": 1, "limit_seconds": 5.0, "limits": None, "accept_weak_sandbox": False},
        "overlong_penalty": {"max_tokens": 10, "cache_tokens": 5},
        "majority_vote_reward": {"votes": 2, "benchmark": None, "workers": 1, "limit_seconds": 5.0, "verifier": None},
        "same_answers": {"judge": verifier, "benchmark": None},
        "vote_until_settled": {"prompts": 2, "sample_more": lambda prompts: [None] * len(prompts)}
        | {"rule": Stopping(), "same": lambda pairs: [False] * len(pairs)},
        "guarded": {"reward": my_reward, "limit_seconds": None},
        "required_columns": {"reward": my_reward},
        "Benchmark": {"name": "m", "path": "x", "hub": None, "splits": ("test",), "columns": {}, "extract": None}
        | {"template": "{problem}", "rule": None, "samples": 4, "content": None, "problems": None},
        "choose": {"names": ["gsm8k"], "own": [], "folder": None, "template": None},
        "parse_benchmark": {"text": "m=x.jsonl"},
        "load_set": {"benchmark": own, "limit": None},
        "content_hash": {"pairs": [("a", "b")]},
        "compare": {"before": folder, "after": folder, "seed": 0},
        "read_results": {"folder": folder},
        "pass_at_k": {"samples": 4, "right": 2, "k": 2},
        "maj_at_k": {"votes": ["a", "b"], "right": [True, False], "k": 1},
        "Sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 0, "max_new_tokens": 8},
        "Protocol": {"sets": (load_set(own),), "samples": 2, "sampling": Sampling(), "seed": 0, "ks": None},
        "ModelSpec": {"model": "x", "tokenizer": None, "revision": None, "dtype": "auto", "batch_size": None},
        "load_engine": {"name": "transformers", "spec": ModelSpec(model=str(folder))},
        "evaluate": {"protocol": None, "engine": None, "judge": verifier, "folder": folder, "on_progress": None},
    }
    homes = {name: next(part for part in parts if name in part.__all__) for name in named}
    calls = {name: (getattr(homes[name], name), given) for name, given in named.items()}
    calls["verify_many"] = (
        verifier.verify_many,
        {"completions": ["2"], "answers": ["2"]} | dict.fromkeys(["benchmark", "details"]),
    )
    calls["accuracy"] = (accuracy_reward(verifier=verifier), asked | {"answer": ["2"]})
    calls["format"] = (format_reward(), asked)
    calls["vote"] = (majority_vote_reward(verifier=verifier), asked)
    calls["overlong"] = (overlong_penalty(10, 5), asked | {"completion_ids": [[1, 2]]})
    yield calls
    verifier.close()


RECORDS = {"Settled", "Verdict", "Engine", "Generated", "PairedResults", "Problem", "ProblemSet", "Progress", "Request"}
"""Records that the library makes and a user reads."""
TABLES = {"BENCHMARKS", "ENGINES", "REASONS", "RULES", "SETS"}


def test_every_public_name_is_tried(public):
    names = {*dppo.grading.__all__, *dppo.problems.__all__, *dppo.evaluation.__all__} - RECORDS - TABLES
    assert names <= set(public)


@pytest.mark.parametrize("wrong", [None, 5, -1, "x", "", [], {}, [None], [5], ["x"], len, 1.5, True], ids=repr)
def test_any_other_argument_works_or_is_an_error_of_this_library(wrong, public):
    for name, (function, given) in public.items():
        for argument in given:
            try:
                function(**{**given, argument: wrong})
            except DPPOError as error:
                assert str(error), (name, argument)
