"""Untrusted programs run against tests: confined by the system, judged by a process they cannot reach.

Knows nothing of models, rewards or benchmarks. What is enforced where: docs/code.md.
"""

from answer_judge.sandbox.judging import VERDICTS, Outcome, Task
from answer_judge.sandbox.sandbox import LAYERS, Sandbox, is_strong
from answer_judge.sandbox.servers import Limits

__all__ = ["LAYERS", "VERDICTS", "Limits", "Outcome", "Sandbox", "Task", "is_strong"]
