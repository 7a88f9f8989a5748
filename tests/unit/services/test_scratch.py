import os
import tempfile
from pathlib import Path

import pytest
from tests.services.scratch import write_to_memory


@pytest.fixture(autouse=True)
def no_temporary_folder_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)


def test_temporary_files_go_to_memory_with_enough_room(tmp_path: Path) -> None:
    assert write_to_memory(tmp_path, free_bytes_min=1)
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert Path(tempfile.gettempdir()) == tmp_path


def test_a_small_or_missing_folder_is_not_used(tmp_path: Path) -> None:
    assert not write_to_memory(tmp_path, free_bytes_min=1024**6)
    assert not write_to_memory(tmp_path / "none", free_bytes_min=1)
    assert "TMPDIR" not in os.environ


def test_a_folder_mounted_noexec_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Status:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda _: Status)
    assert not write_to_memory(tmp_path, free_bytes_min=1)


def test_a_configured_temporary_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert not write_to_memory(tmp_path, free_bytes_min=1)
    assert os.environ["TMPDIR"] == "/var/tmp"
