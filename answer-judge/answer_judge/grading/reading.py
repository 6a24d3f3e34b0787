"""From a tidy text to a value: what kind of thing an answer is."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from sympy import E, I, Symbol, nan, oo, zoo

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable, cut, outer_brackets, readable
from answer_judge.grading.canonical import canonical
from answer_judge.grading.cases import read_cases
from answer_judge.grading.changes import renames
from answer_judge.grading.families import declared
from answer_judge.grading.formula import name_of, parse, symbol_name
from answer_judge.grading.notation import as_tuples, choices, read_based, usual, with_hats
from answer_judge.grading.numbers import THOUSANDS, WITH_DECIMALS, joined_groups, read_number
from answer_judge.grading.parts import is_spelt
from answer_judge.grading.patterns import pattern, rewritings, rewritten
from answer_judge.grading.text import tidy
from answer_judge.grading.units import POUND, compound, split_unit
from answer_judge.grading.words import ASKED, NUMBER_WORDS, POINT, answer_alone, labelled, unlabelled, words_of

_SEPARATOR = pattern(
    r"[,;]\s*(?:and\b|or\b)?|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])",
    {"1, and 2": ", and", "x=1 or x=2": "or", "1;2": ";"},
)
_RELATION = pattern(r"\\(?:le|ge|ne|in|approx)(?![A-Za-z])|[<>=]", {r"x\le 2": r"\le", "x=2": "="})
_SET_SIGN = pattern(r"\\(?:cup|cap|setminus)(?![A-Za-z])", {r"A\cup B": r"\cup"})
_COMMA = pattern(r",|;", {"1, 2": ","})
_COLON = pattern(r":", {"4:6:10": ":"})
_HOUR = pattern(r"\d+[^:]*$", ("7 p.m.",))
_CLOCK_OR_RATIO = pattern(r"0*[1-9]\d*:\d+", ("3:20",))
_WORDS = pattern(r"(?<!_)(?<!_\{)\\text\{ ?[A-Za-z]{2}[^{}]*\}", {r"x_{\text{max}}+\text{all}": r"\text{all}"})
_POUNDS = pattern(r"[\d}] ?(?:\\text\{ ?)?pounds?(?: ?\})?$", {r"20\text{ pounds}": r"0\text{ pounds}"})
"""Of weight or of money."""
_PLUS_MINUS = pattern(r"\\[pm][pm](?![A-Za-z])", {r"1\pm2": r"\pm", r"1\mp2": r"\mp"})
_UPPER = rewritings((r"\\pm(?![A-Za-z])", "+", r"1\pm2", "1+2"), (r"\\mp(?![A-Za-z])", "-", r"1\mp2", "1-2"))
_LOWER = rewritings((r"\\pm(?![A-Za-z])", "-", r"1\pm2", "1-2"), (r"\\mp(?![A-Za-z])", "+", r"1\mp2", "1+2"))
_DIRECTION = {"<": 1, r"\le": 1, ">": -1, r"\ge": -1, r"\ne": 0, "=": 2, r"\in": 3, r"\approx": 2}
_PAIRS = {("(", ")"), ("[", "]"), ("{", "}")}
_SET_BUILDER = pattern(
    r"\\\{\s*(?:[a-zA-Z]|\\(?!pi|in)[a-z]+)(?: ?_ ?(?:\{ ?\w+ ?\}|\w))?\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\||:)"
    r"\s*((?:[^{}|]|\{ ?\w+ ?\})*)\\\}",
    (r"\{\theta: \theta<4\}", r"\{x_1: x_1>3\}", r"\{x \in \mathbb{R} | x > 3\}", r"\{x: x > 3\}"),
)
_MATRIX = pattern(
    r"(?P<kind>(?:[pbvBV]|small)?matrix|array)\}(?P<body>.*)\\end\{(?P=kind)\}\s*[)\]]?",
    (r"pmatrix}1&2\end{pmatrix}", r"array}{c}1\end{array})"),
    re.DOTALL,
)
_NO_FACTOR = pattern(r"[&()\[\]=,]", {"x=": "="})
_COLUMNS = pattern(r"^\s*\{[^{}]*\}", {"{cc}1&2": "{cc}"})
_ROW_END = pattern(r"\\\\(?:\[[^\]]{0,20}\])?|\\cr(?![A-Za-z])", {r"1\\[2pt]2": r"\\[2pt]", r"1\cr 2": r"\cr"})
_DETERMINANTS = ("vmatrix", "Vmatrix")
_MIXED = pattern(r"(\d+) ?and( (?:\d+/\d+|\\frac\{\d+\}\{\d+\}))", ("3 and 1/2",))
_NO_SET = v.Items("{}", ())
_NO_SOLUTION = pattern(
    r"(?:there (?:are |exists? )?|(?:(?:this |given )?(?:equation|system|inequality) )?has )?"
    r"no (?:real )?solutions?(?: exists?)?",
    ("no real solutions", "there no solution", "equation has no solution", "has no solution", "no solution exists"),
)
_NAMED_SETS: dict[str, v.Value] = {
    **dict.fromkeys(("all real numbers", "all reals", "real numbers", "reals", "any real number"), v.Everything()),
    "empty set": _NO_SET,
}
_ABOVE_ZERO = v.Items("()", (v.Number(Fraction(0)), v.Expression(r"\infty ", oo)))
_SETS: dict[str, v.Value] = {
    **{rf"\mathbb{{R}}{sign}": _ABOVE_ZERO for sign in ("^+", "^{+}", "_+", "_{+}", "_{>0}", "_{> 0}")},
    **dict.fromkeys((r"\mathbb{R}", r"\mathbf{R}"), v.Everything()),
    r"\emptyset": _NO_SET,
}
MOST_ITEMS = 64


def read(text: str, *, several: bool | None = None, labels: bool = False) -> v.Value:
    r"""The value a text stands for; ``several``: a list, as of ``70,110``; ``labels``: words behind one are units."""
    reader = _Reader(several, labels)
    hats = with_hats(text)
    if hats is None:
        return reader.whole(answer_alone(tidy(text)))
    plain = readable(lambda written: reader.whole(answer_alone(tidy(written))), text)
    vectors = readable(lambda written: _Reader(several, labels).whole(answer_alone(tidy(written))), hats)
    found = (*(v.readings(plain) if plain else ()), *(as_tuples(vectors) if vectors else ()))
    if not found:
        raise Unreadable(text[:80])
    return v.Either(found)


def with_letters(sides: tuple[v.Value, ...]) -> tuple[v.Value, ...]:
    """The sides of an inequality; e or i is a letter in one that has no other: numbers alone would say nothing."""
    formulas = [side for side in sides if isinstance(side, v.Expression)]
    constants = {part for side in formulas for part in side.tree.atoms(E, I)} & {E, I}
    if len(constants) != 1 or any(side.tree.free_symbols for side in formulas):
        return sides
    letter = {constant: Symbol({E: "e", I: "i"}[constant]) for constant in constants}
    return tuple(
        replace(side, latex=f"{side.latex} ", tree=side.tree.xreplace(letter)) if side in formulas else side
        for side in sides
    )


class _Reader:
    """Tries kind after kind, from the outside in."""

    def __init__(self, several: bool | None, labels: bool) -> None:
        self.several, self.labels, self.depth = several, labels, 0

    def whole(self, text: str) -> v.Value:
        """The value of a whole answer, whose letter may stand for every whole number."""
        text = usual(text)
        if binomial := choices(text):
            return v.Either((self.value(text), self.expression(binomial)))
        found = declared(text)
        return v.Family(self.value(found[0]), found[1]) if found else self.value(text)

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
        known = _NO_SET if _NO_SOLUTION.fullmatch(words.words) else _NAMED_SETS.get(words.words)
        if known is not None:
            return known
        if words.words == "infinity":
            return self.expression(r"\infty")
        if words.words in NUMBER_WORDS:
            return v.Either((words, v.Number(Fraction(NUMBER_WORDS[words.words]))))
        if _HOUR.match(text) and ":" in words.words and (hour := self.quantity(text)):
            return v.Either((words, hour))
        if _CLOCK_OR_RATIO.fullmatch(text) or (text.isalpha() and len(text) <= (6 if text.isupper() else 3)):
            return v.Either((words, self.ratio(text) or self.expression(text)))
        return words

    def labelled(self, text: str) -> v.Value | None:
        """An answer after the letter of an option: ``(D) 14`` is D, and 14, and a product."""
        found = labelled(text)
        if found is None:
            return None
        letter, behind = found
        values = (readable(self.value, behind), readable(self.expression, text))
        return v.Either((v.Text(f"({letter})".lower(), letter), *filter(None, values)))

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
        if parts := unlabelled(pieces):
            return v.Items("ab", self.items(parts, flat=False))
        several, self.several = self.several, None  # what is known of the list is not known of its items
        joiner = next((word for word in ("and", "or") if separators[-1].endswith(word)), ",")
        listed = v.Items("", self.items(pieces, flat=True), joiner)
        self.several = several
        mixed = read_number(found[1] + found[2]) if (found := _MIXED.fullmatch(text)) else None
        return v.Either((mixed, listed)) if mixed else listed

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
        return v.Inequality(with_letters(tuple(map(self.side, sides))), tuple(signs))

    def side(self, text: str) -> v.Value:
        """A side of a relation, in which a letter is no option, and the ratio of two numbers their quotient."""
        found = v.quotient(self.value(text))
        formulas = [part for part in map(v.quotient, v.readings(found)) if isinstance(part, v.Formula)]
        has_words = any(isinstance(part, v.Text) for part in v.readings(found))
        return formulas[0] if formulas and has_words and not is_spelt(v.readings(found)) else found

    def _equal(self, sides: list[str]) -> v.Value:
        name = name_of(sides[0])
        if name is None and len(sides) == 2 and r"\text" not in sides[1] and name_of(sides[1]) is not None:
            sides, name = sides[::-1], name_of(sides[1])
        if renames(sides[0]):
            raise Unreadable(f"{sides[0][:60]!r} before an equals sign")
        members = tuple(map(self.side, sides[1:]))
        if name is None:
            try:
                return v.Equation((self.side(sides[0]), *members))
            except Unreadable:
                if not ASKED.match(sides[0]):
                    raise
                return v.Named(sides[0], "", members)
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
        if _POUNDS.search(text):
            return v.Either((v.Quantity(value, found[1]), v.Quantity(value, POUND)))
        return v.Quantity(value, found[1])

    def set_builder(self, text: str) -> v.Value | None:
        r"""``\{x \mid x > 3\}`` is its condition."""
        found = _SET_BUILDER.fullmatch(text)
        return self.value(found[1].strip()) if found else None

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

    def ratio(self, text: str) -> v.Value | None:
        """``4:6:10``, as what its parts are beside the first."""
        parts, _ = cut(text, _COLON)
        if len(parts) < 2 or len(parts) > MOST_ITEMS or not all(parts):
            return None
        shares = tuple(self.expression(f"({part})/({parts[0]})") for part in parts)
        if any(share.tree.has(zoo, nan) for share in shares):
            raise Unreadable("a ratio to nothing")
        return v.Items(":", shares)

    def matrix(self, text: str) -> v.Value | None:
        """Rows and columns; what stands before them multiplies every cell."""
        before, begins, rest = text.partition(r"\begin{")
        found = _MATRIX.fullmatch(rest) if begins else None
        factor = before.rstrip().removesuffix("(").removesuffix("[").strip().removesuffix(r"\cdot").strip()
        if not found or _NO_FACTOR.search(factor):
            return None
        kind = found["kind"]
        if factor and kind in _DETERMINANTS:
            raise Unreadable("a multiple of a determinant")
        times = "(-1)" if factor == "-" else f"({factor})"
        read = (lambda cell: self.expression(f"{times}({cell})")) if factor else self.value
        rows = _ROW_END.split(_COLUMNS.sub("", found["body"]) if kind == "array" else found["body"])
        cells = tuple(tuple(read(cell.strip()) for cell in row.split("&")) for row in rows if row.strip(" \\hline"))
        if not cells or len({len(row) for row in cells}) > 1:
            raise Unreadable("rows of different lengths")
        return v.Matrix(cells, bars=kind in _DETERMINANTS)

    def number(self, text: str) -> v.Value | None:
        return None if self.several and "," in joined_groups(text) else read_number(text)

    def expression(self, text: str) -> v.Expression:
        latex, decimal = canonical(text)
        return v.Expression(latex, parse(latex), decimal, frozenset(map(symbol_name, _WORDS.findall(text))))


_KINDS: tuple[tuple[Callable[[_Reader, str], v.Value | None], str], ...] = (
    (lambda _, text: _SETS.get(text), r"\mathbb{R}^+"),
    # Before a number and a list: "70,110" may be either.
    (_Reader.thousands, "70,110"),
    (_Reader.number, "1,234.5"),  # before a list, of 1 and 234.5
    (_Reader.labelled, "(B) 5"),  # before words and formulas: it is the option, 5, and a product
    (_Reader.text, "Yes, it is."),  # before a list: of words
    (lambda _, text: compound(text), "1 hour and 30 minutes"),  # before a list: of an hour and of minutes
    # Before a list: rows may end in commas.
    (lambda reader, text: read_cases(text, reader.value), r"\begin{cases} x & x>0 \\ 0 & x \le 0 \end{cases}"),
    # From here on from the outside in: a list of equations, an equation of sets, a union of intervals.
    (_Reader.listing, "x=1, y=2"),
    (_Reader.relation, r"A=(1,2)\cup(3,4)"),
    (_Reader.union, r"(1,2)\cup(3,4)"),
    (_Reader.matrix, r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (_Reader.set_builder, r"\{x: x > 3\}"),  # before brackets, in which it would be a relation
    (_Reader.bracketed, "(1,2)"),
    (_Reader.ratio, "4:6:10"),
    (lambda _, text: read_based(text), "63_8"),  # before a formula, in which it would be a subscript
    (_Reader.quantity, r"5\text{ cm}"),
    (_Reader.expression, "x+1"),
)
"""The kinds of answers in the order in which they are tried, each with a text that it is the first to take."""
