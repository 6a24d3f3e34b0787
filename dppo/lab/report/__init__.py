"""One self-contained page about runs and comparisons: tables, figures, completions, settings."""

from dppo.lab.report.page import Written, write_accuracy, write_report

__all__ = ["Written", "write_accuracy", "write_report"]
