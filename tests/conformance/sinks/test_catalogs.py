"""Iceberg tables in catalogs of PyIceberg's configuration: races, lost replies, refusals, old metadata, readers.

The suites of all sinks also run with each kind of catalog, most of them in the long matrix.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ReadTimeoutError,
)
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField, StringType
from requests.exceptions import ConnectionError as Disconnected
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.conformance.sinks.kit import FIRST, PIPELINE, SCHEMA, SECOND, append, iceberg_table, loaded, write
from tests.conformance.sinks.test_iceberg import Died, FaultyFiles
from tests.conformance.sinks.test_sink_races import at_once, publish_once
from tests.services.aws_server import AwsServer
from tests.services.duckdb_iceberg import duckdb_with_iceberg
from tests.services.iceberg_catalogs import KINDS, NAME, client, configure, name_of
from tests.services.iceberg_rest import Fault, RestCatalogServer

from penstock import DeltaSink, IcebergSink
from penstock.errors import (
    ConfigurationError,
    PublishConflict,
    TableDenied,
    TableError,
    TemporaryError,
    UsageError,
)
from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.catalogs.name import CatalogName, configured_name
from penstock.sinks.iceberg import catalog as catalog_module
from penstock.sinks.iceberg.catalog import PyIcebergCatalog
from penstock.sinks.iceberg.catalog_errors import CatalogErrors
from penstock.sinks.iceberg.file_io import TableFileIO
from penstock.sinks.iceberg.log import SNAPSHOT_AGE
from penstock.sinks.iceberg.sink import IcebergTableSink
from penstock.sinks.iceberg.snapshots import SnapshotMaker
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import CATALOG_FILE, open_sink
from penstock.storage.address import S3Address
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files
from penstock.testing import FakeClock

ROUNDS = 3
THREADS = 4
LATER = f"01K0{99:022d}"  # an attempt
SECRET = "correct-horse-battery"
METADATA_KEPT = 4  # in tests that need fewer


@pytest.fixture
def server(request: pytest.FixtureRequest) -> RestCatalogServer:
    """Return the server of a REST catalog that is configured as `NAME`."""
    state = configure("rest", request)
    assert state is not None
    return state


@pytest.fixture(params=KINDS)
def catalog(request: pytest.FixtureRequest) -> str:
    """Configure a catalog as `NAME`; return its kind."""
    configure(request.param, request)
    kind: str = request.param
    return kind


def sink_at(root: Path, **options: Any) -> IcebergTableSink:
    return IcebergTableSink(LocalFiles(root), pipeline=PIPELINE, **{"catalog": name_of(root), **options})


def made(root: Path) -> IcebergTableSink:
    sink = sink_at(root)
    sink.ensure_schema(SCHEMA)
    return sink


def processes(root: Path) -> list[IcebergTableSink]:
    """Return sinks with a client of the catalog each, as separate processes have."""
    sinks = [sink_at(root) for _ in range(THREADS)]
    for sink in sinks:
        catalog_module._open_catalog.cache_clear()
        loaded(sink)
    return sinks


def published(sink: IcebergTableSink, root: Path, seq: int) -> None:
    attempt_id = f"01K0{seq:022d}"
    publish_once(sink, seq, attempt_id, [write(root, attempt_id, id=[seq], name=[f"n{seq}"])])


def ids(root: Path) -> list[int]:
    """Return the ids that PyIceberg reads through the catalog."""
    return sorted(iceberg_table(root).scan().to_arrow()["id"].to_pylist())


def remembered(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / CATALOG_FILE).read_text())
    return found


def opened(sink: IcebergTableSink) -> Any:
    """Return PyIceberg's catalog as the sink uses it."""
    with sink._choice.current()._client() as found:  # type: ignore[attr-defined]  # the tests are for such catalogs
        return found


# Publishing


@pytest.mark.usefixtures("catalog")
def test_processes_that_publish_one_batch_at_once_publish_it_once(root: Path) -> None:
    made(root)
    sinks = processes(root)
    for seq in range(1, ROUNDS + 1):
        attempt_id = f"01K0{seq:022d}"
        file = write(root, attempt_id, id=[seq], name=["x"])
        raised = at_once(
            *[lambda sink=sink: publish_once(sink, seq, attempt_id, [file]) for sink in sinks]  # noqa: B023 -- ends here
        )
        assert raised == [None] * THREADS
    assert ids(root) == list(range(1, ROUNDS + 1))
    assert loaded(sinks[0]).version == ROUNDS


