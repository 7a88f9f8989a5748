"""The ledger in a MariaDB server that freezes, dies, refuses and has other configurations."""

import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, event, inspect, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome
from tests.services.mariadb_server import MariadbServer
from tests.services.plugin import StartMariadb

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.claims import _SAME_KEY
from penstock.ledger.database import OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow, mysql
from penstock.ledger.dialects.mysql import Mysql
from penstock.ledger.migrate import Revisions, revision_of
from penstock.ledger.records import AttemptState, BatchRecord, Committed, ObjectState
from penstock.ledger.schema import VERSION_TABLE, pipelines
from penstock.messaging.steps import Step

DEFAULTS = ["CHARACTER SET latin1", "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"]
SIMILAR_NAMES = [
    "Data.csv",
    "data.csv",
    "a",
    "a ",
    "\N{GRINNING FACE}",
    "\N{PILE OF POO}",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
]
DDL = ("CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX", "ALTER TABLE", "DROP TABLE")


@pytest.fixture
def server(start_mariadb: StartMariadb) -> MariadbServer:
    return start_mariadb()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def harness_at(url: str, opened: ExitStack) -> LedgerHarness:
    ledger = Ledger.open(url)
    opened.callback(ledger.close)
    ledger.ensure_pipeline(PIPELINE)
    return LedgerHarness(ledger)


@pytest.fixture
def harness(server: MariadbServer, opened: ExitStack) -> LedgerHarness:
    return harness_at(f"{server.fresh()}&read_timeout=2&connect_timeout=2", opened)


# Unresponsive and dead servers


def test_the_wait_for_a_frozen_server_is_limited(harness: LedgerHarness, server: MariadbServer) -> None:
    server.freeze()
    with pytest.raises(TemporaryError, match="cannot be reached"):
        harness.claim(candidates("a"))
    server.thaw()
    assert harness.process("a") == 1


@pytest.mark.parametrize("restarted", [True, False])
def test_a_commit_is_repeated_after_its_server_died_before_it(
    server: MariadbServer, opened: ExitStack, restarted: bool
) -> None:
    url = server.fresh()
    harness = harness_at(url, opened)
    claim = harness.claim(candidates("a", "b"))
    deaths: list[Step] = []

    def die(step: Step) -> None:
        if step is Step.COMMITTING and not deaths:
            deaths.append(step)
            server.kill()
            if restarted:
                server.start()

    dying = Ledger.open(url, probe=die)
    opened.callback(dying.close)
    if restarted:
        assert dying.commit(outcome(claim)) == Committed(seq=1), "it commits by repeating the transaction"
    else:
        with pytest.raises(TemporaryError):
            dying.commit(outcome(claim))
        server.start()
        assert harness.state("a") is ObjectState.PROCESSING
        assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)
    assert [batch.objects for batch in harness.ledger.batches(PIPELINE)] == [2]


def test_a_commit_without_a_response_has_an_unknown_outcome(harness: LedgerHarness, server: MariadbServer) -> None:
    with pytest.raises(OutcomeUnknown), harness.ledger.database.writing(before_commit=server.freeze) as connection:
        connection.exec_driver_sql("UPDATE pipelines SET next_seq = 5")
    server.thaw()
    assert [row.id for row in harness.ledger.pipelines()] == [PIPELINE]


def test_connections_that_died_with_the_server_are_replaced_without_an_error(
    harness: LedgerHarness, server: MariadbServer
) -> None:
    assert harness.process("a") == 1
    server.kill()
    server.start()
    assert harness.process("b") == 2


# Locks, limits, permissions


