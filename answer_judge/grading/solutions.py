r"""A worked solution as what a policy learns to write: without calculator notes, its answer in a box."""

import re

from answer_judge.grading.answers import last_boxed
from answer_judge.grading.patterns import pattern

_CALCULATOR_NOTE = pattern(r"<<[^<>\n]*=[^<>\n]*>>", {"48/2 = <<48/2=24>>24 clips": "<<48/2=24>>"})
_ANSWER_LINE = pattern(r"\n?^[ \t]*####[^\n]*\s*\Z", {"so 24.\n#### 24": "\n#### 24"}, re.MULTILINE)


def worked_solution(solution: str, answer: str) -> str:
    r"""A solution as a completion: without calculator notes such as ``<<48/2=24>>``, the answer in ``\boxed{...}``.

    A last line such as ``#### 24`` becomes ``\boxed{24}``; a solution without a box at all gets one as a last line.
    """
    text = _ANSWER_LINE.sub("", _CALCULATOR_NOTE.sub("", solution)).strip()
    return text if last_boxed(text) is not None else f"{text}\n\\boxed{{{answer}}}".lstrip()
