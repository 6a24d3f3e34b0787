"""Words next to a number that change its value or take it back: they count, divide, compare, negate or calculate.

A thing that is counted may have any name. Powers of ten and dozens count where they follow a number (``text``).
"""

import re

from answer_judge.grading.patterns import pattern

_NUMERALS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    "|eighteen|nineteen|twenty|thirty|fou?rty|fifty|sixty|seventy|eighty|ninety|nil|nought|naught"
)
_POWERS = (
    r"(?:hundred|thousand|\w*illi(?:on|ard)|lakh|lac|crore|arab|myriad|googol|dozen|score|gross|mn|bn|tn|mio|mrd|mld"
    r"|basis point|bp|mega|giga|tera|grand|mill|thou|tsd|doz|dz)(?:s|ths?)?|kilo|pi"
)
_PARTS = (
    r"half|halve[sd]?|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|thirteen|fifteen|sixteen)ths?"
    r"|twentieths?|permille|promille|ppm|ppb|fold|twofold|threefold"
)
_MULTIPLES = "doubled?|tripled?|trebled?|quadrupled?|twice|thrice|squared|cubed|factorial|exponents?|root|powers? of"
_CALCULATION = (
    "plus|minus|negative|divided|multiplied|multiply|added|subtract(?:ed)?|increased|decreased|reduced|over|mod|modulo"
    "|remainder|base|choose|permute|reciprocal|inverse|complement|logarithm|log|sum|product|to the (?!nearest)"
    "|raised|below|point|loss(?:es)?|deficits?|debts?|overdrawn|under par"
)
_COMPARISON = "or|than|least|most|exceeding|between|up to|if|unless|when|but|except|excluding|versus|vs|instead|rather"
_BEHIND = "above|beyond|onwards?|upwards?|minimum|maximum|max|ish|tens|repeating|recurring|excluded|outside|reversed"
"""Of a number or an interval before them; before "is" they belong to a name, as in "the maximum is 5"."""
_DOUBT = (
    "maybe|perhaps|possibly|not|no|non|none|neither|nor|wrong|incorrect|false|never|isn't|without|alternatively"
    "|otherwise|else|cannot"
)
_ELSEWHERE = (
    r"mille|mil|milles|milliers?|\w*ill[oó]n|\w*illones|\w*[il]h?[oõ]es|\w*ilh[aã]o|millionen|milliarden?|milioni|mila"
    "|tausend|hundert|hundra|tusen|miljon(?:er)?|två|åtta|fünfzehn|fünfzig|dreißig|dieciséis|veinti[oóuúdtcsn]\\w+"
    "|centaines?|dizaines?|quinzaines?|vingtaines?|más|mínimo|máximo|höchstens|mindestens|größer|zwölffach|dreifach"
    "|cien(?:to)?|cem|douzaines?|docenas?|d[uú]zias?|dozzin[ae]|dutzend|demi|demie|medi[oa]|mitad|moitié|halb"
    "|un|une|uno|una|um|uma|ein|eins|eine|deux|dos|dois|zwei|trois|tres|três|drei|quatre|cuatro|quatro|quattro"
    "|vier|cinq|cinco|cinque|fünf|seis|sei|sechs|sept|siete|sete|sette|sieben|huit|ocho|oito|otto|acht|neuf|nueve|nove"
    "|neun|dix|diez|dez|dieci|zehn|onze|once|undici|elf|douze|doce|doze|dodici|zwölf|vingt|veinte|vinte|venti|zwanzig"
    "|moins|menos|meno|nicht|kein|keine|pas|n[aã]o|oder|ou|oppure|weniger|mehr|negativ[eoa]?|n[eé]gati[fv]e?"
)
"""Of French, Spanish, Portuguese, Italian and German."""
CHANGES = pattern(
    r"(?<![\^{-])\d|n't\b|\band (?:an?|the)\b|^\W*(?:text\W*)?(?:and|an?)\b"
    r"|(?<!ordered )(?<!distinct )\b(?:pairs?|couples?)\b"
    rf"|\b(?:(?:{_NUMERALS})\b(?!-(?:way|time|hour|day|inch|foot|year|digit|dollar)\b)"
    rf"|(?:{'|'.join((_POWERS, _PARTS, _MULTIPLES, _CALCULATION, _COMPARISON, _BEHIND, _DOUBT, _ELSEWHERE))})\b)",
    {"more than x": "than", "ft 6": "6", "millions": "millions", "isn't": "isn't", r"\text{and a half}": r"\text{and"},
    re.IGNORECASE,
)
"""Behind a number: words that make another of it, or take it back."""
MONEY = pattern(
    r"\b[kKMB]\W{1,9}(?:text\W{1,9})?(?:dollars?|euros?|cents?|USD|EUR|pounds|rupees?|yuan|yen)\b",
    {"K dollars": "K dollars", r"\text{ M} \text{ euros}": r"M} \text{ euros"},
)
"""Thousands or millions of money, by a letter that is a unit elsewhere."""
UNSAID = pattern(
    rf"\d|n't\b|\b(?:{'|'.join((_POWERS, _COMPARISON, _DOUBT))}|minus|negative|plus|half|third|quarter|{_MULTIPLES})\b",
    {"not the answer is": "not", "twice it is": "twice", "at least": "least"},
    re.IGNORECASE,
)
"""Before "is" and an answer: words that take it back or say something else of it."""
RENAMED = pattern(
    rf"^(?=\\text|[A-Za-z]{{3}}).*(?:n't|\b(?:(?!no(?:[.]| of)|non-)(?:{_DOUBT})|but|except|excluding|instead|rather"
    rf"|than|at (?:least|most)|minus|plus|twice|thrice|(?:{_PARTS}|{_MULTIPLES}|square|cube|negative|opposite"
    r"|reciprocal|inverse|complement|multiple|fraction|percent(?:age)?) (?:of(?! \d)|the|it|this|that)))\b",
    {r"\text{half of it}": r"\text{half of", r"\text{not }x": r"\text{not", "That isn't it": "That isn't"},
    re.IGNORECASE,
)
"""In a name of words; "third side", "negative root" and "no. of ways" are what a problem asks for."""
