"""Answers as text: one way of writing each thing. Linear in the text."""

import re
import unicodedata

from answer_judge.grading.brackets import BRACE, DEEPEST, Unreadable
from answer_judge.grading.patterns import pattern, rewritings, rewritten

_CHARACTERS = {
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("∙⋅·∗×✕", r"\cdot "),
    **dict.fromkeys("’′‘ʹ", "'"),
    **dict.fromkeys("“”«»", '"'),
    "″": "''", "÷": "/", "∕": "/", "⁄": "/", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ",
    "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ",
    "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": r"^\circ ", "º": r"^\circ ", "∠": r"\angle ",
    "△": r"\triangle ", "ℏ": r"\hbar ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "⟨": "(", "⟩": ")", "π": r"\pi ", "¢": r"\text{cents}", "％": r"\%",
    "…": "...",
}  # fmt: skip
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho - sigma tau upsilon phi chi psi omega"  # noqa: E501
_CHARACTERS |= {chr(0x3B1 + i): rf"\{name} " for i, name in enumerate(_GREEK.split()) if name not in "-pi"}
_CHARACTERS |= {
    chr(0x391 + i): rf"\{name.capitalize()} " for i, name in enumerate(_GREEK.split()) if name in
    ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
}  # fmt: skip
_CHARACTERS |= {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) != "％"}
_TRANSLATION = str.maketrans(_CHARACTERS)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋"
_RAISED_SIGNS, _LOWERED_SIGNS = str.maketrans(_RAISED, "0123456789+-ni"), str.maketrans(_LOWERED, "0123456789+-")
_VULGAR = {c: unicodedata.normalize("NFKD", c).split("\u2044") for c in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_VULGAR_SIGNS = f"[{''.join(_VULGAR)}]"
_ONE_VULGAR = pattern(rf"(?<!{_VULGAR_SIGNS}){_VULGAR_SIGNS}(?!{_VULGAR_SIGNS})", {"3½": "½"})

TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))
FUNCTIONS = TRIGONOMETRIC | {
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg", "exp",
}  # fmt: skip
"""Functions of one argument."""
TYPED = FUNCTIONS | {"sqrt"}
"""Functions that are read when typed without a backslash."""
_WORD = pattern(
    rf"(?<![\\A-Za-z])(?:({'|'.join(sorted(TYPED, key=len, reverse=True))})(?=[\s\d(\\{{^_])"
    r"|(pi|theta|alpha|beta|lambda|sigma|omega)(?![A-Za-z])|(infinity|inf|oo)(?![A-Za-z]))",
    {"2sin(x)": "sin", r"3pi": "pi", "(0, oo)": "oo"},
)