@pytest.mark.usefixtures("catalog")
def test_exactly_one_of_the_appends_on_one_snapshot_succeeds(root: Path) -> None:
    sink = made(root)
    sinks = processes(root)
    for seq in range(1, ROUNDS + 1):
        attempt_id = f"01K0{seq:022d}"
        file = write(root, attempt_id, id=[seq], name=["x"])
        snapshots = [loaded(sink) for sink in sinks]
        raised = at_once(
            *[lambda table=table: table.append(append(seq, attempt_id, file)) for table in snapshots]  # noqa: B023 -- ends here
        )
        assert sorted(type(error).__name__ for error in raised) == ["NoneType"] + ["PublishConflict"] * (THREADS - 1)
    assert loaded(sink).position.seq == ROUNDS
    assert ids(root) == list(range(1, ROUNDS + 1))


def lose_one_reply(kind: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next commit be executed, and its reply be lost, as each library reports that."""
    owner, method, error = {
        "rest": (client, "commit_table", Disconnected("Remote end closed connection")),
        "glue": (getattr(client, "glue", None), "update_table", ReadTimeoutError(endpoint_url="http://glue")),
        "sql": (client, "commit_table", OperationalError("COMMIT", {}, Exception("server closed the connection"))),
    }[kind]
    execute = getattr(owner, method)

    def lose(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        execute(*arguments, **options)
        raise error

    monkeypatch.setattr(owner, method, lose)


def test_a_commit_whose_reply_is_lost_is_published_once(
    catalog: str, root: Path, request: pytest.FixtureRequest
) -> None:
    sink = made(root)
    table = loaded(sink)
    file = write(root, FIRST, id=[1], name=["a"])
    with pytest.MonkeyPatch.context() as patch:
        lose_one_reply(catalog, opened(sink), patch)
        with pytest.raises(PublishConflict, match="it is unknown if"):
            table.append(append(1, FIRST, file))
    assert (loaded(sink).position.seq, loaded(sink).version) == (1, 1)
    with pytest.raises(PublishConflict):
        table.append(append(1, FIRST, file))
    publish_once(sink, 1, FIRST, [file])
    assert ids(root) == [1]


@pytest.mark.parametrize("executes", [True, False], ids=["executed", "not executed"])
@pytest.mark.parametrize("status", [None, 500, 502, 503, 504])
def test_a_commit_without_a_reply_or_with_a_servers_error_is_published_once(
    server: RestCatalogServer, root: Path, status: int | None, executes: bool
) -> None:
    sink = made(root)
    file = write(root, FIRST, id=[1], name=["a"])
    table = loaded(sink)
    server.requests.clear()
    server.faults.append(Fault(path="/tables/", executes=executes, status=status))
    with pytest.raises(PublishConflict):
        table.append(append(1, FIRST, file))
    assert len([one for one in server.requests if one.startswith("POST")]) == 1, "the commit was repeated below"
    assert loaded(sink).position.seq == int(executes)
    publish_once(sink, 1, FIRST, [file])
    assert ids(root) == [1]


def test_a_reply_that_is_no_reply_of_a_catalog_is_an_unknown_outcome(server: RestCatalogServer, root: Path) -> None:
    sink = made(root)
    server.faults.append(Fault(path="/tables/", status=200, body=b"<html>proxy</html>"))
    file = write(root, FIRST, id=[1], name=["a"])
    with pytest.raises(PublishConflict):
        loaded(sink).append(append(1, FIRST, file))
    publish_once(sink, 1, FIRST, [file])
    assert ids(root) == [1]


@pytest.mark.parametrize("executes", [True, False], ids=["executed", "not executed"])
def test_a_lost_reply_to_the_creation_leaves_one_table(server: RestCatalogServer, root: Path, executes: bool) -> None:
    server.faults.append(Fault(path="/tables", executes=executes))
    sink = sink_at(root)
    if executes:
        sink.ensure_schema(SCHEMA)
    else:
        with pytest.raises(PublishConflict):
            sink.ensure_schema(SCHEMA)
        sink_at(root).ensure_schema(SCHEMA)
    published(sink, root, 1)
    assert ids(root) == [1]


def test_a_lost_reply_to_a_compaction_loses_and_doubles_no_row(server: RestCatalogServer, root: Path) -> None:
    sink = made(root)
    for seq in (1, 2, 3):
        published(sink, root, seq)
    server.faults.append(Fault(path="/tables/"))
    done = compact(sink_at(root, partition_by=None), clock=FakeClock(auto_advance=True))
    assert done is not None
    assert (done.files_before, done.files_after) == (3, 1)
    assert ids(root) == [1, 2, 3]


def test_a_snapshot_in_another_branch_makes_an_append_a_conflict(server: RestCatalogServer, root: Path) -> None:
    """It takes the sequence number that the append would have, so the catalog refuses the append."""
    sink = made(root)
    published(sink, root, 1)
    stale = loaded(sink)
    other = client()
    table = other.load_table(name_of(root).parts)
    maker = SnapshotMaker(
        metadata=table.metadata,
        io=TableFileIO(LocalFiles(root)),
        location=table.metadata.location,
        operation=Operation.APPEND,
    )
    added, ref = maker.updates()
    assert isinstance(ref, SetSnapshotRefUpdate)
    other.commit_table(table, (), (added, ref.model_copy(update={"ref_name": "audit"})))
    with pytest.raises(PublishConflict):
        stale.append(append(2, LATER, write(root, LATER, id=[2], name=["b"])))
    published(sink, root, 2)
    assert (ids(root), loaded(sink).version) == ([1, 2], 3)


def committed_with(root: Path, files: Any) -> None:
    """Create the table if it does not exist, and publish its first batch."""
    sink = IcebergTableSink(files, pipeline=PIPELINE, catalog=name_of(root))
    file = write(root, LATER, id=[1], name=["a"])
    sink.ensure_schema(SCHEMA)
    loaded(sink).append(append(1, LATER, file))


CHANGES = 4  # of files by Penstock: the table's mark, the catalog's name, a manifest, the list of manifests


@pytest.mark.usefixtures("server")
def test_the_number_of_changes_that_are_killed_is_right(root: Path) -> None:
    files = FaultyFiles(LocalFiles(root), Died, at=0, before=True)
    committed_with(root, files)
    assert len(files.changes) == CHANGES, files.changes


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, CHANGES + 1))
def test_a_process_killed_at_any_change_of_a_file_loses_and_doubles_nothing(root: Path, at: int, before: bool) -> None:
    with pytest.raises(Died):
        committed_with(root, FaultyFiles(LocalFiles(root), Died, at=at, before=before))
    committed_with(root, LocalFiles(root))
    published(sink_at(root), root, 2)
    assert ids(root) == [1, 2]


@pytest.mark.parametrize("executes", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("path", ["v1/namespaces", "/tables", "/tables/"])
def test_a_process_killed_at_any_change_of_the_catalog_loses_and_doubles_nothing(
    server: RestCatalogServer, root: Path, path: str, executes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.append(Fault(path=path, executes=executes))
    with monkeypatch.context() as patch:
        patch.setattr(PyIcebergCatalog, "_raise_after_commit", die)
        with pytest.raises(Died):
            committed_with(root, LocalFiles(root))
    sink = sink_at(root)
    table = sink.load()
    if table is None or table.position.seq == 0:
        committed_with(root, LocalFiles(root))
    published(sink, root, 2)
    assert ids(root) == [1, 2]


def die(*_: Any, **__: Any) -> None:
    raise Died


# Errors


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_are_one_sentence_without_the_token(
    server: RestCatalogServer, root: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__TOKEN", SECRET)
    server.faults += [Fault(method="GET", path="/tables/", status=status, reason=f"not with {SECRET}")] * 2
    with pytest.raises(TableDenied, match="check the credentials of the catalog lake") as raised:
        sink_at(root).load()
    assert SECRET not in str(raised.value)
    assert not root.exists()


def test_a_commit_without_rights_is_no_conflict(server: RestCatalogServer, root: Path) -> None:
    sink = made(root)
    server.faults.append(Fault(path="/tables/", executes=False, status=403, reason="read only"))
    with pytest.raises(TableDenied, match="read only"):
        loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))


def test_a_commit_that_the_catalog_refuses_as_invalid_is_an_error(server: RestCatalogServer, root: Path) -> None:
    sink = made(root)
    server.faults.append(Fault(path="/tables/", executes=False, status=400, reason="no such thing"))
    with pytest.raises(TableError, match=r"The catalog refuses lake:web\..* no such thing"):
        loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))


def test_a_busy_catalog_is_a_temporary_error(server: RestCatalogServer, root: Path) -> None:
    sink = made(root)
    server.faults.append(Fault(path="/tables/", executes=False, status=429, reason="slow down"))
    with pytest.raises(TemporaryError, match="slow down"):
        loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return the event that faults wait for, set after the test. Clients wait for half a second."""
    monkeypatch.setattr(catalog_module, "RESPONSE_SECONDS", 0.5)
    ended = threading.Event()
    yield ended
    ended.set()


def test_a_silent_catalog_is_a_temporary_error_when_it_is_opened(
    server: RestCatalogServer, root: Path, silence: threading.Event
) -> None:
    server.faults.append(Fault(method="GET", path="v1/config", waits=silence))
    with pytest.raises(TemporaryError, match="timed out"):
        sink_at(root).load()


def test_a_silent_catalog_is_a_conflict_after_a_commit(
    server: RestCatalogServer, root: Path, silence: threading.Event
) -> None:
    table = loaded(made(root))
    server.faults.append(Fault(path="/tables/", waits=silence))
    with pytest.raises(PublishConflict, match="timed out"):
        table.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))


