"""Answers found in a completion, read, and compared with the gold answer. Imports no torch.

In the caller's process: ``answers`` finds the answer, ``rules`` says how near it must be, ``verifier`` asks the workers
of ``pool`` (each runs ``worker``). In a worker: ``judge``, over ``patterns`` <- ``brackets``, ``text`` <- ``numbers``,
``units``, ``changes``, ``words`` <- ``formula``, ``canonical`` <- ``reading``,
and ``values`` <- ``points`` <- ``equality`` <- ``regions`` <- ``compare``.
No string of a model reaches ``eval``, ``sympify`` or sympy's parser of Python expressions.
"""

from answer_judge.grading.verifier import REASONS, RULES, Verdict, Verifier, verify

__all__ = ["REASONS", "RULES", "Verdict", "Verifier", "verify"]
