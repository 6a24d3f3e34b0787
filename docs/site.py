"""What the site makes of the pages: the README is its first, and links to files that are no pages become their names.

mkdocs calls these by their names (``hooks`` in mkdocs.yml): ``make docs``.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

README = Path(__file__).parents[1] / "README.md"
PAGE = re.compile(r"\]\(docs/([\w/]+\.(?:md|png))")
ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?!https?:|#)((?:\.\./)?[\w./-]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page."""
    files.append(File.generated(config, "index.md", content=PAGE.sub(r"](\1", README.read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leave links to pages as they are; of others, such as to code, the text stays."""
    here = Path(page.file.src_uri).parent

    def kept(found: re.Match[str]) -> str:
        words, target = found.groups()
        return found[0] if files.get_file_from_path((here / target).as_posix()) else words

    return ELSEWHERE.sub(kept, markdown)