def test_a_silent_token_server_is_a_temporary_error(
    server: RestCatalogServer, root: Path, silence: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__CREDENTIAL", f"penstock:{SECRET}")
    server.faults.append(Fault(path="oauth/tokens", waits=silence))
    with pytest.warns(DeprecationWarning, match="OAuth2"), pytest.raises(TemporaryError, match="timed out"):
        sink_at(root).load()


def test_a_catalog_that_cannot_be_reached_is_a_temporary_error(
    server: RestCatalogServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(root)
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__URI", "http://127.0.0.1:1")
    with pytest.raises(
        TemporaryError, match=r"The catalog of lake:web\..* is not available .*; .* correct the uri of lake"
    ):
        sink_at(root).load()
    assert loaded(sink).version == 0


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: str) -> None:
    for home in ("PYICEBERG_HOME", "HOME"):
        monkeypatch.setenv(home, str(folder))
    for key in [key for key in os.environ if key.startswith("PYICEBERG_CATALOG__")]:
        monkeypatch.delenv(key)
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__{key}", value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"has no catalog lake \(it has: none\).*PYICEBERG_CATALOG__LAKE__URI"),
        ({"TYPE": "hive", "URI": "thrift://host:9083"}, "is of the type hive"),
        ({"TYPE": "rests", "URI": "http://host"}, "is of the type rests"),
        ({"URI": f"ftp://user:{SECRET}@host"}, "cannot be used"),
        ({"TYPE": "rest"}, "cannot be used"),
        ({"TYPE": "rest", "URI": "host/catalog"}, "cannot be used"),
        ({"URI": f"postgresql+psycopg2://user:{SECRET}@127.0.0.1:1/lake"}, "needs the package psycopg2"),
        (
            {"URI": "sqlite:////missing/catalog.db"},
            "cannot be opened .*unable to open.*; create the folder of its SQLite",
        ),
        ({"URI": f"postgresql+nothing://user:{SECRET}@127.0.0.1:1/lake"}, "cannot be used"),
    ],
)
def test_an_unusable_configuration_is_one_sentence_without_secrets(
    root: Path, tmp_path: Path, settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path, **settings)
    with pytest.raises(ConfigurationError, match=message) as raised:
        sink_at(root).load()
    assert SECRET not in str(raised.value)
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("catalog:\n  lake: {type: sql}\n", r"\.pyiceberg\.yaml, line 2: .*flow mapping.*Correct that file"),
        ("catalog:\n\tlake:\n", r"\.pyiceberg\.yaml, line 2: "),
    ],
)
def test_a_configuration_that_cannot_be_parsed_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    script = (
        "import sys\n"
        "from penstock.errors import ConfigurationError\n"
        "from penstock.sinks.registry import open_sink\n"
        "from penstock.storage.local import LocalFiles\n"
        "try:\n"
        "    open_sink(LocalFiles(sys.argv[1]), pipeline='p', scheme='iceberg')\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run(  # PyIceberg reads its configuration when it is imported, once a process
        [sys.executable, "-c", script, str(tmp_path / "table")],
        env={**os.environ, "PYICEBERG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(problem, ran.stdout)
    assert ran.stdout.count("\n") == 1


def test_a_database_that_cannot_be_reached_is_a_temporary_error_without_the_password(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path, URI=f"postgresql+psycopg://user:{SECRET}@127.0.0.1:1/lake")
    with pytest.raises(TemporaryError, match="is not available") as raised:
        sink_at(root).load()
    assert SECRET not in str(raised.value)


def test_a_configuration_that_is_no_yaml_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path)
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake: {{token: {SECRET}\n")
    with pytest.raises(ConfigurationError, match=r"check \.pyiceberg\.yaml") as raised:
        sink_at(root).load()
    assert SECRET not in str(raised.value)


def aws_error(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "UpdateTable",
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aws_error("AccessDeniedException"), TableDenied),
        (aws_error("ExpiredTokenException"), TableDenied),
        (aws_error("ThrottlingException"), TemporaryError),
        (aws_error("InternalServiceException", 500), TemporaryError),
        (aws_error("InvalidInputException"), TableError),
        (NoCredentialsError(), TableDenied),
        (EndpointConnectionError(endpoint_url="http://glue"), TemporaryError),
        (NoRegionError(), ConfigurationError),
        (OperationalError("SELECT 1", {}, Exception("connection refused")), TemporaryError),
        (OperationalError("SELECT 1", {}, Exception("password authentication failed for user x")), TableDenied),
        (ProgrammingError("SELECT 1", {}, Exception("permission denied for table iceberg_tables")), TableDenied),
        (ProgrammingError("SELECT 1", {}, Exception("no such column")), TableError),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), TableDenied),
        (OSError("AWS Error NETWORK_CONNECTION during PutObject operation"), TemporaryError),
    ],
    ids=str,
)
def test_errors_of_the_libraries_below_get_penstocks_meaning(
    root: Path, error: Exception, kind: type[Exception]
) -> None:
    fault = CatalogErrors(name_of(root)).translated(error)
    assert type(fault) is kind
    assert "SELECT" not in str(fault)


