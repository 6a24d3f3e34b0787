"""What a run will cost, and what pruning can save, before it starts: ``dppo plan``."""
