"""Lines of JSON beside a run: written whole, read up to where a stop cut them off, cut at a step."""

import pytest
from refusals import refused

from dppo.errors import FileError
from dppo.lab.files import append_lines, keep_lines, read_lines


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "a": "\xff"}\n{"step": 3, "cu')
    assert list(read_lines(path)) == [{"step": 1}, {"step": 2, "a": "\ufffd"}]
    keep_lines(path, lambda record: record["step"] != 1)
    assert path.read_text() == '{"step": 2, "a": "\\ufffd"}\n'
    assert list(read_lines(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("damaged", [b"not json", b"[1]", b"", b'{"a": 1}', b'{"step": NaN}', b'{"step": "x"}'])
def test_any_other_damage_is_named(tmp_path, damaged):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 2}\n')
    with refused(FileError, path, "line 2 is damaged", "train the run again"):
        list(read_lines(path))


def test_lines_come_back_as_they_were(tmp_path):
    texts = ("a\nb\r\n\u2028\u0085c", "\x00\x1b", "lone \ud800", '"\\', "\U0001f600")
    records = [{"step": step, "text": text} for step, text in enumerate(texts)]
    for part in (records[:2], [], records[2:]):
        append_lines(tmp_path / "a.jsonl", part)
    assert list(read_lines(tmp_path / "a.jsonl")) == records
