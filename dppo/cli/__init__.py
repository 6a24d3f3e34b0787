"""The ``dppo`` command."""

INTERRUPTED = 130
"""Exit code of a command that was stopped by Ctrl-C, as shells have it."""
