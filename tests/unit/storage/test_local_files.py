"""Files in a folder: several writers of one file at once."""

import os
from pathlib import Path

import pytest

from penstock.storage.local import LocalFiles


def test_the_last_of_two_writers_of_one_file_wins_and_neither_mixes_with_the_other(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with files.open_output("log/hint") as first:
        first.write(b"first, which is longer")
        with files.open_output("log/hint") as second:
            second.write(b"second")
        assert files.read("log/hint") == b"second"
    assert files.read("log/hint") == b"first, which is longer"
    assert [info.path for info in files.list()] == ["log/hint"]


def test_writers_in_containers_that_mount_one_folder_share_no_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes and main threads may have the same numbers."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("threading.get_ident", lambda: 1)
    here, there = LocalFiles(tmp_path), LocalFiles(tmp_path)
    fsync = os.fsync

    def write_there(_descriptor: int) -> None:
        monkeypatch.setattr("os.fsync", fsync)
        assert there.write_new("log/1.json", b"there")

    monkeypatch.setattr("os.fsync", write_there)
    assert not here.write_new("log/1.json", b"here, which is longer")
    assert here.read("log/1.json") == b"there"
    assert [info.path for info in here.list()] == ["log/1.json"]
