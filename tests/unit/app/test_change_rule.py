"""The rule for objects that change: as given, or as the columns of the table allow."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome

from penstock import App, DeltaSink, Merge, ObjectSource
from penstock.app.pipelines.declaration import GROWING, Change
from penstock.app.pipelines.on_change import ChangeRule
from penstock.app.sources import source_at
from penstock.errors import TableError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import OnChange
from penstock.operations.ingest.pipeline import IngestRequest, check
from penstock.pipeline.spark.source.formats import FORMATS
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.schema import encode
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

ID, OBJECT = pa.field("id", pa.int64()), pa.field("_object", pa.string())


@dataclass
class TableOf:
    """The part of a sink that is asked. ``schema`` None: there is no table."""

    schema: pa.Schema | None = None

    def load(self) -> Any:
        return None if self.schema is None else self


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as opened:
        opened.ensure_pipeline(PIPELINE)
        yield opened


def rule(
    ledger: Ledger, *, given: OnChange | None = None, provenance: bool = True, table: pa.Schema | None = None
) -> OnChange:
    sink: Any = TableOf(table)
    return ChangeRule(given=given, provenance=provenance, ledger=ledger, sink=sink, pipeline=PIPELINE).current()


def test_rows_are_replaced_by_default_if_they_name_their_objects(ledger: Ledger) -> None:
    assert rule(ledger, table=pa.schema([ID, OBJECT])) is OnChange.REPLACE
    assert rule(ledger, table=pa.schema([ID])) is OnChange.ADD, "its transform drops the column"
    number = pa.field("_object", pa.int64())
    assert rule(ledger, table=pa.schema([ID, number])) is OnChange.ADD, "its transform makes a number of it"
    assert rule(ledger, provenance=False) is OnChange.ADD


def test_before_the_first_batch_rows_are_to_be_replaced_until_its_columns_are_known(ledger: Ledger) -> None:
    assert rule(ledger) is OnChange.REPLACE
    committed = outcome(LedgerHarness(ledger).claim(candidates("a")), new_schema=encode(pa.schema([ID])))
    ledger.commit(committed)
    assert rule(ledger) is OnChange.ADD, "it is committed, and its table is not published yet"


@pytest.mark.parametrize("given", list(OnChange))
def test_a_given_rule_holds_whatever_the_columns(ledger: Ledger, given: OnChange) -> None:
    assert rule(ledger, given=given, table=pa.schema([ID])) is given
    assert rule(ledger, given=given, table=pa.schema([ID, OBJECT])) is given


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_change": "merge"}, "--on-change merge is unknown; write one of add, replace, tail, refuse"),
        (
            {"on_change": "replace", "provenance": False},
            "leave out --no-provenance, or write --on-change add or refuse",
        ),
        ({"on_change": "tail", "provenance": False}, "--on-change tail and --no-provenance were given"),
        (
            {"on_change": "tail", "format": "parquet"},
            "the format is parquet: appended lines can be read alone only in jsonl, csv, text",
        ),
        (
            {"on_change": "tail", "format": "json", "schema": "id long"},
            "the format is json: appended lines can be read alone only in",
        ),
    ],
)
def test_an_ingest_that_cannot_replace_rows_is_refused_before_it_starts(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    request = IngestRequest(source=str(tmp_path), table="t", **options)
    with pytest.raises(UsageError, match=words):
        check(request, source_at(request.source, Aws()))


@pytest.mark.parametrize("given", ["add", "refuse", None])
def test_an_ingest_without_provenance_may_add_or_refuse(tmp_path: Path, given: str | None) -> None:
    request = IngestRequest(source=str(tmp_path), table="t", on_change=given, provenance=False)
    check(request, source_at(request.source, Aws()))


def test_a_source_with_an_unknown_rule_is_refused() -> None:
    unknown: Any = "merge"
    with pytest.raises(UsageError, match="on_change='merge'; write one of add, replace, tail, refuse, or leave it out"):
        ObjectSource("in", queue="q", schema="id long", on_change=unknown)


@pytest.mark.parametrize(
    "options",
    [{"format": "parquet", "schema": "id long"}, {"reader": check, "schema": "id long"}, {"format": "binary"}],
)
def test_a_source_whose_files_cannot_grow_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="appended lines can be read alone only in jsonl, csv, text"):
        ObjectSource("in", queue="q", on_change="tail", **options)
    ObjectSource("in", queue="q", on_change="tail", format="text")
    ObjectSource("in", queue="q", on_change="replace", **options)


def test_formats_of_sources_that_grow_are_those_of_the_reader() -> None:
    assert tuple(name for name, kind in FORMATS.items() if kind.can_grow) == GROWING


@pytest.mark.parametrize("on_change", ["replace", "tail"])
def test_a_pipeline_without_provenance_cannot_replace(on_change: Change) -> None:
    app, sink = App(), DeltaSink("t")
    with pytest.raises(UsageError, match="leave out provenance=False, or write on_change='add' or 'refuse'"):
        app.pipeline(
            "clicks",
            source=ObjectSource("in", queue="q", schema="id long", on_change=on_change),
            sink=sink,
            provenance=False,
        )
    app.pipeline("c", source=ObjectSource("in", queue="q", schema="id long"), sink=sink, provenance=False)


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_rows_are_not_replaced_in_a_table_whose_settings_forbid_it(
    tmp_path: Path, ledger: Ledger, setting: str
) -> None:
    DeltaTable.create(str(tmp_path / "t"), pa.schema([ID, OBJECT]), configuration={setting: "true"})
    sink = DeltaTableSink(LocalFiles(tmp_path / "t"), pipeline=PIPELINE)

    def current(given: OnChange | None, *, provenance: bool = True) -> OnChange:
        rule = ChangeRule(given=given, provenance=provenance, ledger=ledger, sink=sink, pipeline=PIPELINE)
        return rule.current()

    for given in (OnChange.REPLACE, None):
        with pytest.raises(TableError, match=f"{setting}=true.*UNSET TBLPROPERTIES.*not merged.*on_change='add'"):
            current(given)
    assert current(OnChange.ADD) is OnChange.ADD
    assert current(OnChange.REFUSE) is OnChange.REFUSE
    assert current(None, provenance=False) is OnChange.ADD
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({setting: "false"})
    assert current(None) is OnChange.REPLACE


def _declare(app: App, name: str, table: str, **options: Any) -> None:
    provenance = options.pop("provenance", True)
    source = ObjectSource("in", queue=name, schema="id long", **options)
    app.pipeline(name, source=source, sink=DeltaSink(table), provenance=provenance)


@pytest.mark.parametrize("table", ["t", "./t/", "delta:t", "a/../t"])
@pytest.mark.parametrize(
    ("one", "other", "replacing"),
    [({}, {}, "one and other"), ({"on_change": "add"}, {}, "other"), ({"on_change": "replace"}, {}, "one and other")],
)
def test_two_pipelines_with_one_table_cannot_replace_rows(
    table: str, one: dict[str, Any], other: dict[str, Any], replacing: str
) -> None:
    app = App()
    _declare(app, "one", "t", **one)
    with pytest.raises(UsageError, match=f"and {replacing} would replace rows there.*on_change='add'"):
        _declare(app, "other", table, **other)
    _declare(app, "third", "t2")
    assert [service.name for service in app.services] == ["one", "third"]


def test_a_merge_in_the_table_of_another_pipeline_needs_a_table_of_its_own() -> None:
    app = App()
    _declare(app, "one", "t", on_change="add")
    source = ObjectSource("in", queue="other", schema="id long, at long")
    with pytest.raises(UsageError, match=r"and other would replace .* made them\. Give each pipeline its own table"):
        app.pipeline("other", source=source, sink=DeltaSink("t"), merge=Merge(key="id", order_by="at"))


def test_two_pipelines_with_one_table_may_add_or_refuse() -> None:
    app = App()
    _declare(app, "one", "t", on_change="add")
    _declare(app, "other", "t", on_change="refuse")
    _declare(app, "third", "t", provenance=False)


def test_tables_in_a_bucket_differ_by_their_addresses() -> None:
    app = App()
    _declare(app, "one", "s3://lake/t")
    _declare(app, "other", "s3://lake/T")
    with pytest.raises(UsageError, match="give each pipeline its own table"):
        _declare(app, "third", "s3a://lake/t/")
