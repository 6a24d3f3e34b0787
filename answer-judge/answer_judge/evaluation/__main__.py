"""``python -m answer_judge.evaluation``: see ``command``."""

import sys

from answer_judge.errors import JudgeError
from answer_judge.evaluation.command import main

try:
    code = main(sys.argv[1:])
except JudgeError as error:
    print(error, file=sys.stderr)
    code = 2
sys.exit(code)