# In this order. First layout, which may stand anywhere: separators of thousands before the spaces they are made of;
# then spellings: every fraction as \frac before fractions without braces and of words; dots before periods.
_LAYOUT = rewritings(
    (r"(?<![A-Za-z\\])d([A-Za-z])/d([a-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}", "dy/dx=1", r"\frac{dy}{dx}=1"),
    (r"(?<=R) ?\\ ?(?=\{)|(?<=R\}) ?\\ ?(?=\\?\{)", r"\\setminus ", r"R \ {1}", r"R\setminus {1}"),
    (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*(?:\.(?!\d))?", "", r"\left( x \right.", "( x "),
    (r"(?<!\\)\\[()\[\]]", " ", r"\(x\)", " x "),
    (r"(?<=\d)(?:,\s*\\!| ?\{ ?, ?\}|\\,|\\ |,\\,)\s*(?=\d{3}(?!\d))", "", r"1,\!250\,000", "1250000"),
    (r"(?<!\\)\\!", "", r"5\!x", "5x"),
    (r"(?<!\\)\\[,:;> ]|(?<!\\)~", " ", r"(1,\ 2)", "(1, 2)"),
    (r"\\(?:q?quad|enspace|thinspace|hfill|noindent|limits|mathstrut|rm|bf|it)(?![A-Za-z])", " ", r"5\quad x", "5  x"),
    (r"\\(?:display|text|script)style(?![A-Za-z])", " ", r"\displaystyle x", "  x"),
    (r"\\(?:begin|end)\s*\{(?:aligned|align\*?|equation\*?|gathered|split)\}", " ", r"\begin{align*}x", " x"),
    (r"\\[hv]space\s*\{[^{}]*\}|\\[hv]?phantom\s*(?:\{[^{}]*\}|\S)", " ", r"5\hspace{1cm}x", "5 x"),
    (r"\\(?:[dtc]|nice|s)frac(?![A-Za-z])", r"\\frac", r"\dfrac{1}{2}", r"\frac{1}{2}"),
    (r"\\[dt]binom(?![A-Za-z])", r"\\binom", r"\tbinom{5}{2}", r"\binom{5}{2}"),
    (r"\\(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}", r"\frac12", r"\frac{1}{2}"),
    (r"\\(frac|binom)\s*(\d)\s*\{", r"\\\1{\2}{", r"\frac1{19}", r"\frac{1}{19}"),
    (r"\\sqrt\s*(\d+)", r"\\sqrt{\1}", r"\sqrt2x", r"\sqrt{2}x"),
    (r"\\leq?(?:slant)?(?![A-Za-z])|<=|=<", r"\\le ", r"x\leqslant2", r"x\le 2"),
    (r"\\geq?(?:slant)?(?![A-Za-z])|>=", r"\\ge ", "x>=2", r"x\ge 2"),
    (r"\\neq?(?![A-Za-z])|!=", r"\\ne ", r"x\neq2", r"x\ne 2"),
)
_SPELT = {
    "lt": "<", "gt": ">", "div": "/", "colon": ":", "equiv": "=", "simeq": r"\approx ", "cong": r"\approx ",
    "doteq": r"\approx ", **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"), "lbrace": r"\{", "rbrace": r"\}",
    "langle": "(", "rangle": ")", "varnothing": r"\emptyset ", "O": r"\emptyset ", "backslash": r"\setminus ",
    **{f"var{name}": rf"\{name} " for name in ("epsilon", "phi", "theta", "rho", "sigma", "pi")},
    **dict.fromkeys(("dots", "ldots", "cdots"), "..."),
}  # fmt: skip
"""Commands that are another way of writing something, and nothing else."""
_SPELLINGS = rewritings(
    (r"\\(?:times|ast|bullet)(?![A-Za-z])|\*(?!\*)(?<!\*\*)", r"\\cdot ", r"2\times3*4", r"2\cdot 3\cdot 4"),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ ", r"5^{\circ}", r"5^\circ "),
    (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'", r"y^{\prime}", "y'"),
    (r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''", r"y^{\prime\prime}", "y''"),
    (r"(?<=\d)\s*x\s*(?=10\s*\^)", r" \\cdot ", "3 x 10^2", r"3 \cdot 10^2"),
)  # fmt: skip

_PLAIN_FONTS = (
    "mathbf", "boldsymbol", "mathit", "bm", "mathsf", "mathcal", "mathnormal", "pmb", "boxed", "fbox", "underline",
    "ensuremath",
)  # fmt: skip
_TEXT_FONTS = (
    "text", "mbox", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mathrm", "operatorname",
    "hbox", "emph",
)  # fmt: skip
_FONT = pattern(rf"\\({'|'.join((*_PLAIN_FONTS, *_TEXT_FONTS))})\*?\s*\{{", {r"x\mathbf{y}": r"\mathbf{"})
_CONNECTOR = pattern(r"^[,;]?\s*(and|or)\s*$", (", and",))
TEXT = pattern(r"\\text\{([^{}]*)\}", {r"5\text{ cm}^2": r"\text{ cm}"})
_WRAPPED = pattern(
    r"\\text\{\s*([-+]?\s*\d[^{}]*|\(?[A-Z]\)?(?:\s*(?:,(?:\s*and\b)?|and\b)\s*\(?[A-Z]\)?)+)\}",
    {r"\text{5 cm}": r"\text{5 cm}", r"\text{A, B and C}": r"\text{A, B and C}"},
)
_RAISED_RUN = pattern(rf"[{_RAISED}]+", {"x⁻²": "⁻²"})
_LOWERED_RUN = pattern(rf"[{_LOWERED}]+", {"x₁₂": "₁₂"})
_ROOT = pattern(r"√\s*(\d+|[A-Za-z])", {"2√ 15x": "√ 15"})
_DOUBLED = pattern(r"\\\\(?=[A-Za-z])", {r"\\frac": "\\\\"})
_DOLLAR = pattern(r"(?<!\\)\$", {r"\$5 is $x$": "$"})
_AMOUNT = pattern(r"(?<!\\)\$(?=\s*\d)", {"$x is $ 5": "$"})
_SPACES = pattern(r"\s+", {"a  b": "  "})
_NO_WORDS = pattern(r"[{}$\\]", {r"\max": "\\"})
_A_LETTER = pattern(r"[^\W\d_]", {"5x": "x", "3 м": "м"})
_COMMAND = pattern(r"\\([A-Za-z]+)", {r"2\lt3": r"\lt"})
_MARKS = ("\\\\", "\\", *(f"\\{name}" for name in ("checkmark", "blacksquare", "square", "Box", "qed")))


def tidy(text: str) -> str:
    r"""An answer with one way of writing each thing: no layout, no delimiters, ``\text{...}`` around words only."""
    text = "".join(" " if c in "\n\t\r" else c for c in text if c in "\n\t\r" or unicodedata.category(c)[0] != "C")
    text = _ONE_VULGAR.sub(lambda match: rf"\frac{{{_VULGAR[match[0]][0]}}}{{{_VULGAR[match[0]][1]}}}", text)
    text = _RAISED_RUN.sub(lambda match: f"^{{{match[0].translate(_RAISED_SIGNS)}}}", text)
    text = _LOWERED_RUN.sub(lambda match: f"_{{{match[0].translate(_LOWERED_SIGNS)}}}", text)
    text = _ROOT.sub(r"\\sqrt{\1}", text).replace("√", r"\sqrt ")
    text = _without_ends(_undelimited(_SPACES.sub(" ", text.translate(_TRANSLATION))).strip(), _MARKS)
    if r"\begin" not in text:  # in a matrix it ends a row
        text = _DOUBLED.sub(r"\\", text)
    text = _COMMAND.sub(lambda match: _SPELT.get(match[1], match[0]), rewritten(text, _LAYOUT))
    text = _fonts(rewritten(text, _SPELLINGS))
    # Only now are words in \text{...} and nothing else is.
    if whole := _WRAPPED.fullmatch(text.strip()):
        text = whole[1]
    parts = TEXT.split(text)
    parts[::2] = [_WORD.sub(_command, part) for part in parts[::2]]
    text = "".join(rf"\text{{{part}}}" if i % 2 else part for i, part in enumerate(parts))
    return _ended(_SPACES.sub(" ", text)).lstrip(" ,;:")


def _ended(text: str) -> str:
    """The text without the full stop and the signs that may follow an answer; dots that stand for more items stay."""
    text = text.rstrip(" ,;:")
    if text.endswith("..."):
        return text
    bare = text.removesuffix(".").removesuffix(" ") if text.endswith(".") else text
    return text if bare.endswith((" ", ".", ",", ";", ":")) else bare


def _without_ends(text: str, ends: tuple[str, ...], blanks: str | None = None) -> str:
    """The text without blanks and any of some ends behind it."""
    before = None
    while text != before:
        before, text = text, text.rstrip(blanks)
        text = next((text.removesuffix(end) for end in ends if text.endswith(end)), text)
    return text


def _command(word: re.Match[str]) -> str:
    return r"\infty " if word[3] else rf"\{word[0]}" if word[1] else rf"\{word[0]} "


def _undelimited(text: str) -> str:
    r"""The text without ``$`` around formulas; one that stands for dollars becomes ``\$``."""
    if len(_DOLLAR.findall(text)) % 2:
        text = _AMOUNT.sub(r"\\$", text, count=1)
    return _DOLLAR.sub(" ", text)


def _fonts(text: str) -> str:
    r"""The text without fonts: words as ``\text{...}``, everything else bare."""
    ends, opened = {}, []
    for found in BRACE.finditer(text):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return _without_fonts(text, 0, len(text), ends, 0)


def _without_fonts(text: str, start: int, stop: int, ends: dict[int, int], depth: int) -> str:
    if depth > DEEPEST:
        raise Unreadable("too deep")
    done, position = [], start
    while found := _FONT.search(text, position, stop):
        end = ends.get(found.end() - 1)
        if end is None:
            raise Unreadable("braces do not match")
        words = _words(found[1], text[found.end() : end])
        done += [text[position : found.start()]]
        done += [_without_fonts(text, found.end(), end, ends, depth + 1) if words is None else words]
        position = end + 1
    return "".join(done) + text[position:stop]


def _words(font: str, inner: str) -> str | None:
    """What words in a font become; None for a formula, which stands as it is."""
    words = _NO_WORDS.sub(" ", inner).strip()
    if font in _PLAIN_FONTS or not _A_LETTER.search(words) or (font == "mathrm" and words in tuple("eid")):
        return None
    if "\\" in inner and font != "operatorname":
        return None
    if _CONNECTOR.match(words):
        return f" {words.strip(',; ')} "
    command = words in TYPED and (font == "operatorname" or words not in ("min", "max"))
    return rf"\{words} " if command else rf"\text{{{words}}}"
