"""A training run: its configuration, its parts, and its folder with one writer and one reader.

``folder`` and ``reader`` need neither torch nor TRL, so the records of a run can be read on any machine.
"""
