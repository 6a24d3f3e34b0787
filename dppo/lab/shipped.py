"""Examples and pages that come with the library: beside the packages in a clone, inside this package in a wheel."""

import shutil
from pathlib import Path

from dppo.errors import ConfigError, did_you_mean


def _shipped(name: str) -> Path:
    inside = Path(__file__).with_name(name)
    return inside if inside.is_dir() else Path(__file__).parents[2] / name


EXAMPLES, PAGES = _shipped("examples"), _shipped("docs")
"""Folders of this installation."""
NOT_SHIPPED = {"sample_compare", "first_look", "results"}
"""Parts of a clone's folder that are in no wheel; pyproject.toml leaves them out."""


def examples() -> dict[str, Path]:
    """The path of each example by its name: a folder with a README, or a file without its ending."""
    paths = (path for path in EXAMPLES.iterdir() if path.is_file() or (path / "README.md").is_file())
    by_kind = sorted(paths, key=lambda path: (path.is_file(), path.name))
    return {path.stem: path for path in by_kind if path.stem not in NOT_SHIPPED}


def described(path: Path) -> str:
    """The first line of an example's README, docstring or comment."""
    if path.suffix == ".jsonl":
        return "A file of problems for dppo eval."
    page = path / "README.md" if path.is_dir() else path
    return page.read_text(encoding="utf-8").splitlines()[0].strip('#" ')


def write_example(name: str, folder: Path) -> list[Path]:
    """Copy an example into ``folder/examples``, and return its files there; equal files stay.

    Raises:
        ConfigError: an unknown example, or a file there has another content. Nothing is written then.
    """
    found = examples()
    if name not in found:
        raise ConfigError(f"there is no example {name!r}. {did_you_mean(name, found)}List them: dppo example")
    path = found[name]
    sources = [each for each in sorted(path.rglob("*")) if each.is_file()] if path.is_dir() else [path]
    pairs = {folder / "examples" / each.relative_to(EXAMPLES): each for each in sources if each.suffix != ".pyc"}
    for to, source in pairs.items():
        if to.exists() and to.read_bytes() != source.read_bytes():
            raise ConfigError(f"{to} differs from the example. Write it elsewhere: cd NEW; dppo example {name}")
    for to, source in pairs.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
    return list(pairs)


def offered(example: str) -> str:
    """A path such as ``examples/embedded.yaml`` with the command that writes it, for an error."""
    return f"{example} (dppo example {Path(example).parts[1].partition('.')[0]} writes it)"
