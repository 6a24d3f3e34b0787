"""One self-contained page about a run or a comparison: tables, figures, settings."""

from dppo.lab.report.page import Written, write_accuracy, write_report

__all__ = ["Written", "write_accuracy", "write_report"]
