"""What follows a command: a configuration file, then flags."""

from collections.abc import Sequence
from pathlib import Path

from dppo.errors import ConfigError


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration file that the words of a command begin with, None where they have none, and the rest."""
    rest = [*words[1:]] if words[:1] == ["--config"] else [*words]  # TRL's own way to name it
    return (rest[0], rest[1:]) if rest and not rest[0].startswith("-") else (None, rest)


def check_config(path: str | Path, *, example: str = "examples/embedded.yaml") -> None:
    """Return where there is such a configuration; a message names ``example`` as one that works.

    Raises:
        ConfigError: there is none.
    """
    if not Path(path).exists():
        raise ConfigError(f"there is no configuration file {path}. Try {example}")


def check_output(output: Path) -> None:
    """Return where the file of ``--output`` has a folder to go into.

    Raises:
        ConfigError: it has none.
    """
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}. Make it first.")
