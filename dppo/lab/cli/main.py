"""The ``dppo`` command: a table of subcommands, each a module that is imported when it is called."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from dppo import __version__
from dppo.errors import did_you_mean
from dppo.install import install_line
from dppo.lab.cli import INTERRUPTED
from dppo.lab.commit import commit
from dppo.lab.judge import EXPLAINED

COMMANDS = {
    "compare": "methods side by side from one start, TRL's trainer among them: dppo compare CONFIG.yaml --seeds 5",
    "demo": "TRL's trainer, a control and DPPO for equal seconds on a task without a download",
    "docs": "the pages of this version: dppo docs [PAGE]",
    "eval": "accuracy on mathematics benchmarks: dppo eval MODEL --benchmarks math500,aime24",
    "example": "a configuration to begin with, written into examples/: dppo example [NAME]",
    "plan": "what a run will cost and what pruning can save, before it starts: dppo plan CONFIG.yaml",
    "report": "one page about a run or a comparison: dppo report RUN_OR_COMPARISON [--output FILE.html]",
    "train": "train a model: dppo train CONFIG.yaml [--any_field value]",
    "verify": "check that pruning leaves the expected gradient unchanged, on your model and data",
}
EXTRAS = {"eval": "eval", "report": "report"}
"""Extras of pyproject.toml that commands need; all others need ``trl``."""


def usage() -> str:
    """The text of ``dppo --help``."""
    lines = "\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())
    return f"usage: dppo COMMAND [ARGUMENTS]\n\n{lines}\n\nEach command has its own --help. Version {__version__}."


@contextmanager
def short_warnings() -> Iterator[None]:
    """A context in which a warning is one line without code, and those of libraries about each other are left out."""
    whole = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        warnings.formatwarning = whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand, by default the one on the command line, and return its exit code.

    0 is success, 1 a failed check, 2 bad input, 130 a stop by Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"dppo {__version__}, commit {commit() or 'unknown'}")
        return 0
    if words[0] not in COMMANDS:
        meant = did_you_mean(words[0], COMMANDS)
        print(f"dppo: unknown command {words[0]!r}. {meant}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        with short_warnings():
            return import_module(f"dppo.lab.cli.{words[0]}").main(words[1:])
    except KeyboardInterrupt:
        print(f"dppo {words[0]}: stopped", file=sys.stderr)
        return INTERRUPTED
    except EXPLAINED as error:
        print(f"dppo {words[0]}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None:  # transformers raises it for an installed package that does not load
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            print(f"dppo {words[0]}: {error}{cause}. An installed package is broken: pip check", file=sys.stderr)
            return 2
        if error.name.startswith("dppo"):
            raise
        line = install_line(EXTRAS.get(words[0], "trl"))
        print(f"dppo {words[0]} needs {error.name}, which is not installed: {line}", file=sys.stderr)
        return 2
    except ImportError as error:  # a library's own words about a package that a field asks for
        if error.name is not None:
            raise
        print(f"dppo {words[0]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
