"""Pip commands that work for the running copy of this library.

dppo is on no registry: ``pip install 'dppo[trl]'`` would fail, or install a stranger's package.
"""

import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "dppo"
VLLM_OLDEST, VLLM_BEFORE = "0.22", "0.31"
"""TRL 1.16 supports these and 0.31, which needs an older transformers than this library. 0.30 was tested."""
VLLM_LINE = f"pip install 'vllm>={VLLM_OLDEST},<{VLLM_BEFORE}'"
"""The pip command for vLLM: the newest of the range, with transformers unchanged."""


def install_line(extra: str) -> str:
    """The pip command for an extra of pyproject.toml: from the clone, from where pip got it, or by its packages."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    source = source_of_copy()
    return f"pip install {shlex.join([f'{NAME}[{extra}] @ {source}'] if source else dict.fromkeys(_packages(extra)))}"


def source_of_copy() -> str:
    """Source of pip's installation (PEP 610): a repository with its commit, or an archive; else ""."""
    noted: dict[str, Any] = {}
    with suppress(importlib.metadata.PackageNotFoundError):
        noted = json.loads(importlib.metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    if repository := noted.get("vcs_info"):
        return f"{repository['vcs']}+{noted['url']}@{repository['commit_id']}"
    return str(noted.get("url", ""))


def _packages(extra: str) -> Iterator[str]:
    """Packages of an extra, with those of the extras in it."""
    for requirement in importlib.metadata.requires(NAME) or ():
        package, _, condition = (part.strip() for part in requirement.partition(";"))
        if re.fullmatch(rf"extra == ['\"]{extra}['\"]", condition):
            if own := re.fullmatch(rf"{NAME}\[(.+)\]", package):
                for inner in own[1].split(","):
                    yield from _packages(inner)
            else:
                yield package
