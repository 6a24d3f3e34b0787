"""The final answer in a text, and comparisons without mathematics: functions of strings, linear in the text."""

import re
from collections import deque

from answer_judge.grading.patterns import pattern

_TOKEN = pattern(
    r"\\(?:boxed|fbox)\s*(?:(?P<open>\{)|(?P<bare>[-+]?\d(?:[\d.,/]*\d)?))|\\.|[{}]",
    {r"is \boxed {4}": r"\boxed {", r"is \boxed 42$": r"\boxed 42", r"a\{": r"\{", "x}": "}"},
    re.DOTALL,
)
_MARKED = pattern(r"^[ \t]*####[ \t]*(\S[^\n]*)$", {"so\n#### 72\n": "#### 72"}, re.MULTILINE)
_THOUSANDS_COMMA = pattern(r"(?<=\d),(?=\d{3}\b)", {"1,072": ","})
_PHRASE = pattern(
    r"\b(?:answer|answers(?= are\b)|correct (?:option|choice))(?: to (?:the|this) (?:problem|question))?"
    r"(?:[ \t]+(?:is|are|(?:should|must|will) be)\b"
    r"(?:[ \t]+(?:therefore|thus|hence|then|simply|just|indeed|clearly)\b)?[ \t]*:?|[ \t*]*:|[ \t]*=)[\s*]*"
    r"|<answer>\s*|答案[ \t*]{0,9}(?:是|为|為|[:：])[\s*:：]*|^[#* \t]{0,20}(?:final )?answer[ \t*]{0,20}$[\s*]*",
    {
        "The answer is therefore 5": "answer is therefore ",
        "**Answer**: (C)": "Answer**: ",
        "ANSWER = 12": "ANSWER = ",
        "the correct choice is B": "correct choice is ",
        "答案：12": "答案：",
        "<answer> 4": "<answer> ",
        "so\n## Final answer\n72": "## Final answer\n",
    },
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = pattern(r"\A[*\s]*[A-Za-z]{3}", {"**Final Answer**": "**Fin"})
_SENTENCE_END = pattern(
    r"\n|。|(?<!\.)\.(?=\s|$|<)|(?<=\.\.\.)(?=\s|$)|</|<\|",
    {"3.5. So": ".", "12。所以": "。", "0.333... So": "", "4</s>": "</", "4<|im_end|>": "<|", "4\nso": "\n"},
)
_ITEM = r"[ \t]{0,9}(?:[-•*][ \t]{1,9})?"
_BULLET = pattern(r"^[-•*][ \t]{1,9}", {"- A": "- "})
_BULLET_ALONE = pattern(r"[•*][ \t]{1,9}|-[ \t]{1,9}(?=\$|\\\(|[A-Za-z])", {"- $5$": "- ", "• 5": "• ", "- A": "- "})
_MARK = r"(?:\([A-Ja-j]\)|[A-J][.:)])"
_LINES = pattern(
    rf"(?:{_ITEM}(?:{_MARK}|[A-J]|[-+]?\d[\d.,/]{{0,20}})[ \t*.,;]{{0,9}}(?:\n\s*|\Z)){{2,}}",
    ("(A)\n(B)\n", "3\n4\n5", "- A\n- B"),
)
"""Answers alone on separate lines."""
_MARKED_LINES = pattern(rf"(?:{_ITEM}{_MARK}[^\n]{{0,200}}(?:\n\s*|\Z)){{2,}}", ("(A) 3\n(B) 4\n",))
"""Options with their texts on separate lines."""
_LONGEST_SENTENCE = 4000
_FORMULA = r"(?:\$\$[^$]*\$\$|\$[^$\n]*\$|\\\((?:[^\\]|\\[^)])*\\\)|\\\[(?:[^\\]|\\[^\]])*\\\])"
_FORMULAS = pattern(
    rf"\A{_FORMULA}(?:[ \t]*(?:,(?:[ \t]*(?:and|or))?|and|or)[ \t]*{_FORMULA})*",
    {"$3$ and $4$, which": "$3$ and $4$", r"\(x\) so": r"\(x\)"},
)
_WORDS_FOLLOW = pattern(
    r"(?<![ \t])[ \t]*(?!because\b|since\b|so\b|as\b|which\b|by\b|where\b)[A-Za-z%\\0-9]",
    {" cm long": " c", r"\%": "\\"},
)
_REASON = pattern(
    r"(?:,\s*|(?<!\s)\s+)(?:because|since|as|so|which|by|given|hence|therefore|thus)\s",
    {"5, since 2 + 3 = 5": ", since ", "5 because it is": " because "},
)
_GAP = r"\s|\$|\\[()\[\] ,;]|\\q?quad"
_AND = r"[,;]|and|or|\\text\{\s*,?\s*(?:and|or)\s*\}"
_BESIDE = pattern(
    rf"(?:{_GAP})*(?:{_AND})(?:{_GAP}|{_AND})*(?:[A-Za-z](?:_\{{?\w+\}}?)?(?:{_GAP})*=(?:{_GAP})*)?",
    {"$, and $": "$, and $", "$ or $x = ": "$ or $x = ", r" \text{ or } ": r" \text{ or } "},
)
"""Between boxes that are offered side by side."""
_LONGEST_JOINT = 100
_MOST_BOXES = 32
_VISIBLE = pattern(r"\s*\S", ("  x",))
_INTEGER = pattern(r"[-+]?[0-9]{1,40}", ("-007",))


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete, non-empty ``\boxed{...}`` (or ``\fbox``), or None; the text may be cut off.

    Of nested boxes the inner one counts; a box without braces counts where a number follows, as in ``\boxed 42``.
    """
    boxes = _boxes(text)
    return text[slice(*boxes[-1][2:])].strip() if boxes else None


_Box = tuple[int, int, int, int]
"""Where a box starts and ends, and where its content does: contents of nested boxes together would be quadratic."""


def _boxes(text: str) -> list[_Box]:
    """The boxes that are complete and not empty, in the order of their starts."""
    boxes: list[_Box] = []
    opened: list[tuple[int, int, bool]] = []
    for token in _TOKEN.finditer(text):
        if token["bare"]:
            boxes.append((token.start(), token.end(), *token.span("bare")))
        elif token["open"] or token[0] == "{":
            opened.append((token.start(), token.end(), token["open"] is not None))
        elif token[0] == "}" and opened:
            outside, inside, is_box = opened.pop()
            if is_box and _VISIBLE.match(text, inside, token.start()):
                boxes.append((outside, token.end(), inside, token.start()))
    return sorted(boxes)


def joined_boxes(text: str) -> str | None:
    """The last box and those joined to it by commas, "and" or "or", as one list; None where it stands alone."""
    contents = _run_of_boxes(text)
    return ", ".join(contents) if len(contents) > 1 else None


def boxes_beside(text: str) -> tuple[str, ...]:
    """The boxes that commas, "and" or "or" put beside the final answer."""
    said = text.rpartition("</think>")[2]
    return tuple(_run_of_boxes(said if _final(said) else text)[:-1])


def _run_of_boxes(text: str) -> list[str]:
    """The contents of the last box and of those before it, as far as what stands between joins them."""
    if text.count(r"\boxed") + text.count(r"\fbox") < 2:
        return []
    contents: list[str] = []
    left = len(text)
    for start, end, *inside in reversed(_boxes(text)):
        if end > left:
            continue  # around it
        too_far = end + _LONGEST_JOINT < left or len(contents) == _MOST_BOXES
        if contents and (too_far or not _BESIDE.fullmatch(text, end, left)):
            break
        contents.append(text[slice(*inside)].strip())
        left = start
    return contents[::-1]


def after_hashes(text: str) -> str | None:
    """What follows the last ``####`` at the start of a line, without thousands commas, or None: GSM8K's form."""
    found = _MARKED.findall(text)
    return _THOUSANDS_COMMA.sub("", found[-1].strip()) if found else None


def final_answer(text: str) -> str | None:
    r"""The answer a completion commits to, or None: of what follows the last ``</think>``, else of the whole text."""
    _, thought, said = text.rpartition("</think>")
    return _final(said) or (_final(text) if thought else None)


def _final(text: str) -> str | None:
    r"""The answer one text commits to, or None: the last box, else what follows ``####``, else a phrase.

    "The answer is 3. No: \boxed{4}" is 4, and a solution in steps (``#### Step 1``) names its answer in a sentence.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return _trimmed(boxed)
    marked = deque(_MARKED.finditer(text), maxlen=1)
    if not marked:
        return _phrased(text, 0)
    line = marked[0]
    stated = _phrased(text, line.start()) if _HEADING.match(line[1]) else None
    return stated or _trimmed(_THOUSANDS_COMMA.sub("", line[1].strip()))


def _phrased(text: str, start: int) -> str | None:
    """What the last phrase from ``start`` on states, or None."""
    for phrase in reversed(list(_PHRASE.finditer(text, start))):
        at = phrase.end()
        if "\n" in phrase[0] and (bullet := _BULLET_ALONE.match(text, at)):
            at = bullet.end()
        if text.startswith(("```", "~~~"), at):
            return None  # a block of code: what an earlier phrase states is no longer the answer
        answer = _trimmed(_listed(text, phrase) or _stated(text, at))
        if answer:
            return answer
    return None


def _listed(text: str, phrase: re.Match[str]) -> str | None:
    """Several answers on separate lines after a phrase, as one list; None where there is at most one."""
    rest = text[phrase.end() : phrase.end() + _LONGEST_SENTENCE]
    found = _LINES.match(rest) or (_MARKED_LINES.match(rest) if "\n" in phrase[0] else None)
    lines = (_BULLET.sub("", line.strip()).rstrip(" *.,;") for line in found[0].split("\n")) if found else ()
    return ", ".join(line for line in lines if line) or None


def _stated(text: str, start: int) -> str:
    """What a sentence states from ``start`` on: formulas to their delimiters, words up to a reason or the full stop."""
    rest = text[start : start + _LONGEST_SENTENCE]
    formula = _FORMULAS.match(rest)
    if formula and not _WORDS_FOLLOW.match(rest, formula.end()):
        return formula[0]
    end = _SENTENCE_END.search(rest)
    return _REASON.split(rest[: end.start()] if end else rest, maxsplit=1)[0]


def _trimmed(answer: str) -> str | None:
    """The answer without surrounding space, emphasis, math delimiters and final full stop; None if nothing is left."""
    answer = answer.strip().strip("*`").rstrip()
    bare = answer.rstrip(". ")
    return without_delimiters(answer if bare and answer.endswith("...") else bare) or None


def without_delimiters(text: str) -> str:
    """A formula, without space around it, without the math delimiters around all of it."""
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
            inner = text[len(left) : -len(right)]
            if left not in inner:
                text = inner.strip()
    return text


def plain_match(answer: str, gold: str) -> bool | None:
    """True or False if equal texts or two plain integers decide whether an answer is the gold answer; else None."""
    gold = _trimmed(gold) or gold
    if answer == gold:
        return True
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    return None
