"""What a build does besides copying: the commit that it is made from becomes ``dppo/commit.txt``."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # pyright: ignore[reportMissingImports]


class Commit(BuildHookInterface):
    """Called by hatchling, which finds it in this file (``[tool.hatch.build.hooks.custom]``)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, unless the build is editable or from an sdist, which has it."""
        sys.path.insert(0, self.root)
        from dppo.lab.commit import COMMIT_FILE, commit

        found = commit()
        if version == "editable" or COMMIT_FILE.is_file() or found is None:
            return
        written = Path(tempfile.mkdtemp()) / COMMIT_FILE.name
        written.write_text(f"{found}\n", encoding="utf-8")
        build_data["force_include"][str(written)] = f"dppo/{COMMIT_FILE.name}"