# Names and places


@pytest.mark.parametrize(
    "text", ["clicks", "lake:clicks", "lake:web.", "lake:.clicks", ":web.clicks", "a b:web.clicks"]
)
def test_a_text_that_names_no_table_in_a_catalog_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write NAME:NAMESPACE\.TABLE"):
        IcebergSink("tables/clicks", catalog=text)


def test_a_declaration_passes_its_catalog_on_and_a_test_of_it_does_not() -> None:
    declared = IcebergSink("tables/clicks", catalog="lake:web.clicks")
    assert declared.metadata_catalog == CatalogName(scheme="lake", parts=("web", "clicks"))
    assert declared.for_test("elsewhere").metadata_catalog is None
    assert DeltaSink("tables/clicks").metadata_catalog is None


def test_a_sql_catalog_whose_tables_another_process_creates_at_the_same_time(
    root: Path, request: pytest.FixtureRequest
) -> None:
    configure("sql", request)
    created: set[str] = set()

    def create_first(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "CREATE TABLE" in statement and statement not in created:
            created.add(statement)
            with closing(sqlite3.connect(str(connection.engine.url.database))) as other:
                other.execute(statement)

    event.listen(Engine, "before_cursor_execute", create_first)
    request.addfinalizer(lambda: event.remove(Engine, "before_cursor_execute", create_first))
    assert loaded(made(root)).version == 0
    assert len(created) == 2


def test_a_sql_catalog_that_cannot_be_opened_is_tried_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, root.parent, URI="sqlite:////missing/catalog.db")
    tries: list[str] = []
    make = catalog_module._make

    def counted(kind: str, *arguments: Any) -> Any:
        tries.append(kind)
        return make(kind, *arguments)

    monkeypatch.setattr(catalog_module, "_make", counted)
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        made(root)
    assert tries == ["sql"]


