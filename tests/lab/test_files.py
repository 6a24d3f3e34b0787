"""Lines of JSON beside a run: written whole, read past damage, cut at a step."""

from dppo.lab.files import append_lines, keep_lines, read_lines

DAMAGED = b'{"step": 1}\n\nnot json\n[1]\n{"a": "\xff"}\n{"step": 2}\n{"step": 3, "cu'


def test_damage_is_listed_and_left_out(tmp_path):
    path, damaged = tmp_path / "a.jsonl", []
    path.write_bytes(DAMAGED)
    assert list(read_lines(path, damaged)) == [{"step": 1}, {"a": "\ufffd"}, {"step": 2}]
    assert [number for number, _ in damaged] == [3, 4, 7] and damaged[1][1] == "it is not an object"
    keep_lines(path, lambda record: record.get("step") != 1)
    assert path.read_text() == '{"a": "\\ufffd"}\n{"step": 2}\n'
    assert list(read_lines(tmp_path / "none.jsonl", [])) == []


def test_lines_come_back_as_they_were(tmp_path):
    records = [{"text": text} for text in ("a\nb\r\n\u2028\u0085c", "\x00\x1b", "lone \ud800", '"\\', "\U0001f600")]
    for part in (records[:2], [], records[2:]):
        append_lines(tmp_path / "a.jsonl", part)
    assert list(read_lines(tmp_path / "a.jsonl", [])) == records
