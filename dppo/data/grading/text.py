"""Answers as text: one way of writing each thing, and cutting at places outside all brackets. Linear in the text."""

import re
import unicodedata
from collections.abc import Iterator

DEEPEST = 40
"""Brackets within brackets; no answer needs more, and recursion stays far from Python's own limit."""


class Unreadable(ValueError):
    """A text that is not mathematics we can read."""


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
    "…": "...", **dict.fromkeys("✓✔✅∎■□", " "),
}  # fmt: skip
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho - sigma tau upsilon phi chi psi omega"  # noqa: E501
_CHARACTERS |= {chr(0x3B1 + i): rf"\{name} " for i, name in enumerate(_GREEK.split()) if name not in "-pi"}
_CHARACTERS |= {
    chr(0x391 + i): rf"\{name.capitalize()} " for i, name in enumerate(_GREEK.split()) if name in
    ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
}  # fmt: skip
_CHARACTERS |= {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) != "％"}
_TRANSLATION = str.maketrans(_CHARACTERS)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-")
_VULGAR = {c: unicodedata.normalize("NFKD", c).split("\u2044") for c in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_ONE_VULGAR = re.compile(rf"(?<![{''.join(_VULGAR)}])[{''.join(_VULGAR)}](?![{''.join(_VULGAR)}])")

FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln",
    "lg", "exp", "cis", "max", "min", "gcd", "lcm", "sqrt",
))  # fmt: skip
"""Functions that are read when typed without a backslash."""
_WORD = re.compile(
    rf"(?<![\\A-Za-z])(?:({'|'.join(sorted(FUNCTIONS, key=len, reverse=True))})(?=\s*[\d(\\{{^_]|(?<!min)(?<!max) )"
    r"|(pi|theta|alpha|beta|lambda|sigma|omega)(?![A-Za-z])|(infinity|inf|oo)(?![A-Za-z]))"
)