@pytest.mark.parametrize("kind", ["rest", "sql"])
def test_a_namespace_of_several_parts_is_created(root: Path, kind: str, request: pytest.FixtureRequest) -> None:
    configure(kind, request)
    name = configured_name("lake:shop.web.clicks")
    sink = sink_at(root, catalog=name)
    sink.ensure_schema(SCHEMA)
    assert client().load_table(("shop", "web", "clicks")).metadata.location == str(root)
    assert loaded(sink_at(root, catalog=None)).version == 0


@pytest.mark.usefixtures("server")
def test_every_other_command_finds_the_catalog_beside_the_table(root: Path) -> None:
    published(made(root), root, 1)
    again = open_sink(LocalFiles(root), pipeline=PIPELINE, partition_by=None, scheme="iceberg").load()
    assert again is not None
    assert (again.version, again.position.seq, again.rows()) == (1, 1, 1)
    name = name_of(root)
    assert remembered(root) == {
        "catalog": NAME,
        "namespace": [name.parts[0]],
        "table": name.parts[1],
        "location": str(root),
    }


@pytest.mark.usefixtures("server")
def test_another_catalog_than_the_remembered_one_is_refused(root: Path) -> None:
    made(root)
    other = sink_at(root, catalog=configured_name("lake:web.other"))
    for call in (other.load, other.check_location, lambda: other.ensure_schema(SCHEMA)):
        with pytest.raises(TableError, match=r"is in the catalog lake:web\.t.*and lake:web\.other is declared"):
            call()


