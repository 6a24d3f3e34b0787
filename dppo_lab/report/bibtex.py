"""BibTeX of the methods that ran, from the arXiv numbers they carry."""

import re
from collections.abc import Iterable

from dppo.methods import METHODS

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5}),\s*(.*?)(?=,\s*on top of arXiv:|$)", re.DOTALL)


def bibtex(papers: Iterable[str]) -> str:
    """One entry per arXiv number in texts as ``Method.paper`` has them, in the order they appear.

    Authors are not there and are left out rather than guessed. The title is that of the preset.
    """
    presets, found = _titles(method.paper for method in METHODS.values()), _titles(papers)
    found = {eprint: presets.get(eprint, title) for eprint, title in found.items()}
    return "\n\n".join(_entry(eprint, title) for eprint, title in found.items())


def _titles(papers: Iterable[str]) -> dict[str, str]:
    """Titles by arXiv number, the first of each."""
    titles: dict[str, str] = {}
    for cited in (cited for paper in papers for cited in _PAPER.finditer(paper)):
        titles.setdefault(str(cited[1]), str(cited[2]))
    return titles


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
