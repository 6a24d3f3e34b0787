"""Files that are whole at every moment: a failed write, half a line, two writers, damaged content."""

import pytest
from refusals import refused

from answer_judge import files
from answer_judge.errors import FileError


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    for there in ([], [path]):
        with pytest.raises(KeyboardInterrupt), files.replacing(path) as file:
            file.write("half of")
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == there and all(each.read_text() == "{}" for each in there)
        path.write_text("{}")
    with pytest.raises(TypeError, match="not JSON serializable"):
        files.write_json(path, {"a": object()})
    assert path.read_text() == "{}"
    with refused(FileError, "no folder", "not there"), files.explaining(tmp_path / "no folder", "not there"):
        files.write_json(tmp_path / "no folder" / "a.json", {})


@pytest.mark.parametrize("line", [b"not json", b"[1]", b"", b'{"a": "\xff"}', b'{"step": 3, "cu'])
def test_damaged_content_stops_the_reader(line, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with refused(FileError, "a.jsonl, line 2", "Evaluate again."):
        list(files.read_lines(path, advice="Evaluate again."))
    for content in (b"{", b"[1]", b"\xff", None):
        path.write_bytes(content) if content else path.unlink()
        with refused(FileError, "a.jsonl", "Remove it."):
            files.read_json(path, advice="Remove it.")


def test_lines_are_appended_and_read_back(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"text": text} for text in ("a\nb\r\n\u2028\u0085c", "\x00\x1b", "lone \ud800", '"\\', "\U0001f600")]
    files.append_lines(path, records[:2])
    files.append_lines(path, records[2:])
    assert path.read_bytes().isascii() and path.read_bytes().count(b"\n") == len(records)
    assert list(files.read_lines(path)) == records
    with pytest.raises(FileError, match=r"none\.jsonl cannot be read"):
        list(files.read_lines(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("half", [b"", b"\0\0\0", b'{"id": 9}', b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"id": 1}\n'])
def test_a_sole_writer_cuts_half_a_line_off(tmp_path, whole, half):
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole + half)
    with files.sole_writer(path, advice=""):
        with refused(FileError, "another process", "elsewhere"), files.sole_writer(path, advice="go elsewhere"):
            pass
        assert path.read_bytes() == whole
        files.append_lines(path, [{"id": 2}])
    assert path.read_bytes() == whole + b'{"id": 2}\n'
