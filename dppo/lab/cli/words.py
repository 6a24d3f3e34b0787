"""Shared by the commands: reading a configuration, options and fields from words, and a console for tables."""

import argparse
from collections.abc import Mapping, Sequence

from rich.console import Console

from dppo.errors import ConfigError
from dppo.lab.runs.words import check_config, check_output, split_words

PROMPTS = "problems to roll out, with the run's group size and length; default: few, short, for some seconds"
"""Help of an option of ``dppo verify`` and ``dppo compare --frozen``."""


def read_words(
    parser: argparse.ArgumentParser, words: Sequence[str], *, alone: bool = True
) -> tuple[str | None, argparse.Namespace, list[str]]:
    """The configuration, the command's own options, and the fields among the words that follow a command.

    The configuration and the folder of ``--output`` must exist. With ``alone``, fields need a configuration.
    """
    config, rest = split_words(words)
    options, fields = parser.parse_known_args(rest)
    if alone and fields and config is None:
        raise ConfigError(f"{fields[0]} needs a configuration to change: {parser.prog} CONFIG.yaml {' '.join(fields)}")
    if config is not None:
        check_config(config)
    check_output(getattr(options, "output", None))
    return config, options, fields


def listed(text: str | None) -> list[str] | None:
    """Names with commas between them; None for None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(flag: str, text: str, *, example: str) -> tuple[float, ...]:
    """Numbers with commas between them, each once, in their order; an error shows the ``example``."""
    try:
        return tuple(dict.fromkeys(float(word) for word in text.strip(",").split(",")))
    except ValueError as error:
        raise ConfigError(f"--{flag} {text} must be numbers with commas between. Try --{flag} {example}") from error


def print_names(described: Mapping[str, str]) -> None:
    """Print names and descriptions in two columns."""
    width = max(map(len, described))
    print("\n".join(f"{name:{width}}  {text}" for name, text in described.items()))


def wide_console(columns: int) -> Console:
    """A console of at least so many columns: on a narrower screen lines wrap, and no cell is cut off."""
    console = Console(highlight=False)
    console.width = max(console.width, columns)
    return console
