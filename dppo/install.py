"""Which copy of this library is running: its commit, and how to install what is missing with a line that works for it.

dppo is on no registry, so a line such as ``pip install 'dppo[trl]'`` finds nothing, or a stranger's package.
"""

import importlib.metadata
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "dppo"
VLLM_OLDEST, VLLM_BEFORE = "0.22", "0.31"
"""TRL 1.16 supports these and 0.31, which asks for an older transformers than this library does. 0.30 was run."""
VLLM_LINE = f"pip install 'vllm>={VLLM_OLDEST},<{VLLM_BEFORE}'"
"""The pip command for vLLM; pip takes the newest of the range, and leaves transformers as it is."""
COMMIT_FILE = Path(__file__).with_name("commit.txt")
"""Written into an sdist and a wheel when they are built; a clone has none."""


def commit() -> str | None:
    """The commit of this copy, with ``+`` for uncommitted changes: as recorded when it was built, else of the clone.

    None where neither is known.
    """
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    if not (folder.parent / "pyproject.toml").is_file():
        return None  # not a clone, though perhaps inside one of something else
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
    words = [f"{NAME}[{extra}] @ {source}"] if source else dict.fromkeys(_packages(extra))
    return f"pip install {shlex.join(words)}"


def _source() -> str:
    """Where pip got this library, as it notes (PEP 610): a repository with its commit, or an archive; empty if not."""
    try:
        text = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    noted: dict[str, Any] = json.loads(text) if text else {}
    repository = noted.get("vcs_info")
    if repository:
        return f"{repository['vcs']}+{noted['url']}@{repository['commit_id']}"
    return str(noted.get("url", ""))


def _packages(extra: str) -> Iterator[str]:
    """What an extra brings along, those of extras within it included."""
    for requirement in importlib.metadata.requires(NAME) or ():
        package, _, condition = (part.strip() for part in requirement.partition(";"))
        if re.fullmatch(rf"extra == ['\"]{extra}['\"]", condition):
            own = re.fullmatch(rf"{NAME}\[(.+)\]", package)
            for inner in own[1].split(",") if own else ():
                yield from _packages(inner)
            if own is None:
                yield package
