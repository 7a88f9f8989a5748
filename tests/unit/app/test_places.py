"""Where tables and their state lie."""

from pathlib import Path

import pytest

from penstock.app.places import find_table, places
from penstock.errors import UsageError
from penstock.storage.local_files import LocalFiles


def test_the_pipeline_is_named_after_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert places(tmp_path / "link").pipeline == places(f"file://{tmp_path}/real").pipeline
    assert places(tmp_path / "real").quarantine == LocalFiles(tmp_path.resolve() / "real_quarantine")


def test_two_sources_of_one_table_have_two_queues(tmp_path: Path) -> None:
    where = places(tmp_path / "table")
    assert where.queue(tmp_path / "a") != where.queue(tmp_path / "b")
    assert where.queue(tmp_path / "a") == places(tmp_path / "table").queue(tmp_path / "a")


@pytest.mark.parametrize("address", ["s3://bucket/table", "hdfs://x/y"])
def test_an_address_that_is_no_local_path_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="local"):
        places(address)


def test_a_table_is_found_here_or_as_the_only_one_below(tmp_path: Path) -> None:
    state = tmp_path / "clicks" / "_penstock"
    state.mkdir(parents=True)
    (state / "ledger.db").touch()
    assert find_table(None, None, here=tmp_path).table == LocalFiles((tmp_path / "clicks").resolve())
    assert find_table(None, None, here=tmp_path / "clicks").table == LocalFiles((tmp_path / "clicks").resolve())
    (tmp_path / "orders" / "_penstock").mkdir(parents=True)
    with pytest.raises(UsageError, match="clicks, orders"):
        find_table(None, None, here=tmp_path)


def test_a_table_without_a_state_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Penstock state"):
        find_table(str(tmp_path / "nothing"), None, here=tmp_path)
