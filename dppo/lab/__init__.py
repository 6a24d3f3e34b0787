"""Runs, comparisons, plans and reports: what measures ``dppo`` and shows it. The command ``dppo`` lives here."""
