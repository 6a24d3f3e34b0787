"""Cost of a run, and savings of pruning, before it starts: ``dppo plan``."""