def on_checkout(ledger: Ledger, statement: str) -> None:
    def run(connection: Any, *_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    event.listen(ledger.database.engine, "checkout", run)


def test_a_lock_wait_timeout_is_temporary_and_rolls_the_transaction_back(
    harness: LedgerHarness, server: MariadbServer
) -> None:
    on_checkout(harness.ledger, "SET SESSION innodb_lock_wait_timeout = 1")
    claim = harness.claim(candidates("a"))
    (name,) = (row[0] for row in server.sql("SHOW DATABASES LIKE 'ledger%'"))
    other = server.connect(name)
    other.begin()
    with other.cursor() as cursor:
        cursor.execute("SELECT * FROM objects FOR UPDATE")
    with pytest.raises(TemporaryError, match="kept locked"):
        harness.ledger.commit(outcome(claim))
    other.rollback()
    attempt = harness.ledger.attempt(claim.attempt_id)
    assert attempt is not None
    assert attempt.ended_at is None, "the attempt was ended before the lock wait, and that was rolled back"
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)
    other.close()


@pytest.mark.parametrize("limits", ["_MARIADB_LIMITS", "_MYSQL_LIMITS"])
def test_a_client_that_stops_inside_a_transaction_loses_its_locks(
    server: MariadbServer, opened: ExitStack, monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    """Such as a frozen process, or a host that vanishes without closing its connection. MariaDB knows MySQL's only
    limit too, so both ways are tested.
    """
    shortened = dict.fromkeys(getattr(mysql, limits), 600) | {list(getattr(mysql, limits))[-1]: 2}
    monkeypatch.setattr(mysql, "_MARIADB_LIMITS", shortened)
    url = server.fresh()
    silent, harness = harness_at(url, opened), harness_at(url, opened)
    processed: list[object] = []
    with pytest.raises(TemporaryError, match="cannot be reached"), silent.ledger.database.writing() as connection:  # noqa: PT012
        connection.execute(select(pipelines.c.id).where(pipelines.c.id == PIPELINE).with_for_update())
        processed.append(harness.process("a"))  # it would wait 10 s for the row if no limit ended the lock
        connection.execute(select(pipelines.c.id))
    assert processed == [1]


def test_an_exhausted_pool_is_a_temporary_error(server: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(mysql, "POOL_TIMEOUT_SECONDS", 0.05)
    ledger = Ledger.open(server.fresh())
    with ledger.database.reading(), pytest.raises(TemporaryError, match="are in use"):
        ledger.pipelines()
    assert ledger.pipelines() == []
    ledger.close()


def test_a_server_without_free_connections_is_a_temporary_error(start_mariadb: StartMariadb) -> None:
    server = start_mariadb(configuration=("--max-connections=10",))
    url = server.fresh()
    with ExitStack() as held:
        for _ in range(10):
            held.callback(server.connect().close)
        with pytest.raises(TemporaryError, match="no more connections"):
            Ledger.open(url)


def test_a_read_only_server_is_a_temporary_error(harness: LedgerHarness, server: MariadbServer) -> None:
    server.sql("SET GLOBAL read_only = ON")
    with pytest.raises(TemporaryError, match="takes no writes"):
        harness.claim(candidates("a"))
    assert harness.ledger.database.engine.pool.status().startswith("Pool size"), "the pool lives on"
    server.sql("SET GLOBAL read_only = OFF")
    assert harness.process("a") == 1


def test_a_missing_permission_is_reported_without_the_password(server: MariadbServer) -> None:
    url = server.fresh()
    for wrong, message in [
        (url.replace(":penstock@", ":sesame@"), "check name and password"),
        (url.replace("/ledger_1?", "/elsewhere?"), "check name and password, and grant"),
    ]:
        with pytest.raises(ConfigurationError, match=message) as refused:
            Ledger.open(wrong)
        assert "sesame" not in str(refused.value)
        assert ":penstock@" not in str(refused.value)


# Identity of names


@pytest.mark.parametrize("default", DEFAULTS)
def test_similar_names_stay_different_with_any_default_collation(
    server: MariadbServer, opened: ExitStack, default: str
) -> None:
    harness = harness_at(server.fresh(default), opened)
    ids = [f"file:///{name}" for name in SIMILAR_NAMES]
    for id in ids:
        harness.ledger.ensure_pipeline(id)
        claim = harness.ledger.claim(id, candidates("x"), attempt_id=id, worker=id, lease_seconds=60.0)
        assert list(claim.claimed) == [candidates("x")[0].object_id]
    assert {row.id for row in harness.ledger.pipelines()} == {PIPELINE, *ids}
    assert sorted(harness.claim(candidates(*SIMILAR_NAMES)).claimed) == sorted(
        c.object_id for c in candidates(*SIMILAR_NAMES)
    )
    for id in ids:
        assert harness.ledger.abandon_worker(id, id) == [id]
        harness.ledger.begin_work(id, "key", attempt_id=f"work {id}", worker=id, lease_seconds=60.0)
    for id in ids:
        assert [row.handler for row in harness.ledger.works(id)] == [id]
        assert harness.ledger.abandon_worker_works(id) == 1


@pytest.mark.parametrize(("rows", "uris", "attempts"), [(10_000, 1, 10_000), (10, 1, 10), (0, 0, 0)])
def test_other_versions_are_found_by_index_with_any_statistics(
    server: MariadbServer, opened: ExitStack, rows: int, uris: int, attempts: int
) -> None:
    """In a new ledger the statistics are outdated: the query joined all objects with all objects, for more than a
    minute.
    """
    harness = harness_at(server.fresh(), opened)
    engine = harness.ledger.database.engine
    harness.claim([replace(one, sequencer="1") for one in candidates(*map(str, range(100)))])
    server.sql("SET GLOBAL innodb_stats_auto_recalc = 0")
    of_objects = f"WHERE database_name = '{engine.url.database}' AND table_name = 'objects'"
    server.sql(f"UPDATE mysql.innodb_table_stats SET n_rows = {rows}, clustered_index_size = 1 {of_objects}")
    for index, values in (("=", uris), ("<>", attempts)):
        changed = f"{of_objects} AND index_name {index} 'ix_objects_uri' AND stat_name LIKE 'n_diff%'"
        server.sql(f"UPDATE mysql.innodb_index_stats SET stat_value = {values} {changed}")
    server.stop()
    server.start()  # the server reads the statistics when it opens the table
    engine.dispose()
    statement = _SAME_KEY.params(fresh="a").compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}").mappings().all()
    assert [(row["table"], row["type"], row["key"]) for row in plan] == [
        ("objects", "ref", "ix_objects_attempt"),
        ("other", "ref", "ix_objects_uri"),
    ]


def test_insert_or_ignore_ignores_only_duplicates_and_counts_them(harness: LedgerHarness) -> None:
    add = Mysql().insert_or_ignore(pipelines).values(next_seq=1, schema_id=0)
    database = harness.ledger.database
    counts = [database.transact(lambda c: c.execute(add, {"id": "file:///new"}).rowcount) for _ in range(2)]
    assert counts == [1, 0]
    for wrong in ({"id": "x" * 513}, {"id": None}):
        with pytest.raises(DBAPIError), database.writing() as connection:
            connection.execute(add, wrong)
    assert {row.id for row in harness.ledger.pipelines()} == {PIPELINE, "file:///new"}


def test_the_ledgers_clock_is_the_servers_in_any_time_zone(start_mariadb: StartMariadb, opened: ExitStack) -> None:
    server = start_mariadb(configuration=("--default-time-zone=+09:30",))
    harness = harness_at(server.fresh(), opened)
    with harness.ledger.database.reading() as connection:
        penstock_clock = connection.scalar(select(DatabaseNow()))
    ((server_clock,),) = server.sql("SELECT UNIX_TIMESTAMP()")
    assert abs(penstock_clock - server_clock) < 10.0


# Migrations


class Broken(Exception):
    """Simulates the death of the process."""


def create_fragile(self: Mysql, url: URL, *, now: Any, create_engine: Any = Mysql.create_engine) -> Engine:
    """Return an engine that dies at the first statement that changes tables; a table that exists already is not
    changed.
    """
    engine: Engine = create_engine(self, url, now=now)

    def die(_1: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.strip().startswith(DDL) and not cursor.warning_count:
            raise Broken

    event.listen(engine, "after_cursor_execute", die)
    return engine


def test_a_migration_killed_after_every_statement_is_completed(server: MariadbServer, opened: ExitStack) -> None:
    url, deaths = server.fresh(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mysql, "create_engine", create_fragile)
        while True:
            try:
                Ledger.open(url).close()
                break
            except Broken:
                deaths += 1
    assert deaths > 20
    assert harness_at(url, opened).process("a") == 1


def test_a_downgrade_killed_after_every_statement_is_completed(server: MariadbServer) -> None:
    url = server.fresh()
    Ledger.open(url).close()
    found = [columns_at(url)]
    while True:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Mysql, "create_engine", create_fragile)
            revisions = Revisions.open(url)
            try:
                revisions.downgrade("0003")
                break
            except Broken:
                pass
            finally:
                revisions.close()
        found.append(columns_at(url))
    assert columns_at(url) == found[-1], "the last run only set the revision"
    assert len(found) > 1
    for before, after in pairwise(found):
        tables = before.keys() - after.keys()
        columns = [name for table, names in after.items() for name in before[table] - names]
        assert len(tables) + len(columns) == 1, "a death for each statement that removed a column or table"
    assert revision_at(url) == "0003"
    Ledger.open(url).close()


def test_a_process_that_waited_for_a_migration_sees_its_result(server: MariadbServer, opened: ExitStack) -> None:
    url = server.fresh()
    first_database, second_database = harness_at(url, opened).ledger.database, harness_at(url, opened).ledger.database
    with first_database.writing() as connection:
        with first_database.dialect.migrating(connection):
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '0003'")
        with second_database.writing() as other, second_database.dialect.migrating(other):
            assert revision_of(other) == "0003", "before the first transaction ends"


def columns_at(url: str) -> dict[str, set[str]]:
    """Return the names of each table's columns."""
    revisions = Revisions.open(url)
    try:
        with revisions._database.reading() as connection:
            inspection = inspect(connection)
            return {
                name: {column["name"] for column in inspection.get_columns(name)}
                for name in inspection.get_table_names()
            }
    finally:
        revisions.close()


def revision_at(url: str) -> str | None:
    revisions = Revisions.open(url)
    try:
        return revisions.facts().revision
    finally:
        revisions.close()


def test_the_wait_for_another_migration_is_limited(server: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "MIGRATING_WAIT_SECONDS", 0.1)
    url = server.fresh()
    name = url.partition("?")[0].rpartition("/")[2]
    other = server.connect(name)
    with other.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 1)", (mysql.lock_name(name),))
    with pytest.raises(TemporaryError, match="being upgraded by another process"):
        Ledger.open(url)
    other.close()
    Ledger.open(url).close()


