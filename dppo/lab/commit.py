"""The commit of the running copy of this library. It imports the standard library only, because builds import it."""

import subprocess
from pathlib import Path

COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"
"""The build of an sdist or a wheel writes it; a clone has none."""


def commit() -> str | None:
    """The commit of this copy by its build or clone, with ``+`` for uncommitted changes; None without either."""
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    folder = COMMIT_FILE.parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    if not (folder.parent / "pyproject.toml").is_file():
        return None  # not a clone: git would answer for a repository around it
    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