@pytest.mark.usefixtures("server")
def test_a_catalog_for_a_table_that_exists_without_one_is_refused(root: Path) -> None:
    IcebergTableSink(LocalFiles(root), pipeline=PIPELINE).ensure_schema(SCHEMA)
    with pytest.raises(TableError, match="exists without the catalog"):
        sink_at(root).load()
    assert not (root / CATALOG_FILE).exists()


def test_a_table_without_a_catalog_reads_no_configuration(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path)
    (tmp_path / ".pyiceberg.yaml").write_text("{")
    IcebergTableSink(LocalFiles(root), pipeline=PIPELINE).ensure_schema(SCHEMA)
    assert not (root / CATALOG_FILE).exists()


@pytest.mark.usefixtures("server")
def test_an_entry_that_was_deleted_is_an_error_and_no_new_table(root: Path) -> None:
    sink = made(root)
    published(sink, root, 1)
    client().drop_table(name_of(root).parts)
    for one in (sink, sink_at(root), sink_at(root, catalog=None)):
        with pytest.raises(TableError, match="its entry was deleted or renamed"):
            one.load()
        with pytest.raises(TableError, match="its entry was deleted or renamed"):
            one.ensure_schema(SCHEMA)


@pytest.mark.usefixtures("server")
def test_an_entry_deleted_before_the_first_batch_is_created_again(root: Path) -> None:
    sink = made(root)
    client().drop_table(name_of(root).parts)
    sink.ensure_schema(SCHEMA)
    published(sink, root, 1)
    assert ids(root) == [1]


@pytest.mark.usefixtures("server")
def test_an_entry_deleted_during_an_append_is_a_conflict_and_then_an_error(root: Path) -> None:
    sink = made(root)
    published(sink, root, 1)
    table = loaded(sink)
    client().drop_table(name_of(root).parts)
    with pytest.raises(PublishConflict):
        table.append(append(2, LATER, write(root, LATER, id=[2], name=["b"])))
    with pytest.raises(TableError, match="its entry was deleted or renamed"):
        sink.load()


@pytest.mark.usefixtures("server")
def test_an_entry_of_a_table_elsewhere_is_refused(root: Path, tmp_path: Path) -> None:
    made(root)
    second = IcebergTableSink(LocalFiles(tmp_path / "second"), pipeline=PIPELINE, catalog=name_of(root))
    for call in (second.load, lambda: second.ensure_schema(SCHEMA)):
        with pytest.raises(TableError, match=f"it is at {root}, and not at {tmp_path / 'second'}"):
            call()
    assert not (tmp_path / "second").exists()


@pytest.mark.usefixtures("server")
def test_a_moved_table_is_refused(root: Path) -> None:
    published(made(root), root, 1)
    moved = root.rename(root.with_name("moved"))
    sink = IcebergTableSink(LocalFiles(moved), pipeline=PIPELINE)
    with pytest.raises(TableError, match=f"was moved or copied: the catalog lake:web.* has it at {root}"):
        sink.load()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"catalog": "lake", "namespace": 7, "table": "t", "location": "x"}'])
