"""Errors whose message says what to do: a command prints it and ends, a dry run lists it."""

from dppo.errors import DPPOError

EXPLAINED: tuple[type[Exception], ...] = (DPPOError,)
try:
    from answer_judge.errors import JudgeError
except ModuleNotFoundError:  # it is a distribution of its own
    pass
else:
    EXPLAINED += (JudgeError,)
