"""Names, settings and errors that try to run: nothing of them may become part of the page's structure."""

import json
from html.parser import HTMLParser

import pytest
import report_folders as made

import dppo.lab.report.page as page_module
from dppo.lab.report import write_report

MARK = "document.title='RAN'"
HOSTILE = (
    f'</style></details><script>{MARK}</script><img src=x onerror="{MARK}"><a href="javascript:{MARK}">x</a>',
    f"' onmouseover='{MARK}' autofocus onfocus='{MARK}'",
    f'" onload="{MARK}" style="background:url(https://example.invalid/a) {{{{ 7 * 7 }}}} 数学 \ud800',
)
OURS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "h1", "h2", "h3", "p", "nav", "a", "main"),
    *("div", "section", "table", "thead", "tbody", "tr", "th", "td", "span", "details", "summary", "figure"),
    *("code", "figcaption", "img", "pre", "ul", "li", "footer"),
}


class Structure(HTMLParser):
    """Elements and attributes that do not belong to a report."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.foreign, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.foreign += [tag] if tag not in OURS else []
        for name, value in ((name, value or "") for name, value in attrs):
            outside = name in ("href", "src", "xlink:href") and not value.startswith(("#", "data:"))
            runs = name.startswith("on") or "javascript:" in value.lower() if name != "alt" else False
            self.foreign += [f"{tag} {name}={value}"] if outside or runs or "url(http" in value else []

    def handle_data(self, data):
        self.text += data


def hostile_run(folder, place, text):
    """A run whose every text is hostile."""
    fields = {"describe": text, "biased": [text], "config": {text: text, "nested": {text: [text]}}, "error": text}
    fields |= {"environment": {**made.about_run()["environment"], "processor": text, "versions": {text: text}}}
    about = made.about_run("dppo", place, task={"model": "\n".join(HOSTILE)}, **fields)
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(about | {"method": text, "status": "failed" if place else "finished"}))
    logs = made.logs("dppo", place, updates=10)
    made.write_lines(folder / "metrics.jsonl", [{**log, f"time/{text}": 0.1} for log in logs])
    return folder


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_nothing_hostile_becomes_an_element_or_an_attribute(place, tmp_path):
    folder = hostile_run(tmp_path / "run", place, HOSTILE[place])
    found = Structure(write_report(folder, tmp_path / "page.html").page.read_text(encoding="utf-8"))
    assert found.foreign == [] and HOSTILE[place].split("\ud800")[0] in found.text


def test_the_check_sees_a_page_that_does_not_escape(tmp_path, monkeypatch):
    made_by = page_module.Environment
    monkeypatch.setattr(page_module, "Environment", lambda **given: made_by(**{**given, "autoescape": False}))
    written = write_report(hostile_run(tmp_path / "run", 0, HOSTILE[0]), tmp_path / "naive.html")
    found = Structure(written.page.read_text(encoding="utf-8"))
    assert "script" in found.foreign and any("onerror" in name for name in found.foreign)
