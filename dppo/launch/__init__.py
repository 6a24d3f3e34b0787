"""A training run from a configuration: its arguments, its parts, and the check that touches nothing."""