# (pattern, replacement), in order
_LAYOUT_TEXT = [
    (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*(?:\.(?!\d))?", ""),
    (r"(?<!\\)\\[()\[\]]", " "),
    (r"(?<=\d)(?:,\s*\\!|\{,\}|\\,|\\ |,\\,)\s*(?=\d{3}(?!\d))", ""),
    (r"(?<!\\)\\!", ""),
    (r"(?<!\\)\\[,:;> ]|(?<!\\)~", " "),
    (r"\\(?:q?quad|enspace|thinspace|hfill|noindent|limits|mathstrut|rm|bf|it)(?![A-Za-z])", " "),
    (r"\\(?:display|text|script)style(?![A-Za-z])", " "),
    (r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge)(?![A-Za-z])", " "),
    (r"\\(?:textcolor|color|colorbox)\s*\{[^{}]*\}", ""),
    (r"\\(?:begin|end)\s*\{(?:aligned|align\*?|equation\*?|gathered|split)\}", " "),
    (r"(?:\\(?:checkmark|blacksquare|square|Box|qed)(?![A-Za-z])\s*|\\\\\s*)+$", ""),
    (r"\\[hv]space\s*\{[^{}]*\}|\\[hv]?phantom\s*(?:\{[^{}]*\}|\S)", " "),
    (r"\\(?:[dtc]|nice|s)frac(?![A-Za-z])", r"\\frac"),
    (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
    (r"\\(frac|binom)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"\\(frac|binom)\s*(\d)\s*\{", r"\\\1{\2}{"),
    (r"\\sqrt\s*(\d+)", r"\\sqrt{\1}"),
    (r"\\leq?(?:slant)?(?![A-Za-z])|<=|=<", r"\\le "),
    (r"\\geq?(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
    (r"\\neq?(?![A-Za-z])|!=", r"\\ne "),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\(?:times|ast|bullet)(?![A-Za-z])|\*(?!\*)(?<!\*\*)", r"\\cdot "),
    (r"\*\*", "^"),
    (r"\\div(?![A-Za-z])", "/"),
    (r"\\(?:simeq|cong|doteq)(?![A-Za-z])|~=", r"\\approx "),
    (r"\\colon(?![A-Za-z])", ":"),
    (r":=|\\equiv(?![A-Za-z])", "="),
    (r"\\(?:[lr]?vert|mid)(?![A-Za-z])", "|"),
    (r"\\l(?:brace)(?![A-Za-z])", r"\\{"),
    (r"\\r(?:brace)(?![A-Za-z])", r"\\}"),
    (r"\\langle(?![A-Za-z])", "("),
    (r"\\rangle(?![A-Za-z])", ")"),
    (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset "),
    (r"\\backslash(?![A-Za-z])", r"\\setminus "),
    (r"\\var(epsilon|phi|theta|rho|sigma|pi)(?![A-Za-z])", r"\\\1 "),
    (r"\\(?:dots|ldots|cdots)(?![A-Za-z])", "..."),
    (
        r"\^\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*([CF])\s*\}|([CF])(?![A-Za-z]))",
        r" \\text{degrees \1\2}",
    ),
    (r"\^\s*\{?\s*(?:\\text\s*\{\s*o\s*\}|(?<=\d\^)o(?![A-Za-z])|(?<=\d\^\{)o(?=\}))\s*\}?", r"^\\circ "),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ "),
    (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),
    (r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''"),
    (r"(?<=\d)\s*x\s*(?=10\s*\^)", r" \\cdot "),
    (r"\\mathbb\s*([A-Z])(?![A-Za-z])|\\(R)eals(?![A-Za-z])|\\(R)(?![A-Za-z])", r"\\mathbb{\1\2\3}"),
    (
        r"\\frac\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}"
        r"\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*(\^\s*(?:\d|\{\d\}))?\s*\}",
        r" \\text{\1}/\\text{\2}\3",
    ),
    (r"(?<=\d)\s*\\text\s*\{\s*to\s*\}\s*(?=\d)|(?<=\d)\s+to\s+(?=\d)", ":"),
    (r"\\operatorname\s*\{(?:arctg|atan)\}|\\arctg(?![A-Za-z])", r"\\arctan "),
    (r"(?<=[\d}])\s+\(([A-Za-z][a-z]{2,}(?: [A-Za-z]+){0,6})\)\s*$", r" \\text{\1}"),
    (r"\\mu\s*\\(?:text|mathrm)\s*\{\s*([A-Za-z]+)", r"\\text{µ\1"),
    (r"(?<!\d)(\d{0,40}\.\d{0,20}?)(\d{1,9}?)\2{1,60}\s*\.\.\.", r"\1\\overline{\2}"),
    (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
]  # fmt: skip
_LAYOUT = [(re.compile(pattern), replacement) for pattern, replacement in _LAYOUT_TEXT]

_PLAIN_FONTS = (
    "mathbf", "boldsymbol", "mathit", "bm", "mathsf", "mathcal", "mathnormal", "pmb", "boxed", "fbox", "underline",
    "ensuremath",
)  # fmt: skip
_TEXT_FONTS = (
    "text", "mbox", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mathrm", "operatorname",
    "hbox", "emph",
)  # fmt: skip
_FONT = re.compile(rf"\\({'|'.join((*_PLAIN_FONTS, *_TEXT_FONTS))})\*?\s*\{{")
_CONNECTOR = re.compile(r"^[,;]?\s*(and|or)\s*$")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE_WORD = f"({'|'.join(_SCALES)})\\b"
_SCALE = re.compile(rf"(?<=\d)\s*(?:\\text\{{\s*{_SCALE_WORD}([^{{}}]*)\}}|{_SCALE_WORD})")
TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SHORT_SCALES = {"k": "thousand", "K": "thousand", "M": "million", "B": "billion"}
_SHORT_SCALE = re.compile(r"(\\\$\s*[\d.,]*\d)\s*(?:\\text\{\s*([kKMB])\s*\}|([kKMB])\b)|(?<=\d)\\text\{(k)\}")
_WRAPPED = re.compile(r"\\text\{\s*([-+]?\s*\d[^{}]*|\(?[A-Z]\)?(?:\s*(?:,\s*(?:and\b)?|and\b)\s*\(?[A-Z]\)?)+)\}")
_BASE = re.compile(r"(?<=[0-9A-Z])\s*(?:\\text\{\s*)?\(?(?:in )?base[- ](?P<base>\d{1,2}|[a-z]+)\s*\)?\s*\}?$")


def tidy(text: str) -> str:
    r"""The text with one way of writing each thing: no layout, no delimiters, ``\text{...}`` around words only.

    Args:
        text: an answer or a gold answer.

    Raises:
        Unreadable: braces that do not match.
    """
    text = "".join(" " if c in "\n\t\r" else c for c in text if c in "\n\t\r" or unicodedata.category(c)[0] != "C")
    text = _ONE_VULGAR.sub(lambda match: rf"\frac{{{_VULGAR[match[0]][0]}}}{{{_VULGAR[match[0]][1]}}}", text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+", lambda match: f"^{{{match[0].translate(_RAISED)}}}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉₊₋]+", lambda match: f"_{{{match[0].translate(_LOWERED)}}}", text)
    text = re.sub(r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}", text).replace("√", r"\sqrt ")
    text = _undelimited(text.translate(_TRANSLATION).strip())
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, replacement in _LAYOUT:
        text = pattern.sub(replacement, text)
    text = _fonts(text)
    if whole := _WRAPPED.fullmatch(text.strip()):
        text = whole[1]
    text = _SCALE.sub(_scaled, _SHORT_SCALE.sub(_spelt_out, _BASE.sub(r"_{\g<base>}", text)))
    parts = TEXT.split(text)
    parts[::2] = [_WORD.sub(_command, part) for part in parts[::2]]
    text = "".join(rf"\text{{{part}}}" if i % 2 else part for i, part in enumerate(parts))
    return _ENDING.sub("", re.sub(r"\s+", " ", text)).lstrip(" ,;:")


_ENDING = re.compile(r"(?:(?<=\d)\.\.\.|(?<![\s.,;:])\s?\.)?[\s,;:]*$")
"""What may follow an answer; dots that stand for more items are no ending."""


def _spelt_out(found: re.Match[str]) -> str:
    """The word for ``k`` and its like behind a number."""
    letter = found[2] or found[3] or found[4]
    return rf"{found[1] or ''} \text{{{_SHORT_SCALES[letter]}}}"


def _scaled(found: re.Match[str]) -> str:
    """A power of ten for "million" and its like."""
    rest = f" \\text{{{found[2].strip()}}}" if found[2] and found[2].strip() else ""
    return rf" \cdot 10^{{{_SCALES[found[1] or found[3]]}}}{rest}"


def _command(word: re.Match[str]) -> str:
    """A word typed plainly, as a command."""
    return r"\infty " if word[3] else rf"\{word[0]}" if word[1] else rf"\{word[0]} "


def _undelimited(text: str) -> str:
    r"""The text without ``$`` around formulas; one that stands for dollars becomes ``\$``."""
    signs = len(re.findall(r"(?<!\\)\$", text))
    if signs % 2:
        text = re.sub(r"(?<!\\)\$(?=\s*\d)", r"\\$", text, count=1)
    return re.sub(r"(?<!\\)\$", " ", text)


def _fonts(text: str) -> str:
    r"""The text without fonts: words as ``\text{...}``, everything else bare."""
    done, position = "", 0
    while found := _FONT.search(text, position):
        end = closing(text, found.end() - 1)
        done += text[position : found.start()]
        inner = text[found.end() : end]
        text, position = _content(found[1], inner) + text[end + 1 :], 0
        if text.startswith("\\text{"):
            stop = text.index("}") + 1
            done, text = done + text[:stop], text[stop:]
    return done + text[position:]


def _content(font: str, inner: str) -> str:
    """What replaces one font command."""
    words = re.sub(r"[{}$\\]", " ", inner).strip()
    if font in _PLAIN_FONTS or not re.search(r"[A-Za-z]", words) or (font == "mathrm" and words in tuple("eid")):
        return inner
    if "\\" in inner and font != "operatorname":
        return inner
    if _CONNECTOR.match(words):
        return f" {words.strip(',; ')} "
    command = words in FUNCTIONS and (font == "operatorname" or words not in ("min", "max"))
    return rf"\{words} " if command else rf"\text{{{words}}}"


_BRACKET = re.compile(r"\\[{}]|\\text\{[^{}]*\}|[()\[\]{}]|\\.", re.DOTALL)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}, {")", "]", "}", r"\}"}


def brackets(text: str) -> Iterator[tuple[int, int, str]]:
    """Every bracket as (position, depth outside it, the bracket); ``\\text{...}`` counts as one pair.

    ``(`` may close with ``]`` and ``[`` with ``)``, as half-open intervals do; braces only with their own kind.

    Raises:
        Unreadable: brackets that do not match, or too many within each other.
    """
    stack: list[str] = []
    for found in _BRACKET.finditer(text):
        bracket = found[0]
        if len(bracket) > 2:  # words are a pair of brackets of their own
            yield found.start(), len(stack), "{"
            yield found.end() - 1, len(stack), "}"
        elif bracket in _OPEN:
            yield found.start(), len(stack), bracket
            stack.append(bracket)
            if len(stack) > DEEPEST:
                raise Unreadable("too deep")
        elif bracket in _CLOSE:
            if not stack or (_OPEN[stack[-1]] != bracket and not (stack[-1] in "([" and bracket in ")]")):
                raise Unreadable("brackets do not match")
            stack.pop()
            yield found.start(), len(stack), bracket
    if stack:
        raise Unreadable("brackets do not match")


def closing(text: str, start: int) -> int:
    """Position of the brace that closes the one at ``start``.

    Raises:
        Unreadable: there is none.
    """
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    raise Unreadable("braces do not match")


def cut(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The pieces of a text between separators outside all brackets, and the separators.

    Raises:
        Unreadable: brackets that do not match.
    """
    spans, start = [], 0
    opened = 0
    for position, depth, bracket in brackets(text):
        if depth == 0 and bracket in _OPEN:
            spans.append((start, position))
            opened = position
        elif depth == 0:
            start = position + len(bracket)
    spans.append((start, len(text)))
    assert opened <= len(text)
    pieces, found, last = [], [], 0
    for low, high in spans:
        for match in separator.finditer(text, low, high):
            pieces.append(text[last : match.start()].strip())
            found.append(match[0].strip())
            last = match.end()
    return [*pieces, text[last:].strip()], found
