"""The program's side: runs its text once, then calls what it defined, with arguments and results by value.

Whatever the program does to this side, it can only send values; whether they are right is decided elsewhere.
"""

import json
import os
import random
import sys
import types
from typing import Any

from answer_judge.sandbox.values import decode, encode, send


class Serving:
    """A program that has run, and its objects to which the tests hold references."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = os.fdopen(requests, "rb"), replies
        self.objects: list[Any] = []
        self.names: dict[str, Any] = {}

    def refer(self, value: Any) -> int:
        for number, known in enumerate(self.objects):
            if known is value:
                return number
        self.objects.append(value)
        return len(self.objects) - 1

    def referred(self, of: Any) -> Any:
        return self.objects[of] if isinstance(of, int) else self.names[of]

    def run(self) -> None:
        """Answer requests until there are no more."""
        while request := self.requests.readline():
            try:
                send(self.replies, {"value": encode(self.answer(json.loads(request)), self.refer)})
            except BaseException as error:
                send(self.replies, {"raised": [kind_of(error), message_of(error)]})

    def answer(self, request: dict[str, Any]) -> Any:
        if "program" in request:
            random.seed(0)
            module = sys.modules["program"] = types.ModuleType("program")
            self.names = module.__dict__
            exec(compile(request["program"], "<program>", "exec"), self.names)
            return None
        target = self.referred(request["of"])
        if "get" in request:
            return getattr(target, request["get"])
        if "set" in request:
            return setattr(target, request["set"], decode(request["to"], self.referred))
        if "items" in request:
            return list(target)
        arguments = [decode(each, self.referred) for each in request["call"]]
        named = {name: decode(each, self.referred) for name, each in request["named"].items()}
        return target(*arguments, **named)


def kind_of(error: BaseException) -> str:
    """The built-in exception that an error is one of."""
    builtin = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return next(builtin, Exception).__name__


def message_of(error: BaseException) -> str:
    """What an error says, as far as it can be asked."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return "an error that cannot be shown"
