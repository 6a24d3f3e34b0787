"""Threads for small models, and versions of installed engines."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from dppo.errors import ConfigError
from dppo.install import VLLM_BEFORE, VLLM_LINE, VLLM_OLDEST

SMALL = 5_000_000
"""Parameters up to which a model is fastest on one thread and cheap to copy."""


@contextmanager
def one_thread(model: torch.nn.Module | None = None) -> Iterator[None]:
    """One torch thread while active, if ``model`` has at most ``SMALL`` parameters: more would lose time by waiting."""
    before = torch.get_num_threads()
    if model is None or sum(parameter.numel() for parameter in model.parameters()) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_version(package: str, installed: str, *, oldest: str, before: str, changed: Callable[[], list[str]]) -> None:
    """Raise ``ConfigError`` for a version of an engine before the tested range, or after it with changed methods.

    ``package`` is its name for pip, with extras. A development build or a candidate counts as the release that it leads
    to. ``changed`` gives the names of overridden methods that are not as they were tested.
    """
    from packaging.version import Version  # comes with every engine, and not with torch alone

    number, name = Version(Version(installed).base_version), package.partition("[")[0]
    if Version(oldest) <= number < Version(before):
        return
    tested, advice = f"{oldest} <= {name} < {before}", f"Install one: pip install '{package}>={oldest},<{before}'"
    if number < Version(oldest):
        checked = f"the overridden methods were checked on {tested} only"
        raise ConfigError(f"{name} {installed} is not supported: {checked}. {advice}")
    newer = f"{name} {installed} is newer than the tested {tested}"
    if others := changed():
        some = ", ".join(others[:4]) + " and others" * (len(others) > 4)
        raise ConfigError(f"{newer}, and methods that are overridden have changed: {some}. {advice}")
    warnings.warn(f"{newer}. It is used, since the methods that are overridden are the same.", stacklevel=3)


def check_vllm() -> None:
    """Raise ``ConfigError`` if vLLM is missing or of an unsupported version; errors name the setting ``use_vllm``."""
    from packaging.version import Version  # comes with transformers, which torch alone does without

    advice = f"{VLLM_LINE}, or use_vllm: false"
    try:
        installed = import_module("vllm").__version__
    except ImportError as error:
        raise ConfigError(f"use_vllm: true: vLLM is not installed ({error}): {advice}") from error
    known = installed[:1].isdigit()  # builds from a checkout may have no number
    if known and not Version(VLLM_OLDEST) <= Version(Version(installed).base_version) < Version(VLLM_BEFORE):
        raise ConfigError(f"use_vllm: true: vLLM {installed} is not supported. {advice}")
