"""The paths of tables and of their data."""

import re
from pathlib import Path

import pytest

from penstock.app.paths import find_table, table_paths
from penstock.errors import UsageError
from penstock.sinks.checks import mark_table
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles


def test_the_pipeline_is_named_after_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert table_paths(tmp_path / "link").pipeline == table_paths(f"file://{tmp_path}/real").pipeline
    assert table_paths(tmp_path / "real").quarantine == LocalFiles(tmp_path.resolve() / "real_quarantine")


def test_each_source_of_a_table_has_a_queue(tmp_path: Path) -> None:
    paths = table_paths(tmp_path / "table")
    assert paths.queue(tmp_path / "a") != paths.queue(tmp_path / "b")
    assert paths.queue(tmp_path / "a") == table_paths(tmp_path / "table").queue(tmp_path / "a")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hdfs://x/y", "hdfs://x/y is neither a local folder nor s3://BUCKET/PREFIX"),
        ("S3://bucket/table", "neither a local folder nor"),
        ("s3://", "not an S3 address: write s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/table", "not an S3 address"),
        ("s3://bucket", "cannot be the whole bucket s3://bucket; give a prefix in it"),
        ("s3://bucket//", "cannot be the whole bucket s3://bucket"),
        ("s3:/lake/clicks", "The table s3:/lake/clicks is neither a local folder nor s3://BUCKET/PREFIX: write one"),
        (Path("s3://lake/clicks"), "The table s3:/lake/clicks is neither"),
        ("s3//lake/clicks", "neither a local folder nor"),
        ("s3:lake", "neither a local folder nor"),
        ("arn:aws:s3:::lake/clicks", "neither a local folder nor"),
        ("file:/lake/clicks", "neither a local folder nor"),
        ("", "The table has no address; give a folder, or s3://BUCKET/PREFIX."),
    ],
)
def test_an_address_that_is_neither_a_folder_nor_in_s3_is_refused(address: str | Path, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        table_paths(address)


@pytest.mark.parametrize("state", ["s3://lake/state", "s3:/lake/state", "arn:aws:s3:::lake", "redis://here"])
@pytest.mark.parametrize("table", ["clicks", "s3://lake/clicks"])
def test_a_data_directory_that_is_no_local_folder_is_refused(table: str, state: str) -> None:
    with pytest.raises(UsageError, match=f"The state {state} is not a folder on this host"):
        table_paths(table, state)


@pytest.mark.parametrize("name", ["./s3:clicks", "a:b", "s3", "clicks.d/s3:/x"])
def test_a_folder_may_have_any_name_that_is_no_address(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_paths(name, name).table.uri == table_paths(tmp_path / name).table.uri


def test_a_table_in_s3_has_its_quarantine_beside_it_and_its_data_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    aws = Aws(region="eu-north-1")
    paths = table_paths("s3://lake/raw/clicks/", aws=aws)
    assert (paths.pipeline, paths.aws) == ("s3://lake/raw/clicks", aws)
    assert (paths.table.uri, paths.quarantine.uri) == ("s3://lake/raw/clicks", "s3://lake/raw/clicks_quarantine")
    assert paths.work.uri == "s3://lake/raw/clicks/_penstock/work"
    assert paths.state.parent == tmp_path / "penstock"
    assert paths.state == table_paths("s3://lake/raw/clicks").state
    assert paths.state != table_paths("s3://lake/other/clicks").state
    assert table_paths("s3://lake/raw/clicks", tmp_path / "mine").state == tmp_path / "mine"


def test_a_table_is_found_in_the_current_folder_or_as_the_only_one_below(tmp_path: Path) -> None:
    state = tmp_path / "clicks" / "_penstock"
    state.mkdir(parents=True)
    (state / "ledger.db").touch()
    assert find_table(None, None, here=tmp_path).table == LocalFiles((tmp_path / "clicks").resolve())
    assert find_table(None, None, here=tmp_path / "clicks").table == LocalFiles((tmp_path / "clicks").resolve())
    (tmp_path / "orders" / "_penstock").mkdir(parents=True)
    with pytest.raises(UsageError, match="clicks, orders"):
        find_table(None, None, here=tmp_path)


@pytest.mark.parametrize("state", [None, "elsewhere"])
def test_a_quarantine_with_nothing_but_a_tables_mark_is_not_found_as_a_table(tmp_path: Path, state: str | None) -> None:
    data = tmp_path / (state or "clicks/_penstock")
    for folder in (tmp_path / "clicks" / "_penstock", data):
        folder.mkdir(parents=True, exist_ok=True)
    (data / "ledger.db").touch()
    (tmp_path / "clicks" / "_penstock" / "work").mkdir()
    mark_table(LocalFiles(tmp_path / "clicks"))
    mark_table(LocalFiles(tmp_path / "clicks_quarantine"))
    found = find_table(None, None if state is None else str(data), here=tmp_path)
    assert found.table == LocalFiles((tmp_path / "clicks").resolve())


def test_a_folder_without_penstock_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data directory of Penstock"):
        find_table(str(tmp_path / "nothing"), None, here=tmp_path)
