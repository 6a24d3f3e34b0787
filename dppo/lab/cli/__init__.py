"""The ``dppo`` command."""

INTERRUPTED = 130
"""Exit code of a shell for a command that was stopped by Ctrl-C."""
