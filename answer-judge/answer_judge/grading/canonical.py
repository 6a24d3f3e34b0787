r"""LaTeX that can be read in one way only.

The library's grammar reads ``2(3)`` as a mixed number (5), ``\sin 3t/5`` as a sine of a fifth, ``I^2`` as I and
``\frac{dx}{dt}`` as a derivative that is 0, and cannot read ``E_1``. So every factor, function argument and name is
written out here first: products with ``\cdot``, arguments in brackets, numbers and names as ``\variable{...}``,
decimals as exact fractions. What is not in the lists of ``formula`` is unreadable.
"""

from collections.abc import Collection

from answer_judge.grading.brackets import DEEPEST, Unreadable
from answer_judge.grading.formula import DERIVATIVE, LETTERS, symbol_name, tokens
from answer_judge.grading.numbers import read_number
from answer_judge.grading.patterns import pattern
from answer_judge.grading.text import FUNCTIONS, TRIGONOMETRIC

_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ENDS_OF_RUN = (")", "]", "}", "|", r"\rfloor", r"\rceil")
"""What ends the argument of a function without brackets."""
_PLAIN_NUMBER = pattern(r"\\variable\{(\d+)\}", {r"2\cdot \variable{12}": r"\variable{12}"})
_LETTER = pattern(r"\(?\\variable\{[A-Za-z]\w*\}\)?", (r"\variable{x}", r"(\variable{a})"))
_NAME = pattern(r"e|\\variable\{\w+\}", {r"(\variable{xSUB1})": r"\variable{xSUB1}"})
_FRACTION_AHEAD = pattern(r"\A(?:\\frac\{\d+\}\{\d+\}|\d+/\d+)", {r"\frac{1}{2}x": r"\frac{1}{2}", "1/2": "1/2"})
_ACCENT = pattern(r"\A\\([a-z]+)(?:\s*\{)?\s*(\\?[A-Za-z]+)", {r"\bar{x}": r"\bar{x", r"\vec\alpha": r"\vec\alpha"})


_MARKS = {"overline": "bar", "overrightarrow": "vec", "widehat": "hat", "widetilde": "tilde"}


def canonical(text: str) -> tuple[str, bool]:
    """The text rewritten for the library's parser, and whether it has a decimal."""
    writer = _Writer(tokens(text))
    written = writer.sequence(())
    return written, writer.decimal


def _integer(value: int) -> str:
    """An integer as a name."""
    return rf"\variable{{{value}}}" if value >= 0 else rf"(-\variable{{{-value}}})"


