"""Checkpoints: written whole, read only if whole, resumed bit for bit."""
