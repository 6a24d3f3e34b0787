"""The example is on the path as it is for its own scripts: ``from dgpo import ...``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "diffusion"))
