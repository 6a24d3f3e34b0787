"""Trainers on rows of a dataset, without rollouts: supervised training and preferences."""