def test_a_manifest_over_the_servers_limit_is_refused_with_its_size(
    start_mariadb: StartMariadb, opened: ExitStack
) -> None:
    """Without a check before it is sent, the server closes the connection, and that looks like a network error."""
    server = start_mariadb(configuration=["--max-allowed-packet=4M"])
    harness = harness_at(server.fresh(), opened)
    claimed = harness.claim(candidates("a"))
    manifest = "['" * (2 << 20)  # each quote is escaped
    with pytest.raises(ConfigurationError, match=r"6,356,994 bytes .* takes 4,194,304 .* max_allowed_packet"):
        harness.ledger.commit(replace(outcome(claimed), record=BatchRecord(manifest=manifest)))
    (attempt,) = harness.ledger.open_attempts(PIPELINE)
    assert attempt.state is AttemptState.OPEN
    assert harness.ledger.commit(replace(outcome(claimed), record=BatchRecord(manifest="['" * (1 << 20)))) == Committed(
        seq=1
    )


def test_a_server_that_accepts_only_small_statements_is_refused(start_mariadb: StartMariadb) -> None:
    server = start_mariadb(configuration=["--max-allowed-packet=1M"])
    with pytest.raises(ConfigurationError, match=r"takes statements of 1,048,576 bytes at most"):
        Ledger.open(server.fresh())
