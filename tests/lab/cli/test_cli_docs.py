"""``dppo docs``: every page that a message names is there."""

import re
from pathlib import Path

from refusals import refused

import dppo
from dppo.errors import ConfigError
from dppo.lab.cli.docs import main
from dppo.lab.shipped import PAGES


def test_pages_are_listed_and_printed_without_comments(capsys):
    assert main([]) == 0 and "metrics       Metrics" in capsys.readouterr().out
    assert main(["savings"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Does it pay?") and "<!--" not in printed
    with refused(ConfigError, "saving", "Did you mean savings?"):
        main(["saving"])


def test_no_message_names_a_page_that_is_not_there():
    sources = "".join(path.read_text() for path in Path(dppo.__file__).parent.rglob("*.py"))
    named = {*re.findall("dppo docs ([a-z_]+)", sources)}
    assert {"methods", "extending"} <= named <= {each.stem for each in PAGES.glob("*.md")}
