r"""``\begin{cases}``: a function in pieces, each under a condition, or equations that hold together."""

from collections.abc import Callable

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable, cut, readable
from answer_judge.grading.formula import name_of
from answer_judge.grading.patterns import pattern
from answer_judge.grading.regions import as_set, same_sets
from answer_judge.grading.text import TEXT

_CASES = pattern(
    r"(?:(?P<name>[^=&{}]{1,60})= ?)?(?:\\begin\{[dr]?cases\*?\}|\\\{ ?\\begin\{array\} ?\{[lcr| ]*\})(?P<body>.*)"
    r"\\end\{(?:[dr]?cases\*?|array)\}",
    (r"f(x)=\begin{cases} x & x>0 \\ 0 & x \le 0 \end{cases}", r"\{\begin{array}{l} x=1 \\ y=2 \end{array}"),
)
_ROW_END = pattern(r"\\\\(?:\[[^\]]{0,20}\])?", {r"1\\[2pt]2": r"\\[2pt]"})
_IF = pattern(
    r"[,;]? ?(?:\\text\{ ?,? ?(?:if|when|for|where|as)(?P<more>[^{}]*)\}"
    r"|(?<![A-Za-z\\])(?:if|when|for|where)(?![A-Za-z]))",
    {r"x, \text{if } x>0": r", \text{if }", "x if y": " if"},
)
_ELSE = pattern(r"\W*(?:text\W*)?(?:otherwise|else|elsewhere|in all other cases)\W*", (r"\text{otherwise}", "else."))
_COMMA = pattern(r"[,;]", {"x, y": ","})
_SIGNS = pattern(r"[<>=]|\\(?:le|ge|ne|in)(?![A-Za-z])", {r"x\le 2": r"\le"})

Reader = Callable[[str], v.Value]


def read_cases(text: str, read: Reader) -> v.Value | None:
    """The pieces, or the list of equations, that a tidy text is; None where it is neither."""
    found = _CASES.fullmatch(text)
    if not found:
        return None
    rows = [row for row in map(str.strip, _ROW_END.split(found["body"])) if row]
    pieces = [_piece(row) for row in rows]
    name = name_of(found["name"].strip()) if found["name"] else None
    if not rows or (found["name"] and name is None):
        raise Unreadable("cases of nothing")
    if all(condition is None for _, condition in pieces):
        if name:
            raise Unreadable("cases without conditions")
        return v.Items("", tuple(read(value.replace("&", "")) for value, _ in pieces), "and")
    if any(condition is None for _, condition in pieces):
        raise Unreadable("a case without a condition")
    value = v.Pieces(tuple((read(part), _condition(condition or "", read)) for part, condition in pieces))
    return v.Named(name[0], name[1], (value,)) if name else value


def _piece(row: str) -> tuple[str, str | None]:
    """The value of a row and its condition, None where it has none."""
    if found := _IF.search(row):
        value, condition = row[: found.start()], f"{found['more'] or ''} {row[found.end() :]}"
    elif "&" in row and (parts := [part for part in row.split("&") if part.strip()])[1:]:
        value, condition = parts[0], " ".join(parts[1:])
        if _SIGNS.search(value) and not _SIGNS.search(condition) and not _ELSE.fullmatch(condition):
            return row, None
    elif len(parts := cut(row, _COMMA)[0]) > 1 and (_SIGNS.search(parts[1]) or _ELSE.fullmatch(parts[1])):
        value, condition = parts[0], ", ".join(parts[1:])
    else:
        return row.strip(" ,;."), None
    return value.replace("&", "").strip(" ,;."), condition.replace("&", "").strip(" ,;.")


def _condition(text: str, read: Reader) -> v.Value:
    if _ELSE.fullmatch(text):
        return v.Text("otherwise")
    return readable(read, text) or v.Text(" ".join(TEXT.sub(r" \1 ", text).lower().split()))


Condition = v.Value | sympy.Set
Same = Callable[[v.Value, v.Value], bool]


def same_pieces(gold: v.Value, answer: v.Value, same: Same) -> bool:
    """Whether two values are functions with the same pieces under the same conditions, in any order."""
    if not (isinstance(gold, v.Pieces) and isinstance(answer, v.Pieces)):
        return False

    def fits(one: tuple[v.Value, Condition], other: tuple[v.Value, Condition]) -> bool:
        return _same_conditions(one[1], other[1], same) and same(one[0], other[0])

    return v.matched(_resolved(gold), _resolved(answer), fits)


def _resolved(pieces: v.Pieces) -> list[tuple[v.Value, Condition]]:
    """Each condition as a set of real numbers, "otherwise" as what the others leave, where they are such sets."""
    found = [_set(condition) for _, condition in pieces.rows]
    others = [part for part, (_, condition) in zip(found, pieces.rows, strict=True) if condition != v.Text("otherwise")]
    if all(part is not None for part in others) and len(found) - len(others) <= 1:
        rest = sympy.Complement(sympy.S.Reals, sympy.Union(*others))
        return [(value, rest if part is None else part) for (value, _), part in zip(pieces.rows, found, strict=True)]
    return list(pieces.rows)


def _set(condition: v.Value) -> sympy.Set | None:
    if isinstance(condition, v.Named) and len(condition.members) == 1:
        condition = v.Items("{}", condition.members)
    return readable(as_set, condition) if isinstance(condition, (v.Items, v.Inequality, v.Region)) else None


def _same_conditions(one: Condition, other: Condition, same: Same) -> bool:
    if isinstance(one, sympy.Set) or isinstance(other, sympy.Set):
        return isinstance(one, sympy.Set) and isinstance(other, sympy.Set) and same_sets(one, other)
    return same(one, other)