def test_a_damaged_name_of_the_catalog_is_an_error(root: Path, text: str) -> None:
    (root / "_penstock").mkdir(parents=True)
    (root / CATALOG_FILE).write_text(text)
    with pytest.raises(TableError, match="does not name a catalog and a table in it"):
        IcebergTableSink(LocalFiles(root), pipeline=PIPELINE).load()


def test_a_catalog_that_assigns_locations_is_refused(server: RestCatalogServer, root: Path, tmp_path: Path) -> None:
    server.assigned_location = str(tmp_path / "assigned")
    with pytest.raises(TableError, match=f"put the new table .* at {tmp_path / 'assigned'}, and not at {root}"):
        sink_at(root).ensure_schema(SCHEMA)


@pytest.mark.usefixtures("server")
def test_a_folder_with_metadata_of_another_catalog_is_refused(root: Path) -> None:
    (root / "metadata").mkdir(parents=True)
    (root / "metadata" / "00000-5b3b5e4c-0000-4000-8000-000000000000.metadata.json").write_text("{}")
    with pytest.raises(TableError, match="is no Iceberg table and not empty"):
        sink_at(root).load()


def foreign_table(catalog: Catalog, root: Path) -> None:
    """Create a table as another program does."""
    catalog.create_namespace(name_of(root).parts[:1])
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    catalog.create_table(name_of(root).parts, schema, location=str(root))


@pytest.mark.usefixtures("catalog")
def test_a_table_that_another_program_created_in_the_catalog_is_written(root: Path) -> None:
    foreign_table(client(), root)
    published(sink_at(root), root, 1)
    assert ids(root) == [1]
    assert loaded(sink_at(root, catalog=None)).position.seq == 1


def test_an_entry_that_is_no_iceberg_table_is_refused(
    moto: AwsServer, request: pytest.FixtureRequest, root: Path
) -> None:
    configure("glue", request)
    database, table = name_of(root).parts
    glue = moto.client("glue")
    glue.create_database(DatabaseInput={"Name": database})
    glue.create_table(DatabaseName=database, TableInput={"Name": table, "Parameters": {"table_type": "HIVE"}})
    with pytest.raises(TableError, match="is not that of an Iceberg table"):
        sink_at(root).load()


# Old metadata


def metadata_files(root: Path) -> set[str]:
    return {path.name for path in (root / "metadata").glob("*.metadata.json")}


def named_metadata(root: Path) -> set[str]:
    table = iceberg_table(root)
    locations = [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]
    return {location.rpartition("/")[2] for location in locations}


def set_property(root: Path, name: str, value: str) -> None:
    """Change a property as another program does, with one commit."""
    other = client()
    update = SetPropertiesUpdate(updates={name: value})
    other.commit_table(other.load_table(name_of(root).parts), (), (update,))


def test_old_metadata_is_deleted_and_a_vacuum_deletes_only_unnamed_files(
    catalog: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalog_module._NEW_TABLE, "write.metadata.previous-versions-max", str(METADATA_KEPT))
    sink = made(root)
    for seq in range(1, 2 * METADATA_KEPT + 1):
        published(sink, root, seq)
    sink.ensure_schema(pa.schema([*SCHEMA, ("more", pa.int64())]))
    assert metadata_files(root) == named_metadata(root)
    assert len(metadata_files(root)) == METADATA_KEPT + 1
    # a commit whose reply is lost leaves a file that the next commits do not know of
    with pytest.MonkeyPatch.context() as patch:
        lose_one_reply(catalog, opened(sink), patch)
        published(sink, root, 9)
    for seq in range(10, 10 + METADATA_KEPT):
        published(sink, root, seq)
    left = metadata_files(root) - named_metadata(root)
    assert len(left) == 1
    compact(sink_at(root, partition_by=None), clock=FakeClock(auto_advance=True))
    set_property(root, SNAPSHOT_AGE, "0")
    (root / "metadata" / "notes.txt").write_text("of another program")
    table = sink_at(root, partition_by=None).load()
    assert table is not None
    assert len(table.vacuum(retention_hours=None, dry_run=False)) == 9 + METADATA_KEPT
    assert not left & metadata_files(root)
    assert named_metadata(root) <= metadata_files(root)
    assert (root / "metadata" / "notes.txt").exists()
    assert ids(root) == list(range(1, 10 + METADATA_KEPT))
    published(sink, root, 10 + METADATA_KEPT)
    assert ids(root) == list(range(1, 11 + METADATA_KEPT))


