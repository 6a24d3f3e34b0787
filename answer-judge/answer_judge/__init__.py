"""Answers judged right or wrong: a verifier for mathematics, programs and checks of your own.

Knows nothing of training, and needs torch only to generate answers.
"""

__version__ = "0.3.0"
