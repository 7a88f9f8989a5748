"""Reads of many files in S3: several at once, in order, with a bound."""

import threading
from pathlib import Path
from typing import cast

import pytest

from penstock.pipeline.rewriting import READS_AT_ONCE, in_parallel
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles

DEADLINE_SECONDS = 60.0


class Remote:
    is_local = False


REMOTE = cast(Files, Remote())


def test_files_in_s3_are_read_several_at_once_and_their_results_stay_in_order() -> None:
    together = threading.Barrier(READS_AT_ONCE, timeout=DEADLINE_SECONDS)

    def work(number: int) -> int:
        together.wait()
        return -number

    items = range(2 * READS_AT_ONCE)
    assert in_parallel(REMOTE, work, items) == [-number for number in items]


def test_the_first_error_ends_it() -> None:
    started: list[int] = []

    def work(number: int) -> None:
        started.append(number)
        raise OSError("unreachable")

    with pytest.raises(OSError, match="unreachable"):
        in_parallel(REMOTE, work, range(10_000))
    assert len(started) < 10_000


def test_local_files_are_read_by_the_calling_thread(tmp_path: Path) -> None:
    found = in_parallel(LocalFiles(tmp_path), lambda _: threading.get_ident(), range(3))
    assert set(found) == {threading.get_ident()}
