"""The pages of the site: the README first, those of the judge, the notebook and a report among them.

Links to files that are no pages become their names. mkdocs calls these functions by their names (``hooks`` in
mkdocs.yml): ``make docs``, which writes the report first.
"""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
NOTEBOOK, REPORT = ROOT / "examples" / "first_look.ipynb", ROOT / "build" / "sample_report.html"
JUDGE = ROOT / "answer-judge"
PLACES = {"docs": "", "answer-judge/docs": "judge/"}
"""Folders of pages in the repository, and on the site."""
NAMES = {
    "README.md": "index.md",
    "answer-judge/README.md": "judge/index.md",
    "examples/first_look.ipynb": "first_look.md",
}
BADGE = re.compile(r"^!\[[^\]]*\]\(https?://[^)]*\)\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page, the notebook as another, and the report beside them."""
    if not REPORT.is_file():
        raise PluginError(f"{REPORT.relative_to(ROOT)} is missing. `make docs` writes it before it builds the site.")
    readme = BADGE.sub("", (ROOT / "README.md").read_text())  # they come from another host
    files.append(File.generated(config, "index.md", content=readme))
    files.append(File.generated(config, "judge/index.md", content=(JUDGE / "README.md").read_text()))
    for path in sorted((JUDGE / "docs").rglob("*.md")):
        name = f"judge/{path.relative_to(JUDGE / 'docs').as_posix()}"
        files.append(File.generated(config, name, content=path.read_text()))
    page, pictures = notebook_page(json.loads(NOTEBOOK.read_text()))
    files.append(File.generated(config, "first_look.md", content=page))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    files.append(File.generated(config, REPORT.name, abs_src_path=str(REPORT)))
    return files


def notebook_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """A notebook's cells and stored outputs as Markdown, and its pictures by the names that the page has for them."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif picture := output.get("data", {}).get("image/png"):
                name = f"first_look_{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(picture))
                parts.append(f"![what the cell above draws]({name})")
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to the pages of the site; of others, such as to code, the text stays. The report becomes a link."""
    here = page.file.src_uri
    source = ROOT / in_repository(here)

    def kept(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        place = (source.parent / target).resolve()
        there = site_page(place.relative_to(ROOT).as_posix()) if place.is_relative_to(ROOT) else ""
        if not there or files.get_file_from_path(there) is None:
            return found[0] if files.get_file_from_path(target) else words  # a picture of the notebook
        return f"[{words}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor or ''})"

    return LINK.sub(kept, markdown).replace(f"`site/{REPORT.name}`", f"[{REPORT.name}]({REPORT.name})")


def in_repository(uri: str) -> str:
    """The file that a page of the site is made from."""
    known = {there: path for path, there in NAMES.items()}
    folder = "answer-judge/docs" if uri.startswith("judge/") else "docs"
    return known.get(uri, f"{folder}/{uri.removeprefix('judge/')}")


def site_page(path: str) -> str:
    """The page of the site that is made from a file of the repository, or the file's own place."""
    if path in NAMES:
        return NAMES[path]
    folder = next((each for each in reversed(PLACES) if path.startswith(f"{each}/")), None)
    return "" if folder is None else PLACES[folder] + path.removeprefix(f"{folder}/")
