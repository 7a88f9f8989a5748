"""Delta tables in data catalogs: registered once, with later columns, and never in place of another table.

Glue is moto's, and the Unity Catalog that of `tests.services.unity_stub`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.services.aws_server import AwsServer, aws_at
from tests.services.unity_stub import UnityStub, served

from penstock import DeltaSink
from penstock.app.catalogs import TableRegistration
from penstock.app.paths import table_paths
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.events import Bus, Event, TableNotRegistered, TableRegistered
from penstock.ledger import Ledger
from penstock.sinks.catalogs.catalog import CatalogEntry, CatalogError, Change
from penstock.sinks.catalogs.glue import GlueCatalog
from penstock.sinks.catalogs.name import CatalogName, catalog_name
from penstock.sinks.catalogs.registrar import RETRY_SECONDS
from penstock.sinks.catalogs.unity import UnityCatalog
from penstock.testing.fake_clock import FakeClock

LOCATION = "s3://lake/clicks"
NAME = catalog_name("glue:web.clicks", table=LOCATION)
UNITY_NAME = catalog_name("unity:main.web.clicks", table=LOCATION)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Small", pa.int16()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("Name", pa.string()), ("age", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
WIDER = SCHEMA.append(pa.field("score", pa.float64()))


def entry(schema: pa.Schema = SCHEMA, location: str = LOCATION) -> CatalogEntry:
    return CatalogEntry(location=location, schema=schema)


# Names


@pytest.mark.parametrize(
    "text",
    ["web.clicks", "glue:clicks", "glue:web.", "glue:web.Clicks", "glue:a.b.c", "unity:web.clicks", "unity:a.b/c.d"],
)
def test_a_text_that_names_no_entry_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="catalog entry"):
        catalog_name(text, table=LOCATION)


def test_glue_takes_no_table_in_a_folder() -> None:
    with pytest.raises(UsageError, match="Glue is for tables in S3"):
        DeltaSink("tables/clicks", register="glue:web.clicks")


def test_a_unity_catalog_needs_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tables\.unity_url"):
        registration(tmp_path, "unity:main.web.clicks", Settings(), [])


# Glue


@pytest.fixture
def glue(moto: AwsServer) -> Any:
    client = moto.client("glue")
    client.create_database(DatabaseInput={"Name": "web"})
    return client


@pytest.fixture
def catalog(moto: AwsServer) -> GlueCatalog:
    return GlueCatalog(aws_at(moto.url))


def found(glue: Any) -> Mapping[str, Any]:
    table: Mapping[str, Any] = glue.get_table(DatabaseName="web", Name="clicks")["Table"]
    return table


def test_glue_lists_a_table_as_athena_and_spark_expect_it(glue: Any, catalog: GlueCatalog) -> None:
    assert catalog.register(NAME, entry()) is Change.CREATED
    table = found(glue)
    assert table["TableType"] == "EXTERNAL_TABLE"
    assert table["Parameters"]["spark.sql.sources.provider"] == "delta"
    assert table["StorageDescriptor"]["Location"] == "s3://lake/clicks/"
    assert table["StorageDescriptor"]["SerdeInfo"]["Parameters"] == {"path": "s3://lake/clicks/"}
    assert {column["Name"]: column["Type"] for column in table["StorageDescriptor"]["Columns"]} == {
        "id": "bigint",
        "small": "smallint",
        "ts": "timestamp",
        "local": "timestamp",
        "price": "decimal(9,2)",
        "tags": "array<string>",
        "who": "struct<name:string,age:int>",
        "counts": "map<string,bigint>",
    }


def test_registering_again_changes_nothing(glue: Any, catalog: GlueCatalog) -> None:
    catalog.register(NAME, entry())
    before = found(glue)
    assert catalog.register(NAME, entry()) is Change.NONE
    assert found(glue) == before


def test_added_columns_are_added_to_the_entry_and_the_rest_of_it_stays(glue: Any, catalog: GlueCatalog) -> None:
    catalog.register(NAME, entry())
    table = {name: found(glue)[name] for name in ("Name", "TableType", "Parameters", "StorageDescriptor")}
    table["Description"] = "clicks of the shop"
    table["StorageDescriptor"]["Columns"][0]["Comment"] = "the click"
    glue.update_table(DatabaseName="web", TableInput=table)
    assert catalog.register(NAME, entry(WIDER)) is Change.UPDATED
    after = found(glue)
    assert after["Description"] == "clicks of the shop"
    assert after["StorageDescriptor"]["Columns"][0] == {"Name": "id", "Type": "bigint", "Comment": "the click"}
    assert after["StorageDescriptor"]["Columns"][-1] == {"Name": "score", "Type": "double"}


def test_the_entry_of_another_table_is_never_replaced(glue: Any, catalog: GlueCatalog) -> None:
    catalog.register(NAME, entry(location="s3://lake/other"))
    with pytest.raises(CatalogError, match="is that of s3://lake/other/ and not of s3://lake/clicks"):
        catalog.register(NAME, entry())
    assert found(glue)["StorageDescriptor"]["Location"] == "s3://lake/other/"


def test_an_entry_that_is_no_delta_table_is_never_replaced(glue: Any, catalog: GlueCatalog) -> None:
    table = {"Name": "clicks", "StorageDescriptor": {"Location": LOCATION}, "Parameters": {"table_type": "ICEBERG"}}
    glue.create_table(DatabaseName="web", TableInput=table)
    with pytest.raises(CatalogError, match=r"not that of a Delta table \(it is ICEBERG\)"):
        catalog.register(NAME, entry())


def test_a_database_that_does_not_exist_is_named(moto: AwsServer, catalog: GlueCatalog) -> None:
    with pytest.raises(CatalogError, match="Glue has no database web"):
        catalog.register(NAME, entry())
    assert moto.client("glue").get_databases()["DatabaseList"] == []


# Unity Catalog


@pytest.fixture
def stub() -> UnityStub:
    return UnityStub()


@pytest.fixture
def unity_url(stub: UnityStub) -> Iterator[str]:
    with served(stub) as url:
        yield url


@pytest.fixture
def unity(stub: UnityStub, unity_url: str) -> UnityCatalog:
    return UnityCatalog(unity_url, stub.token)


def test_unity_lists_a_table_with_spark_types(unity: UnityCatalog, stub: UnityStub) -> None:
    assert unity.register(UNITY_NAME, entry()) is Change.CREATED
    table = stub.tables["main.web.clicks"]
    assert (table["table_type"], table["data_source_format"]) == ("EXTERNAL", "DELTA")
    assert table["storage_location"] == LOCATION
    columns = {column["name"]: (column["type_name"], column["type_text"]) for column in table["columns"]}
    assert columns == {
        "id": ("LONG", "bigint"),
        "Small": ("SHORT", "smallint"),
        "ts": ("TIMESTAMP", "timestamp"),
        "local": ("TIMESTAMP_NTZ", "timestamp_ntz"),
        "price": ("DECIMAL", "decimal(9,2)"),
        "tags": ("ARRAY", "array<string>"),
        "who": ("STRUCT", "struct<Name:string,age:int>"),
        "counts": ("MAP", "map<string,bigint>"),
    }
    assert json.loads(table["columns"][0]["type_json"])["type"] == "long"


def test_registering_in_unity_again_changes_nothing(unity: UnityCatalog, stub: UnityStub) -> None:
    unity.register(UNITY_NAME, entry())
    assert unity.register(UNITY_NAME, entry(WIDER)) is Change.NONE
    assert stub.requests == ["GET", "POST", "GET"]


def test_the_entry_of_another_table_in_unity_is_refused(unity: UnityCatalog) -> None:
    unity.register(UNITY_NAME, entry(location="s3://lake/other"))
    with pytest.raises(CatalogError, match="is that of s3://lake/other and not of s3://lake/clicks"):
        unity.register(UNITY_NAME, entry())


def test_a_schema_that_does_not_exist_is_named(unity: UnityCatalog) -> None:
    with pytest.raises(CatalogError, match=r"404: Schema not found: main\.elsewhere"):
        unity.register(CatalogName(scheme="unity", parts=("main", "elsewhere", "clicks")), entry())


def test_a_refused_token_is_never_in_the_message(unity_url: str) -> None:
    with pytest.raises(CatalogError, match=r"set tables\.unity_token") as refusal:
        UnityCatalog(unity_url, "wrong-token").register(UNITY_NAME, entry())
    assert "wrong-token" not in str(refusal.value)


def test_a_redirect_does_not_take_the_token_elsewhere(unity: UnityCatalog, stub: UnityStub) -> None:
    other = UnityStub()
    with served(other) as url:
        stub.redirect_to = url
        with pytest.raises(CatalogError, match="302"):
            unity.register(UNITY_NAME, entry())
    assert other.requests == []


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(CatalogError, match="does not respond as a Unity Catalog"):
        UnityCatalog("http://127.0.0.1:1", None).register(UNITY_NAME, entry())


# After publishing


def registration(
    folder: Path, register: str, settings: Settings, events: list[Event], clock: FakeClock | None = None
) -> tuple[TableRegistration, Tables, BatchMaker]:
    paths = table_paths(folder / "clicks")
    ledger = Ledger.open("sqlite://")
    bus = Bus(events.append)
    tables = Tables(paths, ledger, bus=bus)
    maker = BatchMaker(root=Path(str(paths.table)), ledger=ledger, pipeline=paths.pipeline)
    name = catalog_name(register, table=paths.table.uri)
    made = TableRegistration(tables, name, settings, pipeline=paths.pipeline, bus=bus, clock=clock or FakeClock())
    return made, tables, maker


@pytest.fixture
def settings(stub: UnityStub, unity_url: str) -> Settings:
    return Settings(tables_unity_url=unity_url, tables_unity_token=stub.token)


def committed(maker: BatchMaker, tables: Tables) -> None:
    attempt_id = maker.claim()
    maker.commit(attempt_id, maker.write(attempt_id, [1]))
    tables.publish()


def registrations(events: list[Event]) -> list[str]:
    return [event.change for event in events if isinstance(event, TableRegistered)]


def test_a_table_is_registered_once_it_is_published(tmp_path: Path, stub: UnityStub, settings: Settings) -> None:
    events: list[Event] = []
    made, tables, maker = registration(tmp_path, "unity:main.web.clicks", settings, events)
    assert made.register() == ()
    assert stub.requests == [], "without a table there is nothing to register"
    committed(maker, tables)
    assert made.register() == ()
    assert list(stub.tables) == ["main.web.clicks"]
    asked = len(stub.requests)
    committed(maker, tables)
    assert made.register() == ()
    assert len(stub.requests) == asked, "the catalog is asked again only after a change of the columns"
    assert registrations(events) == ["created"]


def test_a_failed_registration_is_reported_and_tried_again_later(
    tmp_path: Path, stub: UnityStub, settings: Settings
) -> None:
    events: list[Event] = []
    clock = FakeClock()
    made, tables, maker = registration(tmp_path, "unity:main.web.clicks", settings, events, clock)
    stub.token = "another"
    committed(maker, tables)
    [problem] = made.register()
    assert "set tables.unity_token" in problem
    assert [event.error for event in events if isinstance(event, TableNotRegistered)] == [problem]
    stub.token = "secret-token"
    assert made.register() == ()
    assert stub.tables == {}, "not before the wait is over"
    clock.advance(RETRY_SECONDS)
    assert made.register() == ()
    assert list(stub.tables) == ["main.web.clicks"]
    assert tables.rows.load() is not None, "the rows were published before"


def test_a_table_that_cannot_be_read_is_reported_like_a_catalog_that_cannot_be_reached(
    tmp_path: Path, stub: UnityStub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tables, maker = registration(tmp_path, "unity:main.web.clicks", settings, [])
    committed(maker, tables)

    def unavailable() -> None:
        raise TemporaryError("the store is not available")

    monkeypatch.setattr(tables.rows, "load", unavailable)
    assert made.register() == ("the store is not available",)
    assert stub.requests == []


def test_a_run_that_ends_does_not_wait(tmp_path: Path, stub: UnityStub, settings: Settings) -> None:
    made, tables, maker = registration(tmp_path, "unity:main.web.clicks", settings, [])
    stub.token = "another"
    committed(maker, tables)
    made.register()
    stub.token = "secret-token"
    assert made.register(at_once=True) == ()
    assert list(stub.tables) == ["main.web.clicks"]
