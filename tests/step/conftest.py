"""The tiny policy and the boxes of draws are shared with the tests of methods and of pruning."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "methods"), str(TESTS / "pruning")]
