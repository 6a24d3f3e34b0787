"""What a worker process of ``checkers`` runs: the user's function on one completion, and whether its value is a score.

Loaded by path: it imports nothing of this package.
"""

import importlib
import math
import numbers
from typing import Any


def score(task: dict[str, Any]) -> dict[str, Any]:
    """``{"value": v}`` with v in [0, 1], or ``{"fault": why}``.

    A task has ``module``, ``function``, ``text`` and ``row``; without a text, the module is imported and nothing said.
    """
    function = getattr(importlib.import_module(task["module"]), task["function"])
    if "text" not in task:
        return {}
    try:
        value = function(task["text"], task["row"])
    except MemoryError:
        raise
    except Exception as error:
        return {"fault": f"raised {type(error).__name__}: {str(error)[:200]}"}
    if not isinstance(value, numbers.Real) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, numbers.Real) and math.isfinite(float(value)) and 0 <= float(value) <= 1:
        return {"value": float(value)}
    return {"fault": f"returned {repr(value)[:80]}, expected True, False or a number from 0 to 1"}
