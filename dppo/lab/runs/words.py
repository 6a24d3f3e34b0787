"""The words after a command: a configuration file, then flags; neither torch nor TRL is imported to check them."""

from collections.abc import Sequence
from pathlib import Path

from dppo.errors import ConfigError
from dppo.lab.shipped import offered


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration file at the beginning of the words, None where there is none, and the other words."""
    rest = [*words[1:]] if words[:1] == ["--config"] else [*words]  # as TRL names it
    return (rest[0], rest[1:]) if rest and not rest[0].startswith("-") else (None, rest)


def check_config(path: str | Path, *, example: str = "examples/embedded.yaml") -> None:
    """Raise a ``ConfigError`` where there is no such file; it names ``example`` as one that works."""
    if not Path(path).exists():
        raise ConfigError(f"there is no configuration file {path}. Try {offered(example)}")


def check_output(output: Path | None) -> None:
    """Raise a ``ConfigError`` where ``--output`` is a folder, or in one that does not exist."""
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}. Make it first.")
    if output is not None and output.is_dir():
        raise ConfigError(f"--output {output} is a folder. Name a file in it: --output {output / 'results.json'}")
