"""A new table format is one package and one line of registration: nothing else of Penstock changes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.conformance.sinks.kit import KITS
from tests.conformance.sinks.toy_sink import TOY, ToySink, ToyTable

from penstock import App, DeltaSink, ObjectSource, Pipeline
from penstock.app.paths import TablePaths, declared_table_paths, find_table, table_paths
from penstock.app.scope import ScopeRequest, find_scope
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import ConfigurationError, TableError, UsageError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.steps import no_probe
from penstock.operations.doctor.checks import SparkNeed, machine_checks
from penstock.operations.doctor.findings import FindingLevel
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.operations.objects.importing import target_of
from penstock.operations.tables.upkeep import MaintainedPipeline
from penstock.pipeline.extra import require_spark
from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.declaration import SinkDeclaration
from penstock.sinks.registry import (
    DEFAULT_SCHEME,
    SINKS,
    SinkPackage,
    address_in,
    is_installed,
    split_address,
    untested,
)
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


@pytest.fixture
def table_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TablePaths:
    monkeypatch.setitem(SINKS, "toy", TOY)
    return table_paths(f"toy:{tmp_path}/clicks")


@pytest.fixture
def maker(table_location: TablePaths) -> Iterator[BatchMaker]:
    ledger = Ledger.open("sqlite://")
    yield BatchMaker(root=Path(str(table_location.table)), ledger=ledger, pipeline=table_location.pipeline)
    ledger.close()


def test_every_registered_format_is_tested_by_the_suite() -> None:
    assert SINKS.keys() <= KITS.keys()


def test_batches_are_published_to_a_new_format_in_order_and_once(table_location: TablePaths, maker: BatchMaker) -> None:
    tables = Tables(table_location, maker.ledger, bus=Bus())
    maker.batch([1, 2])
    maker.batch([3])
    assert tables.unpublished() == 2
    tables.publish()
    tables.publish()
    table = tables.rows.load()
    assert table is not None
    assert (type(tables.rows), table.position.seq, table.rows()) == (ToySink, 2, 3)
    assert sorted(table.dataset().to_table()["id"].to_pylist()) == [1, 2, 3]
    assert (tables.unpublished(), tables.shortfalls(), tables.retained_to(0, 2)) == (0, [], 2)
    assert tables.collect_garbage(dry_run=False).files == 0


def test_maintenance_of_a_format_without_history_is_refused_or_does_nothing(
    table_location: TablePaths, maker: BatchMaker
) -> None:
    maker.batch([1])
    kept = MaintainedPipeline(paths=table_location, ledger=maker.ledger, bus=Bus(), probe=no_probe)
    assert kept.publish() == 1
    assert kept.vacuum(retention_hours=None, dry_run=False) == {}
    with pytest.raises(TableError, match="keeps no earlier versions, so its files cannot be merged"):
        compact(kept.sinks[0], clock=FakeClock())
    with pytest.raises(TableError, match="keeps no earlier versions, so its ledger cannot be repaired"):
        kept.repairer(adopt=False).find()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("toy:/lake/a", ("toy", "/lake/a")),
        ("toy:s3://lake/a", ("toy", "s3://lake/a")),
        ("toy:a", ("toy", "a")),
        ("toy:./a", ("toy", "./a")),
        ("toy:../a", ("toy", "../a")),
        ("toy:~/a", ("toy", "~/a")),
        ("toy:file:///lake/a", ("toy", "file:///lake/a")),
        ("toy:./c:/a", ("toy", "./c:/a")),
        ("delta:/lake/a", (DEFAULT_SCHEME, "/lake/a")),
        ("delta:s3://lake/a", (DEFAULT_SCHEME, "s3://lake/a")),
        ("delta:toy:a", (DEFAULT_SCHEME, "toy:a")),
        # without a scheme
        ("s3://lake/unheard:/a", (DEFAULT_SCHEME, "s3://lake/unheard:/a")),
        ("file:///lake/a", (DEFAULT_SCHEME, "file:///lake/a")),
        ("s3a://lake/a", (DEFAULT_SCHEME, "s3a://lake/a")),
        ("/lake/toy:a", (DEFAULT_SCHEME, "/lake/toy:a")),
        ("./toy:a", (DEFAULT_SCHEME, "./toy:a")),
        ("./unheard:/a", (DEFAULT_SCHEME, "./unheard:/a")),
        ("unheard:a", (DEFAULT_SCHEME, "unheard:a")),
        ("2026:a", (DEFAULT_SCHEME, "2026:a")),
        ("toy+/a", (DEFAULT_SCHEME, "toy+/a")),
    ],
)
@pytest.mark.usefixtures("table_location")
def test_a_scheme_is_split_from_an_address_of_its_exact_form(address: str, expected: tuple[str, str]) -> None:
    assert split_address(address) == expected
    assert split_address(address_in(*expected)) == expected


@pytest.mark.parametrize(
    "address",
    [
        "unheard:/lake/a",
        "unheard:s3://lake/a",
        "unheard:./a",
        "unheard:../a",
        "unheard:~/a",
        "x:s3:/a",
    ],
)
@pytest.mark.usefixtures("table_location")
def test_a_scheme_of_no_format_is_refused(address: str) -> None:
    expected = (
        f"The table {address} is in no known format, as {address.partition(':')[0]} is not one of {', '.join(SINKS)}; "
        "write ./ before a folder that has such a name."
    )
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        table_paths(address)
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        DeltaSink(address)


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("Delta:/lake/a", "delta:/lake/a"),
        ("icebreg:tables/a", "iceberg:tables/a"),
        ("Iceberg:a", "iceberg:a"),
        ("detla:a", "delta:a"),
        ("iceburg:s3://lake/a", "iceberg:s3://lake/a"),
    ],
)
def test_a_misspelt_scheme_is_refused_with_the_right_one(address: str, meant: str) -> None:
    expected = rf"^The table {address} is in no known format, .*; write {meant}, or \./ before a folder"
    with pytest.raises(UsageError, match=expected):
        table_paths(address)


@pytest.mark.parametrize("address", ["data:a", "s3:/lake/a", "./icebreg:a"])
def test_a_name_that_resembles_no_format_is_a_place(address: str) -> None:
    assert split_address(address) == (DEFAULT_SCHEME, address)


@pytest.mark.parametrize("columns", [None, [None], [1], 5, [("day",)]])
@pytest.mark.parametrize("option", ["partition_by", "order_by"])
def test_columns_that_are_no_names_are_refused(option: str, columns: Any) -> None:
    with pytest.raises(UsageError, match=f"^{option}=.* is no list of columns; write their names"):
        DeltaSink("clicks", **{option: columns})


@pytest.mark.parametrize("address", ["s3:/lake/a", "file:/lake/a"])
def test_a_typo_in_the_scheme_of_a_place_is_reported_as_such(address: str) -> None:
    with pytest.raises(UsageError, match="is neither a local folder nor s3://BUCKET/PREFIX"):
        table_paths(address)


def test_the_default_format_may_be_named(tmp_path: Path) -> None:
    assert table_paths(f"delta:{tmp_path}/clicks") == table_paths(tmp_path / "clicks")
    assert DeltaSink(f"delta:{tmp_path}/clicks").address == f"{tmp_path}/clicks"


@pytest.mark.usefixtures("table_location")
def test_a_relative_folder_of_a_format_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ToyTable("clicks").address == "toy:clicks"
    assert table_paths(ToyTable("clicks").address) == table_paths(ToyTable("toy:./clicks").address)
    assert table_paths(ToyTable("clicks").address) == table_paths(f"toy:{tmp_path}/clicks")


@pytest.mark.usefixtures("table_location")
def test_a_table_that_a_command_finds_has_the_format_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, table = tmp_path / "landing", tmp_path / "lake" / "clicks"
    source.mkdir()
    ingest(IngestRequest(source=str(source), table=f"toy:{table}", schema="id long"), stop=StopSignal())
    for named in (None, str(table), f"toy:{table}"):
        found = find_table(named, None, here=tmp_path)
        assert (found.scheme, str(found.table)) == ("toy", str(table))
    assert find_scope(ScopeRequest(), here=tmp_path).table_formats == ["toy"]
    error = f"The table {table} is in the format toy, not delta: write toy:{table}."
    with pytest.raises(UsageError, match=f"^{re.escape(error)}$"):
        find_table(f"delta:{table}", None, here=tmp_path)
    with pytest.raises(UsageError, match=f"^{re.escape(error)}$"):
        ingest(IngestRequest(source=str(source), table=str(table), schema="id long"), stop=StopSignal())
    monkeypatch.delitem(SINKS, "toy")
    with pytest.raises(UsageError, match=r"format toy, which is not registered; the formats: delta, iceberg\.$"):
        find_table(None, None, here=tmp_path)


@pytest.mark.parametrize(
    ("option", "text"), [("register", "glue:web.clicks"), ("catalog", "lake:web.clicks")], ids=["register", "catalog"]
)
@pytest.mark.usefixtures("table_location")
def test_a_format_without_catalogs_refuses_both_options(tmp_path: Path, option: str, text: str) -> None:
    (tmp_path / "landing").mkdir()
    request = IngestRequest(source=f"{tmp_path}/landing", table=f"toy:{tmp_path}/clicks", schema="id long")
    with pytest.raises(UsageError, match=f"in the format toy, which has no --{option}; leave it out"):
        ingest(replace(request, **{option: text}), stop=StopSignal())  # type: ignore[arg-type]  # both are texts


@pytest.mark.usefixtures("table_location")
def test_an_import_records_the_format_of_its_table_too(tmp_path: Path) -> None:
    with target_of(app=None, pipeline=None, table=f"toy:{tmp_path}/views", state=f"{tmp_path}/data"):
        pass
    assert find_table(f"{tmp_path}/views", f"{tmp_path}/data", here=tmp_path).scheme == "toy"
    other = target_of(app=None, pipeline=None, table=f"{tmp_path}/views", state=f"{tmp_path}/data")
    with pytest.raises(UsageError, match="is in the format toy, not delta"), other:
        pass


def test_the_default_format_is_not_recorded(tmp_path: Path) -> None:
    with target_of(app=None, pipeline=None, table=f"{tmp_path}/views", state=None):
        pass
    assert not (tmp_path / "views" / "_penstock" / "format").exists()
    assert find_table(None, None, here=tmp_path).scheme == DEFAULT_SCHEME


def test_a_format_is_installed_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed(DEFAULT_SCHEME)
    monkeypatch.setitem(SINKS, "toy", SinkPackage("m", "f", "no_such_library"))
    assert not is_installed("toy")


def declare(sink: SinkDeclaration, *, state: Path) -> Pipeline:
    app = App(settings=Settings.model_construct(data_dir=str(state)))
    source = ObjectSource(state / "landing", queue="clicks-files", schema="id long")
    return app.pipeline("clicks", source=source, sink=sink)


@pytest.mark.usefixtures("table_location")
def test_a_pipeline_is_declared_with_a_new_format(tmp_path: Path) -> None:
    declaration = declare(ToyTable(tmp_path / "clicks", partition_by=["day"]), state=tmp_path).declaration
    table_location = declared_table_paths(
        "clicks", declaration.sink.address, Settings.model_construct(data_dir=str(tmp_path))
    )
    tables = Tables(table_location, Ledger.open("sqlite://"), partition_by=None, bus=Bus())
    assert (table_location.scheme, str(table_location.table), declaration.sink.partition_by) == (
        "toy",
        f"{tmp_path}/clicks",
        ("day",),
    )
    assert isinstance(tables.rows, ToySink)
    assert isinstance(tables.quarantine, ToySink)


def test_a_declared_format_has_to_be_registered(tmp_path: Path) -> None:
    message = f"has a sink in the format toy, which is not registered; the formats: {', '.join(SINKS)}."
    with pytest.raises(UsageError, match=re.escape(message)):
        declare(ToyTable(tmp_path / "clicks"), state=tmp_path)


@pytest.mark.usefixtures("table_location")
def test_errors_name_the_class_of_each_format(tmp_path: Path) -> None:
    classes = [f"sink={package.declaration}(...)" for package in SINKS.values()]
    assert {"sink=DeltaSink(...)", "sink=ToyTable(...)"} <= {*classes}
    with pytest.raises(UsageError, match=f"{re.escape(' or '.join(classes))}\\.$"):
        declare("clicks", state=tmp_path)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(UsageError, match="in the format toy, and DeltaSink declares one in the format delta"):
        DeltaSink(f"toy:{tmp_path}/clicks")
    with pytest.raises(UsageError, match="in the format delta, and ToyTable declares one in the format toy"):
        ToyTable(f"delta:{tmp_path}/clicks")
    with pytest.raises(UsageError, match="partitioned by day more than once"):
        ToyTable(tmp_path / "clicks", partition_by=["day", "day"])


def test_a_pipeline_requires_the_packages_of_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SINKS, "toy", replace(TOY, requires="no_such_library", extra="toy", tested=((1,), (2,))))
    require_spark(DEFAULT_SCHEME)
    with pytest.raises(ConfigurationError, match=r"and no_such_library cannot be found here: .*'penstock\[toy\]'"):
        require_spark("toy")
    assert untested("toy", "1.9") is None
    assert untested("toy", "2.0") == "no_such_library 2.0 is outside the range that Penstock is tested with, >=1,<2"


@pytest.mark.usefixtures("table_location")
def test_the_doctor_checks_the_library_of_the_format() -> None:
    found = next(
        one for one in machine_checks({}, spark=SparkNeed.NEEDED, formats=["toy"]) if one.check == "spark extra"
    )
    assert found.level is FindingLevel.OK
    assert "pyarrow" in found.found
    assert "deltalake" not in found.found
