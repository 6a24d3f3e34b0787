"""The ``dppo`` command."""

INTERRUPTED = 130
"""Exit code of a command that was stopped by Ctrl-C, as shells have it."""
NOT_READ = 141
"""Exit code of a command whose output nobody read to its end, as shells have it."""
