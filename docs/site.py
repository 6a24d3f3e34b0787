"""What the site makes of the pages: the README is its first, the notebook and a report are among them.

Links to files that are no pages become their names. mkdocs calls these functions by their names (``hooks`` in
mkdocs.yml): ``make docs``, which writes the report first.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
NOTEBOOK, REPORT = ROOT / "examples" / "first_look.ipynb", ROOT / "build" / "sample_report.html"
PAGE = re.compile(r"\]\((?:docs/([\w/]+\.(?:md|png))|examples/(first_look)\.ipynb)")
BADGE = re.compile(r"^!\[[^\]]*\]\(https?://[^)]*\)\n", re.MULTILINE)
ELSEWHERE = re.compile(r"\[([^\]]*)\]\((?!https?:|#)((?:\.\./)?[\w./-]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page, the notebook as another, and the report beside them."""
    if not REPORT.is_file():
        raise PluginError(f"{REPORT.relative_to(ROOT)} is missing. `make docs` writes it before it builds the site.")
    readme = BADGE.sub("", (ROOT / "README.md").read_text())  # they come from another host
    home = PAGE.sub(lambda found: f"]({found[1] or found[2] + '.md'}", readme)
    page, pictures = notebook_page(json.loads(NOTEBOOK.read_text()))
    files.append(File.generated(config, "index.md", content=home))
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
    """Leave links to pages as they are; of others, such as to code, the text stays. The report becomes a link."""
    here = Path(page.file.src_uri).parent

    def kept(found: re.Match[str]) -> str:
        words, target = found.groups()
        return found[0] if files.get_file_from_path((here / target).as_posix()) else words

    return ELSEWHERE.sub(kept, markdown).replace(f"`site/{REPORT.name}`", f"[{REPORT.name}]({REPORT.name})")
