"""Columns of a run against those of the table, while other batches add columns."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome

from penstock.errors import SchemaMoved, TableError
from penstock.ledger import Ledger
from penstock.pipeline.spark.table_schema import Agree, Evolution, agreed, agreement
from penstock.sinks.iceberg.columns import check_names
from penstock.sinks.schema import decode, encode

ID, X, Y = pa.field("id", pa.int64()), pa.field("x", pa.int64()), pa.field("y", pa.string())


@dataclass
class NewTable:
    """The part of a sink that is asked while nothing is published."""

    uri: str = "file:///lake/clicks"

    def load(self) -> None:
        return None


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Return a ledger in which a batch has added the column x to a table of ids."""
    with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as opened:
        opened.ensure_pipeline(PIPELINE)
        harness = LedgerHarness(opened)
        schema = encode(pa.schema([ID, X]))
        opened.commit(outcome(harness.claim(candidates("a")), new_schema=schema, added_columns={"x": "BIGINT"}))
        yield opened


@pytest.fixture
def evolution(ledger: Ledger) -> Evolution:
    return Evolution(ledger=ledger, sink=NewTable(), pipeline=PIPELINE)  # type: ignore[arg-type] # see `NewTable`


@pytest.fixture
def agree(ledger: Ledger) -> Agree:
    return partial(agreement, ledger, NewTable(), PIPELINE)  # type: ignore[arg-type] # see `NewTable`


def test_a_batch_without_values_for_an_added_column_may_lack_it(agree: Agree) -> None:
    found = agree(pa.schema([ID, Y]))
    assert (found.schema.names, found.schema_id) == (["id", "y"], 1)
    assert found.new_schema is not None
    assert decode(found.new_schema).names == ["id", "x", "y"]


def test_other_columns_of_the_table_may_not_be_missing(agree: Agree) -> None:
    with pytest.raises(TableError, match="column id"):
        agree(pa.schema([X]))


def test_a_run_that_began_before_another_type_of_its_column_won_is_repeated(agree: Agree, evolution: Evolution) -> None:
    text = pa.schema([ID, X.with_type(pa.string())])
    with pytest.raises(SchemaMoved, match="another batch added columns"):
        agreed(agree, evolution, text, added={"x": "STRING"})
    with pytest.raises(TableError, match="column x"):  # it knew the column, so a transform has changed it
        agreed(agree, evolution, text, added={"x": "BIGINT"})


def test_a_run_that_began_before_another_spelling_won_is_repeated(agree: Agree, evolution: Evolution) -> None:
    with pytest.raises(SchemaMoved):
        agreed(agree, evolution, pa.schema([ID, X.with_name("X")]), added={"X": "BIGINT"})


def test_the_same_column_from_two_batches_is_no_change(agree: Agree, evolution: Evolution) -> None:
    assert agreed(agree, evolution, pa.schema([ID, X]), added={"x": "BIGINT"}).new_schema is None
    assert evolution.added() == {"x": "BIGINT"}
    assert evolution.table() == pa.schema([ID, X])


@dataclass
class NewIcebergTable(NewTable):
    """A table of a format that checks columns."""

    def check_columns(self, schema: pa.Schema) -> None:
        check_names(schema, table=self.uri)


@pytest.mark.parametrize("is_first", [True, False])
def test_columns_that_the_tables_format_cannot_have_are_refused_before_a_run(
    ledger: Ledger, tmp_path: Path, is_first: bool
) -> None:
    parts = pa.field("y", pa.struct([("b", pa.int64())]))
    with closing(Ledger.open(f"sqlite:///{tmp_path}/new.db")) as empty:
        used = empty if is_first else ledger
        with pytest.raises(TableError, match=r"two columns or parts of columns with the name y\.b"):
            agreement(used, NewIcebergTable(), PIPELINE, pa.schema([ID, X, parts, pa.field("y.b", pa.int64())]))  # type: ignore[arg-type] # see `NewTable`
