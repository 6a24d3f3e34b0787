"""BibTeX of the methods that ran, from the arXiv numbers they carry."""

import re
from collections.abc import Iterable

from dppo.methods import METHODS

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5}),\s*(.*?)(?=,\s*on top of arXiv:|$)", re.DOTALL)


def bibtex(papers: Iterable[str]) -> str:
    """One entry per arXiv number, in the order they appear; empty where there is none.

    Authors are not in ``Method.paper`` and are left out rather than guessed. The title is that of the preset.

    Args:
        papers: as in ``Method.paper``: "arXiv:NUMBER, title", two of them joined by ", on top of ".
    """
    found: dict[str, str] = {}
    for paper in papers:
        for eprint, title in _cited(paper):
            found.setdefault(eprint, _TITLES.get(eprint, title))
    return "\n\n".join(_entry(eprint, title) for eprint, title in found.items())


def _cited(paper: str) -> list[tuple[str, str]]:
    return [(str(found[1]), str(found[2])) for found in _PAPER.finditer(paper)]


def _titles() -> dict[str, str]:
    titles: dict[str, str] = {}
    for method in METHODS.values():
        for eprint, title in _cited(method.paper):
            titles.setdefault(eprint, title)
    return titles


_TITLES = _titles()


def _entry(eprint: str, title: str) -> str:
    plain = " ".join(re.sub(r"[{}\\]", "", title).split())
    lines = {
        "title": f"{{{plain}}}",
        "year": f"20{eprint[:2]}",
        "eprint": eprint,
        "archivePrefix": "arXiv",
        "url": f"https://arxiv.org/abs/{eprint}",
    }
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in lines.items())
    return f"@misc{{arxiv{eprint},\n{body}\n}}"
