"""From a tidy text to a value: what kind of thing an answer is."""

import re
from collections.abc import Callable
from fractions import Fraction

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable, cut, outer_brackets, readable
from answer_judge.grading.canonical import canonical
from answer_judge.grading.changes import RENAMED
from answer_judge.grading.formula import name_of, parse, symbol_name
from answer_judge.grading.numbers import THOUSANDS, WITH_DECIMALS, joined_groups, read_number
from answer_judge.grading.patterns import pattern, rewritings, rewritten
from answer_judge.grading.text import tidy
from answer_judge.grading.units import split_unit
from answer_judge.grading.words import NUMBER_WORDS, POINT, answer_alone, is_spelt, words_of

_SEPARATOR = pattern(
    r"[,;]\s*(?:and\b|or\b)?|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])",
    {"1, and 2": ", and", "x=1 or x=2": "or", "1;2": ";"},
)
_RELATION = pattern(r"\\(?:le|ge|ne|in|approx)(?![A-Za-z])|[<>=]", {r"x\le 2": r"\le", "x=2": "="})
_SET_SIGN = pattern(r"\\(?:cup|cap|setminus)(?![A-Za-z])", {r"A\cup B": r"\cup"})
_COMMA = pattern(r",|;", {"1, 2": ","})
_WORDS = pattern(r"(?<!_)(?<!_\{)\\text\{ ?[A-Za-z]{2}[^{}]*\}", {r"x_{\text{max}}+\text{all}": r"\text{all}"})
_PLUS_MINUS = pattern(r"\\[pm][pm](?![A-Za-z])", {r"1\pm2": r"\pm", r"1\mp2": r"\mp"})
_UPPER = rewritings((r"\\pm(?![A-Za-z])", "+", r"1\pm2", "1+2"), (r"\\mp(?![A-Za-z])", "-", r"1\mp2", "1-2"))
_LOWER = rewritings((r"\\pm(?![A-Za-z])", "-", r"1\pm2", "1-2"), (r"\\mp(?![A-Za-z])", "+", r"1\mp2", "1+2"))
_DIRECTION = {"<": 1, r"\le": 1, ">": -1, r"\ge": -1, r"\ne": 0, "=": 2, r"\in": 3, r"\approx": 2}
_PAIRS = {("(", ")"), ("[", "]"), ("{", "}")}
_MATRIX = pattern(
    r"(?P<kind>(?:[pbB]|small)?matrix|array)\}(?P<body>.*)\\end\{(?P=kind)\}\s*[)\]]?",
    (r"pmatrix}1&2\end{pmatrix}", r"array}{c}1\end{array})"),
    re.DOTALL,
)
_NO_FACTOR = pattern(r"[&()\[\]=,]", {"x=": "="})
_COLUMNS = pattern(r"^\s*\{[^{}]*\}", {"{cc}1&2": "{cc}"})
_ROW_END = pattern(r"\\\\(?:\[[^\]]{0,20}\])?|\\cr(?![A-Za-z])", {r"1\\[2pt]2": r"\\[2pt]", r"1\cr 2": r"\cr"})
_REFUSED = pattern(
    r"\\begin\{[a-z]?cases\*?\}|\binteger\b|\\in ?\\?(?:mathbb ?\{ ?)?Z(?![A-Za-z])"
    r"|^(?:\\text\{ ?)?\((?:1|a|i)\)[^,;]*[,;] ?(?:and )?(?:\\text\{ ?)?\((?:2|b|ii)\)",
    {
        r"f(x)=\begin{cases} x": r"\begin{cases}",
        r"k\pi, k \in \mathbb{Z}": r"\in \mathbb{Z",
        "k an integer": "integer",
        "(1) 3; (2) 5": "(1) 3; (2)",
    },
)
"""Functions in pieces, letters that stand for every whole number, answers to parts: compared as text alone."""
_BASED = pattern(
    r"\(?(?:\\text\{)?(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)\}?\)?\s*_(?:\s*\{)?(?:\s*\\text\{)?\s*([0-9]{1,2}|[a-z]+)\s*\}?\}?",
    ("63_8", r"(1A)_{\text{sixteen}}", r"\text{1A}_{16}"),
)
_ZEROS = pattern(r"^(-?)0+(?=[0-9A-Z])", {"-0012": "-00"})
_BASES = {word: base for word, base in NUMBER_WORDS.items() if 2 <= base <= 10 or base in (12, 16)}
MOST_ITEMS = 64


