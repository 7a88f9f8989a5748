import os
import tempfile
from pathlib import Path

import pytest
from tests.services.scratch import write_to_memory


@pytest.fixture(autouse=True)
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)


def test_temporary_files_go_where_there_is_room(tmp_path: Path) -> None:
    assert write_to_memory(tmp_path, free_bytes_min=1)
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert Path(tempfile.gettempdir()) == tmp_path


def test_a_small_place_or_none_is_left_alone(tmp_path: Path) -> None:
    assert not write_to_memory(tmp_path, free_bytes_min=1024**6)
    assert not write_to_memory(tmp_path / "none", free_bytes_min=1)
    assert "TMPDIR" not in os.environ


def test_a_place_from_which_nothing_is_run_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Status:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda _: Status)
    assert not write_to_memory(tmp_path, free_bytes_min=1)


def test_what_somebody_chose_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert not write_to_memory(tmp_path, free_bytes_min=1)
    assert os.environ["TMPDIR"] == "/var/tmp"
