r"""Finding the final answer in a text, and the comparisons that need no mathematics: pure functions of strings.

Nothing here (or behind it) evaluates a model's text as code. Every function takes time linear in the text.
"""

import re

_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*(?:(?P<open>\{)|(?P<bare>[-+]?\d[\d.,/]*))|\\.|[{}]", re.DOTALL)
_MARKED = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)$", re.MULTILINE)
_PHRASE = re.compile(r"\banswer(?:[ \t]+is\b[ \t]*:?|[ \t]*:)[\s*]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete, non-empty ``\boxed{...}`` (or ``\fbox``), or None when there is none.

    Braces are matched, ``\{`` and ``\}`` are not braces, of nested boxes the inner one counts, and a box without
    braces counts when a number follows, as in ``\boxed 42``.

    Args:
        text: any text, complete or cut off anywhere.
    """
    boxes: dict[int, str] = {}
    opened: list[tuple[int, bool]] = []
    for token in _TOKEN.finditer(text):
        if token["bare"]:
            boxes[token.start()] = token["bare"]
        elif token["open"] or token[0] == "{":
            opened.append((token.end(), token["open"] is not None))
        elif token[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box:
                boxes[start] = text[start : token.start()]
    filled = [start for start, content in boxes.items() if content.strip()]
    return boxes[max(filled)].strip() if filled else None


def after_hashes(text: str) -> str | None:
    """What follows the last ``####`` at the start of a line, without thousands commas, or None: GSM8K's form."""
    found = _MARKED.findall(text)
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", found[-1].strip()) if found else None


def final_answer(text: str) -> str | None:
    r"""The answer a completion commits to, or None when it names none.

    The last ``\boxed{...}`` wins; without a box, what follows the last ``####``; without that, the rest of the
    sentence after the last "answer is" or "answer:". A number that merely stands somewhere is not an answer.

    Args:
        text: a completion.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return _trimmed(boxed)
    marked = after_hashes(text)
    if marked is not None:
        return _trimmed(marked)
    for phrase in reversed(list(_PHRASE.finditer(text))):
        end = _SENTENCE_END.search(text, phrase.end())
        answer = _trimmed(text[phrase.end() : end.start() if end else len(text)])
        if answer:
            return answer
    return None


def _trimmed(answer: str) -> str | None:
    """The answer without surrounding space, emphasis, math delimiters and final full stop; None if nothing is left."""
    answer = answer.strip().strip("*").rstrip(". ").strip()
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if answer.startswith(left) and answer.endswith(right) and len(answer) > len(left) + len(right):
            inner = answer[len(left) : -len(right)]
            if left not in inner:
                answer = inner.strip()
    return answer or None


def plain_match(answer: str, gold: str) -> bool | None:
    """Whether two answers agree where that needs no mathematics: True or False, or None when it does.

    Equal texts agree; two plain integers agree when their values do. Everything else is None: an integer with
    separators (``1,234``) may as well be a list.

    Args:
        answer: what ``final_answer`` found.
        gold: the reference answer.
    """
    gold = _trimmed(gold) or gold
    if answer == gold:
        return True
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    return None
