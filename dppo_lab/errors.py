"""The errors of both libraries that the lab stands on."""

from answer_judge.errors import JudgeError
from dppo.errors import DPPOError

EXPLAINED = (DPPOError, JudgeError)
"""Errors whose message says what to do: a command prints it and ends, a dry run lists it."""