def test_all_snapshots_are_loaded_if_clients_are_configured_for_the_current_ones(
    server: RestCatalogServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum deletes the files of snapshots that the metadata does not have."""
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__SNAPSHOT_LOADING_MODE", "refs")
    made(root).load()
    loads = [one for one in server.requests if one.startswith("GET") and "/tables/" in one]
    assert loads
    assert all(one.endswith("?snapshots=all") for one in loads)


# Readers


@pytest.fixture
def readable(catalog: str, root: Path) -> Path:
    """Return a table with partitions, and a column that was added by the second batch."""
    sink = sink_at(root, partition_by=["day"])
    columns = pa.schema([("id", pa.int64()), ("day", pa.string())])
    for seq, (attempt_id, day) in enumerate(((FIRST, "a/b"), (SECOND, None)), start=1):
        place = "day=a%2Fb" if day else "day=__HIVE_DEFAULT_PARTITION__"
        values: dict[str, Any] = {"id": [seq]}
        if seq == 2:
            columns = columns.append(pa.field("added", pa.int64()))
            values["added"] = [9]
        sink.ensure_schema(columns)
        path = root / "data" / attempt_id / "r1" / place / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table(values), path)
        files = list_files(LocalFiles(root), f"data/{attempt_id}/r1", partition_by=["day"], schema=columns)
        loaded(sink).append(append(seq, attempt_id, *files))
    return root


ROWS = [{"id": 1, "day": "a/b", "added": None}, {"id": 2, "day": None, "added": 9}]


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_readers_find_the_rows_through_the_catalog_or_by_its_metadata_file(readable: Path, tmp_path: Path) -> None:
    def by_id(row: dict[str, Any]) -> int:
        found: int = row["id"]
        return found

    table = iceberg_table(readable)
    assert sorted(table.scan().to_arrow().to_pylist(), key=by_id) == ROWS
    assert table.scan(row_filter="added = 9").to_arrow().to_pylist() == ROWS[1:]
    assert sorted(pl.scan_iceberg(table).collect().to_dicts(), key=by_id) == ROWS
    connection = duckdb_with_iceberg(tmp_path)
    relation = connection.sql(f"select * from iceberg_scan('{table.metadata_location}') order by id")
    assert [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()] == ROWS
    own = sink_at(readable, partition_by=None).load()
    assert own is not None
    assert sorted(own.dataset().to_table().to_pylist(), key=by_id) == ROWS


# S3


def test_a_table_in_s3_and_glue_is_published_compacted_and_vacuumed_with_penstocks_endpoint(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(monkeypatch, tmp_path, TYPE="glue")
    moto.client("s3").create_bucket(Bucket="lake")
    files = S3Files(S3Address(bucket="lake", prefix="a b/clicks"), moto.aws)
    name = configured_name("lake:web.clicks")

    def batch(seq: int) -> Callable[[], object]:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [seq], "name": ["x"]}), buffer)
        files.write(f"data/attempt-{seq}/r1/part-0.parquet", buffer.getvalue().to_pybytes())
        found = list_files(files, f"data/attempt-{seq}/r1", partition_by=(), schema=SCHEMA)
        sink = IcebergTableSink(files, pipeline=PIPELINE, catalog=name)
        sink.ensure_schema(SCHEMA)
        return lambda: publish_once(sink, seq, f"attempt-{seq}", found)

    for seq in (1, 2, 3):
        publish = batch(seq)
        assert at_once(publish, publish) == [None] * 2
    sink = IcebergTableSink(files, pipeline=PIPELINE, partition_by=None)
    assert compact(sink, clock=FakeClock(auto_advance=True)) is not None
    table = loaded(sink)
    assert (table.version, table.position.seq) == (4, 3)
    assert sorted(sink.load().dataset().to_table()["id"].to_pylist()) == [1, 2, 3]  # type: ignore[union-attr]  # as above
    entry = moto.client("glue").get_table(DatabaseName="web", Name="clicks")["Table"]
    assert entry["Parameters"]["metadata_location"].startswith("s3://lake/a b/clicks/metadata/00004-")
