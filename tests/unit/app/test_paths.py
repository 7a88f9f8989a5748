"""The paths of tables and of their data."""

import re
from pathlib import Path

import pytest

from penstock.app.paths import find_table, table_paths
from penstock.errors import UsageError
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles


def test_the_pipeline_is_named_after_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert table_paths(tmp_path / "link").pipeline == table_paths(f"file://{tmp_path}/real").pipeline
    assert table_paths(tmp_path / "real").quarantine == LocalFiles(tmp_path.resolve() / "real_quarantine")


def test_two_sources_of_one_table_have_two_queues(tmp_path: Path) -> None:
    where = table_paths(tmp_path / "table")
    assert where.queue(tmp_path / "a") != where.queue(tmp_path / "b")
    assert where.queue(tmp_path / "a") == table_paths(tmp_path / "table").queue(tmp_path / "a")


@pytest.mark.parametrize(
    ("address", "words"),
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
def test_an_address_that_is_neither_a_folder_nor_in_s3_is_refused(address: str | Path, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        table_paths(address)


@pytest.mark.parametrize("state", ["s3://lake/state", "s3:/lake/state", "arn:aws:s3:::lake", "redis://here"])
@pytest.mark.parametrize("table", ["clicks", "s3://lake/clicks"])
def test_state_is_always_a_folder_of_this_host(table: str, state: str) -> None:
    with pytest.raises(UsageError, match=f"The state {state} is not a folder on this host"):
        table_paths(table, state)


@pytest.mark.parametrize("name", ["./s3:clicks", "a:b", "s3", "clicks.d/s3:/x"])
def test_a_folder_may_have_any_other_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_paths(name, name).table.uri == table_paths(tmp_path / name).table.uri


def test_a_table_in_s3_has_its_quarantine_beside_it_and_its_state_with_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    aws = Aws(region="eu-north-1")
    where = table_paths("s3://lake/raw/clicks/", aws=aws)
    assert (where.pipeline, where.aws) == ("s3://lake/raw/clicks", aws)
    assert (where.table.uri, where.quarantine.uri) == ("s3://lake/raw/clicks", "s3://lake/raw/clicks_quarantine")
    assert where.work.uri == "s3://lake/raw/clicks/_penstock/work"
    assert where.state.parent == tmp_path / "penstock"
    assert where.state == table_paths("s3://lake/raw/clicks").state
    assert where.state != table_paths("s3://lake/other/clicks").state
    assert table_paths("s3://lake/raw/clicks", tmp_path / "mine").state == tmp_path / "mine"


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
