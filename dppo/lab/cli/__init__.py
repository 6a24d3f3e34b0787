"""The ``dppo`` command."""

INTERRUPTED = 130
"""Exit code of a shell for a command that was stopped by Ctrl-C."""
NOT_READ = 141
"""Exit code of a shell for a command whose output was not read to its end."""
