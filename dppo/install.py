"""The running copy of this library: its commit, and pip commands that work for it.

dppo is on no registry: ``pip install 'dppo[trl]'`` would fail, or install a stranger's package.
"""

import importlib.metadata
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "dppo"
VLLM_OLDEST, VLLM_BEFORE = "0.22", "0.31"
"""TRL 1.16 supports these and 0.31, which needs an older transformers than this library. 0.30 was tested."""
VLLM_LINE = f"pip install 'vllm>={VLLM_OLDEST},<{VLLM_BEFORE}'"
"""The pip command for vLLM: the newest of the range, with transformers unchanged."""
COMMIT_FILE = Path(__file__).with_name("commit.txt")
"""The build of an sdist or a wheel writes it; a clone has none."""


def commit() -> str | None:
    """The commit of this copy by its build or clone, with ``+`` for uncommitted changes; None without either."""
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    if not (folder.parent / "pyproject.toml").is_file():
        return None  # not a clone: git would answer for a repository around it
    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def install_line(extra: str) -> str:
    """The pip command for an extra of pyproject.toml: from the clone, from where pip got it, or by its packages."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    source = _source()
    return f"pip install {shlex.join([f'{NAME}[{extra}] @ {source}'] if source else dict.fromkeys(_packages(extra)))}"


def judge_line() -> str:
    """The pip command for answer-judge, a distribution in the same repository, from where this copy is."""
    folder, source = Path(__file__).parents[1] / "answer-judge", _source()
    if (folder / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{folder}[eval]')}"
    if "+" in source:
        return f"pip install {shlex.quote(f'answer-judge[eval] @ {source}#subdirectory=answer-judge')}"
    return "pip install './answer-judge[eval]' in a clone of dppo's repository"


def _source() -> str:
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
