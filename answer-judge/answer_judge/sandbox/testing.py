"""The tests' side: runs them in their own process, where stand-ins take the place of what the program defined.

Expected values, comparisons and ``assert`` are here alone. A call of a stand-in is a line out and a line back.
"""

import builtins
import json
import os
import random
from typing import Any

from answer_judge.sandbox.values import decode, encode, send


class Remote:
    """Stands for an object of the program: can be called, read, set and gone through, and equals itself alone."""

    def __init__(self, side: "Testing", of: Any) -> None:
        object.__setattr__(self, "_answer_judge", (side, of))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        side, of = object.__getattribute__(self, "_answer_judge")
        given = [encode(each, side.number) for each in arguments]
        return side.ask({"of": of, "call": given, "named": {n: encode(v, side.number) for n, v in named.items()}})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copying and the like look for first
            raise AttributeError(name)
        side, of = object.__getattribute__(self, "_answer_judge")
        return side.ask({"of": of, "get": name})

    def __setattr__(self, name: str, value: Any) -> None:
        side, of = object.__getattribute__(self, "_answer_judge")
        side.ask({"of": of, "set": name, "to": encode(value, side.number)})

    def __iter__(self) -> Any:
        side, of = object.__getattribute__(self, "_answer_judge")
        return iter(side.ask({"of": of, "items": True}))

    def __deepcopy__(self, memo: Any) -> "Remote":
        return self


class Testing:
    """Tests that run, and what stands here for objects of the program."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, os.fdopen(replies, "rb")
        self.known: dict[int, Remote] = {}
        self.failed: BaseException | None = None
        self.kind = ""

    def referred(self, number: Any) -> Remote:
        if type(number) is not int:
            raise ValueError("not a value")
        return self.known.setdefault(number, Remote(self, number))

    def number(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_answer_judge")[1]
        raise TypeError(f"{type(value).__name__} cannot be handed to the program")

    def ask(self, request: Any) -> Any:
        """The value that the program gives; what it raises is raised here, as the built-in exception it is one of."""
        send(self.requests, request)
        try:
            reply = json.loads(self.replies.readline())
            if "raised" not in reply:
                return decode(reply["value"], self.referred)
            self.kind, message = (str(part) for part in reply["raised"])
        except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, RecursionError) as error:
            self.kind, message = "RuntimeError", f"it gave no value that can be read: {type(error).__name__}"
        found = getattr(builtins, self.kind, RuntimeError)
        usual: Any = isinstance(found, type) and issubclass(found, Exception) and found not in UNUSUAL and found
        failed: Exception = (usual or RuntimeError)(message)
        self.failed = failed
        raise failed

    def run(self) -> None:
        """Read the tests, run them, and say what came of it."""
        send(self.requests, self.verdict(json.loads(self.replies.readline())))

    def verdict(self, task: dict[str, Any]) -> dict[str, Any]:
        """``right``; ``wrong`` where a test failed, ``error`` where one cannot be run, ``raised`` by the program."""
        random.seed(0)
        names: dict[str, Any] = {"__name__": "tests"}
        try:
            self.ask({"program": task["program"]})
            exec(compile(task["before"], "<before the tests>", "exec"), names)
            names.update({name: Remote(self, name) for name in task["names"]})
            exec(compile(task["tests"], "<tests>", "exec"), names)
        except BaseException as error:
            if error is self.failed:
                return {"verdict": "raised", "kind": self.kind, "detail": str(error)}
            verdict = "wrong" if isinstance(error, AssertionError) else "error"
            return {"verdict": verdict, "detail": f"{type(error).__name__}: {str(error)[:200]}"}
        return {"verdict": "right"}


ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)
UNUSUAL = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError, ExceptionGroup, *ENDS_OF_LOOPS)
"""Exceptions that cannot be made from a message alone, and those that a loop of the tests would take for its end."""
