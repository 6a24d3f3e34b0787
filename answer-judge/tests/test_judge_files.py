"""Files that are whole at every moment: a failed write, half a line, two writers, damaged content."""

import resource
from contextlib import contextmanager

import pytest
from refusals import refused

from answer_judge import files
from answer_judge.errors import FileError


@pytest.mark.parametrize("old", [None, '{"old": 1}'])
def test_a_write_that_fails_leaves_what_was_there(old, tmp_path):
    path = tmp_path / "a.json"
    if old is not None:
        path.write_text(old)
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as file:
        file.write("half of")
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["a.json"])
    assert old is None or path.read_text() == old
    with pytest.raises(TypeError, match="not JSON serializable"):
        files.write_json(path, {"a": object()})
    assert old is None or path.read_text() == old
    with pytest.raises(FileNotFoundError):
        files.write_json(tmp_path / "no folder" / "a.json", {})


def test_lines_are_appended_and_read_back(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"text": text} for text in ("a\nb\r\n\u2028\u0085c", "\x00\x1b", "lone \ud800", '"\\', "\U0001f600")]
    files.append_lines(path, records[:2])
    files.append_lines(path, records[2:])
    assert path.read_bytes().isascii() and path.read_bytes().count(b"\n") == len(records)
    assert list(files.read_lines(path)) == records
    with pytest.raises(FileError, match=r"none\.jsonl cannot be read"):
        list(files.read_lines(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("line", [b"not json", b"[1]", b"", b'{"a": "\xff"}', b'{"step": 3, "cu'])
def test_a_damaged_line_stops_the_reader(line, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with refused(FileError, "a.jsonl, line 2", "Evaluate again."):
        list(files.read_lines(path, advice="Evaluate again."))


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff"])
def test_a_json_file_that_cannot_be_read_says_so(content, tmp_path):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with refused(FileError, "a.json", "Remove it."):
        files.read_json(path, advice="Remove it.")


ROWS = [{"id": i, "text": "é" * i} for i in range(20)]


@pytest.mark.parametrize("half", [b"", b"\0\0\0", b'{"id": 9}', b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"id": 1}\n'])
def test_a_sole_writer_cuts_half_a_line_off(tmp_path, whole, half):
    path = tmp_path / "new" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(whole + half)
    with files.sole_writer(path, advice=""):
        assert path.read_bytes() == whole
        files.append_lines(path, [{"id": 2}])
    assert path.read_bytes() == whole + b'{"id": 2}\n'


def test_two_sole_writers(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    with files.sole_writer(path, advice=""):
        files.append_lines(path, ROWS)
        with (
            refused(FileError, "another process", "go elsewhere"),
            files.sole_writer(path, advice="go elsewhere"),
        ):
            pass
    with files.sole_writer(path, advice=""):
        assert list(files.read_lines(path)) == ROWS


@contextmanager
def room(size):
    """Limits the size of files, as a disk that is full would; not beyond the block, where pytest writes its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_whole_lines_for_the_next_writer(tmp_path):
    path = tmp_path / "a.jsonl"
    files.append_lines(path, ROWS[:2])
    with room(path.stat().st_size + 500):
        with refused(FileError, "File too large", "it is whole"), files.explaining(path, "it is whole"):
            files.append_lines(path, ROWS * 3)
        with refused(FileError, "File too large"), files.explaining(tmp_path / "b.json", "not there"):
            files.write_json(tmp_path / "b.json", {"a": "x" * 100_000})
    assert not path.read_bytes().endswith(b"\n") and list(tmp_path.iterdir()) == [path]
    with files.sole_writer(path, advice=""):
        left = list(files.read_lines(path))
    assert left[:2] == ROWS[:2] and left[2:] == ROWS[: len(left) - 2]