def read(text: str, *, several: bool | None = None, labels: bool = False) -> v.Value:
    r"""The value a text stands for; ``several``: a list, as of ``70,110``; ``labels``: words behind one are units."""
    written = answer_alone(tidy(text))
    if kind := _REFUSED.search(written):
        raise Unreadable(kind[0])
    return _Reader(several, labels).value(written)


def _based(text: str) -> v.Value | None:
    """The digits and the base of ``63_8``, a number if the base is ten; None where it has no base."""
    found = _BASED.fullmatch(text)
    if not found:
        return None
    base = _BASES.get(found[2].lower()) or (int(found[2]) if found[2].isdigit() else 0)
    digits = _ZEROS.sub(r"\1", found[1])
    if base == 10:
        return read_number(digits)
    fits = 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits.replace("-", "").replace(".", ""))
    return v.Based(digits, base) if fits else None


class _Reader:
    """Tries kind after kind, from the outside in."""

    def __init__(self, several: bool | None, labels: bool) -> None:
        self.several, self.labels, self.depth = several, labels, 0

    def value(self, text: str) -> v.Value:
        self.depth += 1
        if not text or self.depth > 12:
            raise Unreadable("nothing there" if not text else "too deep")
        for kind, _ in _KINDS:
            found = kind(self, text)
            if found is not None:
                self.depth -= 1
                return found
        raise Unreadable(text[:80])

    def text(self, text: str) -> v.Value | None:
        """Words; plain short ones may also be a product of letters."""
        words = words_of(text)
        if words is None:
            return None
        if words.words in NUMBER_WORDS:
            return v.Either((words, v.Number(Fraction(NUMBER_WORDS[words.words]))))
        if text.isalpha() and len(text) <= (6 if text.isupper() else 3):
            return v.Either((words, self.expression(text)))
        return words

    def thousands(self, text: str) -> v.Value | None:
        """A number with commas, which may also be a list; not with a unit behind it, or where a list is known."""
        if not THOUSANDS.fullmatch(text) or self.several is True:
            found = split_unit(text, self.labels) if "," in text else None
            number = read_number(found[0]) if found and WITH_DECIMALS.fullmatch(found[0]) else None
            return v.Quantity(number, found[1]) if found and number else None
        number = read_number(text)
        if self.several is False or number is None:
            return number
        return v.Either((number, v.Items("", tuple(self.value(part) for part in text.split(",")))))

    def listing(self, text: str) -> v.Value | None:
        r"""Several values, also those of one ``\pm``."""
        pieces, separators = cut(joined_groups(text), _SEPARATOR)
        if len(pieces) == 1:
            return self.two_signs(text)
        several, self.several = self.several, None  # what is known of the list is not known of its items
        joiner = next((word for word in ("and", "or") if separators[-1].endswith(word)), ",")
        listed = v.Items("", self.items(pieces, flat=True), joiner)
        self.several = several
        return listed

    def items(self, pieces: list[str], flat: bool) -> tuple[v.Value, ...]:
        """The value of each piece; ``flat`` puts the items of a list among them in its place."""
        if len(pieces) > MOST_ITEMS or not all(pieces):
            raise Unreadable("an item is missing" if len(pieces) <= MOST_ITEMS else "too many items")
        items: list[v.Value] = []
        for piece in pieces:
            item = self.value(piece)
            items += item.items if flat and isinstance(item, v.Items) and not item.brackets else (item,)
        return tuple(items)

    def two_signs(self, text: str) -> v.Value | None:
        signs = len(_PLUS_MINUS.findall(text))
        one_in_a_point = signs == 1 and text.startswith("(")
        bracketed = text.startswith((r"\{", "(", "[")) and outer_brackets(text)
        if not signs or (bracketed and not one_in_a_point):
            return None
        return v.Items("", (self.value(rewritten(text, _UPPER)), self.value(rewritten(text, _LOWER))))

    def relation(self, text: str) -> v.Value | None:
        """A name and its value, an equation or an inequality."""
        sides, signs = cut(text, _RELATION)
        if len(sides) == 1:
            return None
        if not sides[0] and signs[0] in ("=", r"\approx") and len(sides) == 2:
            return self.value(sides[1])
        if not all(sides):
            raise Unreadable("a side is missing")
        if signs == [r"\in"]:
            found = self.value(sides[1])
            if name_of(sides[0]) is None or r"\text" in sides[0] or not isinstance(found, v.SETS):
                raise Unreadable(f"{sides[0][:60]} is no name, or {sides[1][:60]} no set")
            return found
        if set(signs) <= {"=", r"\approx"}:
            return self._equal(sides)
        if {"=", r"\in", r"\approx"} & set(signs) or len({_DIRECTION[sign] for sign in signs}) > 1:
            raise Unreadable("mixed relations")
        return v.Inequality(tuple(map(self.side, sides)), tuple(signs))

    def side(self, text: str) -> v.Value:
        """A side of a relation, in which a letter is no option."""
        found = self.value(text)
        formulas = [part for part in v.readings(found) if isinstance(part, v.Formula)]
        has_words = any(isinstance(part, v.Text) for part in v.readings(found))
        return formulas[0] if formulas and has_words and not is_spelt(v.readings(found)) else found

    def _equal(self, sides: list[str]) -> v.Value:
        name = name_of(sides[0])
        if name is None and len(sides) == 2 and r"\text" not in sides[1] and name_of(sides[1]) is not None:
            sides, name = sides[::-1], name_of(sides[1])
        if RENAMED.match(sides[0]):
            raise Unreadable(f"{sides[0][:60]!r} before an equals sign")
        members = tuple(map(self.side, sides[1:]))
        if name is None:
            return v.Equation((self.side(sides[0]), *members))
        return v.Named(name[0], name[1], members, readable(self.expression, sides[0]))

    def union(self, text: str) -> v.Value | None:
        parts, signs = cut(text, _SET_SIGN)
        return v.Region(tuple(map(self.value, parts)), tuple(signs)) if signs else None

    def quantity(self, text: str) -> v.Value | None:
        found = split_unit(text, self.labels)
        if not found:
            return None
        value = self.value(found[0])
        if isinstance(value, v.SETS) and not (isinstance(value, v.Items) and value.items):
            raise Unreadable("a unit of no number")
        return v.Quantity(value, found[1])

    def bracketed(self, text: str) -> v.Value | None:
        """What stands in brackets: a tuple, an interval, a set, a point with its name, or just a value."""
        text = POINT.sub("(", text, count=1)
        kind = outer_brackets(text)
        if kind is None:
            return None
        inner = text[len(kind[0]) : -len(kind[1])].strip()
        pieces, _ = cut(joined_groups(inner), _COMMA)
        if kind[0] == r"\{" and not inner:
            return v.Items("{}", ())
        if len(pieces) == 1 and pieces[0] and kind[0] != r"\{":
            return self.value(pieces[0]) if kind in _PAIRS else None
        is_set = "{" in kind[0]
        return v.Items("{}" if is_set else kind[0] + kind[1], self.items(pieces, flat=is_set))

    def matrix(self, text: str) -> v.Value | None:
        """Rows and columns; what stands before them multiplies every cell."""
        before, begins, rest = text.partition(r"\begin{")
        found = _MATRIX.fullmatch(rest) if begins else None
        factor = before.rstrip().removesuffix("(").removesuffix("[").strip().removesuffix(r"\cdot").strip()
        if not found or _NO_FACTOR.search(factor):
            return None
        kind = found["kind"]
        times = "(-1)" if factor == "-" else f"({factor})"
        read = (lambda cell: self.expression(f"{times}({cell})")) if factor else self.value
        rows = _ROW_END.split(_COLUMNS.sub("", found["body"]) if kind == "array" else found["body"])
        cells = tuple(tuple(read(cell.strip()) for cell in row.split("&")) for row in rows if row.strip(" \\hline"))
        if not cells or len({len(row) for row in cells}) > 1:
            raise Unreadable("rows of different lengths")
        return v.Matrix(cells)

    def number(self, text: str) -> v.Value | None:
        return None if self.several and "," in joined_groups(text) else read_number(text)

    def expression(self, text: str) -> v.Expression:
        latex, decimal = canonical(text)
        return v.Expression(latex, parse(latex), decimal, frozenset(map(symbol_name, _WORDS.findall(text))))


_KINDS: tuple[tuple[Callable[[_Reader, str], v.Value | None], str], ...] = (
    # Before a number and a list: "70,110" may be either.
    (_Reader.thousands, "70,110"),
    (_Reader.number, "1,234.5"),  # before a list, of 1 and 234.5
    (_Reader.text, "the East"),  # before a list: of words
    # From here on from the outside in: a list of equations, an equation of sets, a union of intervals.
    (_Reader.listing, "x=1, y=2"),
    (_Reader.relation, r"A=(1,2)\cup(3,4)"),
    (_Reader.union, r"(1,2)\cup(3,4)"),
    (_Reader.matrix, r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (_Reader.bracketed, "(1,2)"),
    (lambda _, text: _based(text), "63_8"),  # before a formula, in which it would be a subscript
    (_Reader.quantity, r"5\text{ cm}"),
    (_Reader.expression, "x+1"),
)
"""The kinds of answers in the order in which they are tried, each with a text that it is the first to take."""