class _Writer:
    """Writes a list of tokens anew, from left to right."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at, self.depth, self.decimal = tokens, 0, 0, False

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def token(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> str:
        """The next token, passed over."""
        if self.kind == "end":
            raise Unreadable("ends too early")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def ahead(self, count: int) -> str:
        """The next tokens, which are left."""
        return "".join(token for _, token in self.tokens[self.at : self.at + count])

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise Unreadable(f"{token} expected")

    def enclosed(self, close: str) -> str:
        """Everything up to a closing token, which is passed over too."""
        inner = self.sequence((close,))
        self.expect(close)
        return inner

    def sequence(self, until: Collection[str], run: bool = False) -> str:
        """Everything up to a closing token, which is left; a ``run`` also ends where a product does."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("too deep")
        parts: list[str] = []
        open_end = True  # nothing yet, or an operator: a factor must follow
        while self.kind != "end" and self.token not in until and not (run and self._ends_run(parts)):
            if self.token in ("+", "-"):
                parts.append(self.take())
                open_end = True
            elif self.token in ("/", r"\cdot"):
                if open_end:
                    raise Unreadable("operator without a factor")
                parts.append(self.take() + " ")
                open_end = True
            elif not open_end and self._after_factor(parts):
                continue
            else:
                factor = self._factor()
                if not open_end:
                    if _PLAIN_NUMBER.fullmatch(parts[-1]) and _PLAIN_NUMBER.fullmatch(factor):
                        raise Unreadable("two numbers side by side")
                    has_power = self.token in ("!", "^") and self.ahead(2) != r"^\circ"
                    if _PLAIN_NUMBER.fullmatch(factor) and _LETTER.fullmatch(parts[-1]) and not has_power:
                        raise Unreadable("a number behind a letter")  # N2O, (a) 3 (b) 5, 3h20
                    parts.append(r"\cdot ")
                parts.append(factor)
                open_end = False
        if open_end:
            raise Unreadable("a factor is missing")
        self.depth -= 1
        return "".join(parts)

    def _ends_run(self, parts: list[str]) -> bool:
        """True if the argument of a function without brackets ends here."""
        if self.token in ("+", "-"):
            return bool(parts)
        if parts and (self.token in ("(", "[") or (self.token == "e" and self.tokens[self.at + 1][1] == "^")):
            return True  # \sin x (1+x) and \cos x e^{-t} are products
        return self.token in ("/", r"\cdot", ",", "|") or self.token[1:] in FUNCTIONS

    def _after_factor(self, parts: list[str]) -> bool:
        """Take what belongs to the factor before: a power or a factorial."""
        sign = self.token
        if sign not in ("^", "!"):
            return False
        self.take()
        if sign == "^" and self.token == r"\circ":
            self.take()
            parts[-1] = rf"({parts[-1]}\cdot \frac{{\pi}}{{{_integer(180)}}})"
        elif sign == "^":
            parts[-1] = f"{_grouped(parts[-1])}^{{{self._script()}}}"
        elif self.token == "!":
            raise Unreadable("a double factorial")
        else:
            parts[-1] = f"{_grouped(parts[-1])}!"
        return True

    def _factor(self, mixed: bool = True) -> str:
        """One factor; ``mixed``: refuse a number before a fraction."""
        kind, token = self.kind, self.token
        if kind == "number":
            return self._number(mixed)
        if kind in ("letter", "accent", "text") or token[1:] in LETTERS:
            return self._symbol()
        if token in _CLOSING:
            return self._bracketed()
        if kind == "command" and token[1:] in FUNCTIONS:
            return self._function()
        if token == r"\frac":
            return self._fraction()
        if token == r"\sqrt":
            return self._root()
        if token == r"\binom":
            self.take()
            return rf"\binom{{{self._group()}}}{{{self._group()}}}"
        if token in (r"\pi", r"\infty"):
            return self.take() + " "
        raise Unreadable(f"{token} where a factor should be")

    def _number(self, mixed: bool) -> str:
        """A number, exactly."""
        token = self.take()
        number = read_number(token)
        if number is None:
            raise Unreadable(token)
        self.decimal |= number.step is not None
        if mixed and token.isdigit() and (part := _FRACTION_AHEAD.match(self.ahead(7))):
            raise Unreadable(f"{token} {part[0]} may be a mixed number or a product")
        top, bottom = number.value.numerator, number.value.denominator
        return _integer(top) if bottom == 1 else rf"(\frac{{{_integer(top)}}}{{{_integer(bottom)}}})"

    def _symbol(self) -> str:
        """A letter, Greek letter, accent or word, with subscript and primes."""
        accent = _ACCENT.match(self.token) if self.kind == "accent" else None
        base, primes, below = self.take(), 0, ""
        if accent:
            mark = _MARKS.get(accent[1], accent[1])
            base, primes = accent[2], {"dot": 1, "ddot": 2}.get(mark, 0)
            if not primes and mark != "vec":
                base = f"{mark}OF{base}"
        while self.token in ("_", "'"):
            if self.take() == "'":
                primes += 1
            else:
                below += self._raw_script()
        if base in ("e", "i") and not below and not primes:
            return {"e": "e", "i": "I"}[base]
        name = symbol_name(base, below, primes)
        if self.ahead(3) != "(0)":
            return rf"\variable{{{name}}}"
        self.at += 3  # a product with 0 means nothing: the value at 0 of a function
        return rf"\variable{{{name}AT0}}"

    def _raw_script(self) -> str:
        """The tokens of a subscript as they are."""
        if self.token != "{":
            return self.take()
        self.take()
        start, depth = self.at, 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
        return "".join(token for _, token in self.tokens[start : self.at - 1])

    def _script(self) -> str:
        """An exponent."""
        if self.token in ("{", "("):
            return self.enclosed(_CLOSING[self.take()])
        sign = self.take() if self.token in ("-", "+") else ""
        return sign + self._factor(mixed=False)

    def _group(self) -> str:
        """An argument in braces, or one factor."""
        if self.token != "{":
            return self._factor(mixed=False)
        self.take()
        return self.enclosed("}")

    def _bracketed(self) -> str:
        """What stands in brackets of any kind, in round ones; absolute values, floors and ceilings keep theirs."""
        opening = self.take()
        inner = self.enclosed(_CLOSING[opening])
        if opening == "|":
            return f"|{inner}|"
        return f"{opening} {inner}{_CLOSING[opening]} " if opening[0] == "\\" else f"({inner})"

    def _fraction(self) -> str:
        r"""``\frac``; one of differentials is a derivative."""
        found = DERIVATIVE.match(self.ahead(24))
        orders = [(found[part] or "1").strip("{}") for part in "nm"] if found else []
        if found and orders[0] == orders[1]:
            length = 0
            while length < found.end():
                length += len(self.take())
            base, _, below = found["of"].partition("_")
            return rf"\variable{{{symbol_name(base, below, int(orders[0]), found['wrt'])}}}"
        self.take()
        return rf"(\frac{{{self._group()}}}{{{self._group()}}})"

    def _root(self) -> str:
        self.take()
        index = f"[{self.enclosed(_CLOSING[self.take()])}]" if self.token == "[" else ""
        return rf"\sqrt{index}{{{self._group()}}}"

    def _function(self) -> str:
        """A function of one argument, which is what is in brackets or braces, or else the product that follows."""
        name, base, power = self.take()[1:], "", ""
        while self.token in ("_", "^"):
            if self.take() == "_":
                base = self._script()
            else:
                power = self._script()
        if self.token in ("(", "[", "{"):
            argument = self._bracketed()
        elif self.token == "|":
            argument = f"({self._bracketed()})"
        else:
            argument = f"({self.sequence(_ENDS_OF_RUN, run=True)})"
        if base and name != "log":
            raise Unreadable(f"{name} with a base")
        if power == f"-{_integer(1)}" and name in TRIGONOMETRIC:
            name, power = f"arc{name}", ""
        name = rf"log_{{{base}}}" if base else rf"log_{{{_integer(10)}}}" if name in ("lg", "log") else name
        return rf"(\{name}{argument})^{{{power}}}" if power else rf"\{name}{argument}"


def _grouped(part: str) -> str:
    """A factor in brackets, so that a power or factorial takes all of it; the grammar drops a power of a bare I."""
    return part if _NAME.fullmatch(part) else f"({part})"
