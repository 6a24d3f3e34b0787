"""Files stay whole: half lines, full disks (simulated, and by the kernel), two writers."""

import errno
import json
import os
import resource

import pytest

from dppo.errors import EvaluationError
from dppo.evaluation import files
from dppo.evaluation.files import LineFile, read_lines, write_json

ROWS = [{"id": i, "text": "é" * i} for i in range(20)]


def test_lines_come_back(tmp_path):
    path = tmp_path / "a.jsonl"
    with LineFile(path) as file:
        file.append(ROWS[:5])
        file.append([])
    with LineFile(path) as file:
        assert file.cut == 0
        file.append(ROWS[5:])
    assert list(read_lines(path)) == ROWS


@pytest.mark.parametrize("half", [b'{"id"', b"\0\0\0", b'{"id": 9}', b"x" * 200_000])
def test_half_a_line_is_cut_off(tmp_path, half):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n' + half)
    with LineFile(path) as file:
        assert file.cut == len(half)
        file.append([{"id": 2}])
    assert list(read_lines(path)) == [{"id": 1}, {"id": 2}]


def test_nothing_but_half_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100_000)
    with LineFile(path) as file:
        assert file.cut == 100_000
    assert path.read_bytes() == b""


def full_after(monkeypatch, room):
    """The disk takes ``room`` more bytes, a few at a time, and then says that it is full."""
    write, left = os.write, [room]

    def limited(fd, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(7, left[0], len(data))
        left[0] -= taken
        return write(fd, data[:taken])

    monkeypatch.setattr(files.os, "write", limited)


@pytest.mark.parametrize("room", [0, 1, 25, 26, 120, 399])
def test_full_disk_leaves_whole_lines(tmp_path, monkeypatch, room):
    path = tmp_path / "a.jsonl"
    with LineFile(path) as file:
        file.append(ROWS[:2])
        with monkeypatch.context() as patch:
            full_after(patch, room)
            with pytest.raises(EvaluationError, match="No space left on device; what was written before is whole"):
                file.append(ROWS[2:])
        assert path.read_bytes().endswith(b"\n")
        kept = list(read_lines(path))
        assert kept == ROWS[: len(kept)] and len(kept) >= 2
        file.append(ROWS[len(kept) :])
    assert list(read_lines(path)) == ROWS


def test_limit_of_the_kernel_leaves_whole_lines(tmp_path):
    path, (soft, hard) = tmp_path / "a.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with LineFile(path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            with pytest.raises(EvaluationError, match="File too large"):
                file.append(ROWS * 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = list(read_lines(path))
    assert 3 < len(kept) < 20 and kept == ROWS[: len(kept)] and path.stat().st_size <= 500


def test_the_plain_way_leaves_half_a_line(tmp_path, monkeypatch):
    """What the tests above would see of a writer that does not cut."""
    path = tmp_path / "a.jsonl"
    full_after(monkeypatch, 120)
    with pytest.raises(OSError, match="No space"), path.open("wb", buffering=0) as file:
        data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        while data:
            data = data[files.os.write(file.fileno(), data) :]
    assert not path.read_bytes().endswith(b"\n")


def test_two_writers(tmp_path):
    with LineFile(tmp_path / "a.jsonl"), pytest.raises(EvaluationError, match="being written by another evaluation"):
        LineFile(tmp_path / "a.jsonl")
    LineFile(tmp_path / "a.jsonl").close()


def test_damaged_lines_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\nnonsense\n')
    with pytest.raises(EvaluationError, match=r"a\.jsonl, line 2 is damaged"):
        list(read_lines(path))
    path.write_text("[1]\n")
    with pytest.raises(EvaluationError, match=r"line 1 is damaged \(it is not an object"):
        list(read_lines(path))


def test_no_folder(tmp_path):
    with pytest.raises(EvaluationError, match="No such file or directory; nothing was written"):
        LineFile(tmp_path / "no" / "a.jsonl")


def test_json_is_the_old_or_the_new(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"a": 1})
    resource_limit, (soft, hard) = 200, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource_limit, hard))
    try:
        with pytest.raises(EvaluationError, match="the file was left as it was"):
            write_json(path, {"a": "x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]
