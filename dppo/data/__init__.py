"""Problems to train on and rewards for answers: what comes in from outside, checked where it comes in.

Names are imported when first used: verifying answers should not wait for the imports that loading datasets needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dppo.data.catalogue import BENCHMARKS, SETS, Benchmark
    from dppo.data.checks import check_problems, identities
    from dppo.data.datasets import load_problems
    from dppo.data.guard import guarded
    from dppo.data.rewards import (
        accuracy_reward,
        check_reward_columns,
        check_rewards,
        format_reward,
        overlong_penalty,
        required_columns,
    )
    from dppo.data.verifier import REASONS, RULES, Verdict, Verifier, verify

_HOME = {
    "checks": ("check_problems", "identities"),
    "datasets": ("load_problems",),
    "guard": ("guarded",),
    "rewards": (
        "accuracy_reward",
        "check_reward_columns",
        "check_rewards",
        "format_reward",
        "overlong_penalty",
        "required_columns",
    ),
    "catalogue": ("BENCHMARKS", "SETS", "Benchmark"),
    "verifier": ("REASONS", "RULES", "Verdict", "Verifier", "verify"),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _HOME.items() for name in names}

__all__ = [
    "BENCHMARKS",
    "REASONS",
    "RULES",
    "SETS",
    "Benchmark",
    "Verdict",
    "Verifier",
    "accuracy_reward",
    "check_problems",
    "check_reward_columns",
    "check_rewards",
    "format_reward",
    "guarded",
    "identities",
    "load_problems",
    "overlong_penalty",
    "required_columns",
    "verify",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
