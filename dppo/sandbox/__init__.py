"""Untrusted programs run against tests: confined by the system, judged by a process they cannot reach.

Knows nothing of models, rewards or benchmarks. What is enforced where: docs/code.md.
"""

from dppo.sandbox.judging import VERDICTS, Outcome, Task
from dppo.sandbox.sandbox import LAYERS, Sandbox, is_strong
from dppo.sandbox.servers import Limits

__all__ = ["LAYERS", "VERDICTS", "Limits", "Outcome", "Sandbox", "Task", "is_strong"]
