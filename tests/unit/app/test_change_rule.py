"""The rule for objects that change: as given, or as the columns of the table allow."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome

from penstock import App, DeltaSink, ObjectSource
from penstock.app.pipelines.on_change import ChangeRule
from penstock.app.sources import source_at
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import OnChange
from penstock.operations.ingest.pipeline import IngestRequest, check
from penstock.sinks.schema import encode
from penstock.storage.aws import Aws

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
        ({"on_change": "merge"}, "--on-change merge is unknown; write one of add, replace, refuse"),
        (
            {"on_change": "replace", "provenance": False},
            "leave out --no-provenance, or write --on-change add or refuse",
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
    with pytest.raises(UsageError, match="on_change='merge'; write one of add, replace, refuse, or leave it out"):
        ObjectSource("in", queue="q", schema="id long", on_change=unknown)


def test_a_pipeline_without_provenance_cannot_replace() -> None:
    app, sink = App(), DeltaSink("t")
    with pytest.raises(UsageError, match="leave out provenance=False, or write on_change='add' or 'refuse'"):
        app.pipeline(
            "clicks",
            source=ObjectSource("in", queue="q", schema="id long", on_change="replace"),
            sink=sink,
            provenance=False,
        )
    app.pipeline("c", source=ObjectSource("in", queue="q", schema="id long"), sink=sink, provenance=False)
