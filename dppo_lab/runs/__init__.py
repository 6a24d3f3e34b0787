"""A training run: its configuration, and its folder with one writer and one reader.

``folder`` and ``reader`` need neither torch nor TRL, so that what was run elsewhere can be read anywhere.
"""
