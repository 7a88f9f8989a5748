"""The ledger in a PostgreSQL server that freezes, dies, refuses and has other configurations."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text
from tests.conformance.ledger.concurrency import together
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidates, outcome
from tests.services.plugin import StartPostgresql
from tests.services.postgresql_server import PostgresqlServer

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.database import OutcomeUnknown
from penstock.ledger.dialects import Clash, postgresql
from penstock.ledger.dialects.postgresql_connection import BoundedConnection
from penstock.ledger.records import Committed, ObjectState
from penstock.messaging.steps import Step

ANSWER_SECONDS = 1.0  # in place of the usual timeout
NAMES = [f"object {number}" for number in range(400)]


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> PostgresqlServer:
    return start_postgresql()


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
def harness(server: PostgresqlServer, opened: ExitStack) -> LedgerHarness:
    return harness_at(f"{server.fresh()}&connect_timeout=2", opened)


def end_all_connections(server: PostgresqlServer) -> None:
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")


def test_the_wait_for_a_frozen_server_is_limited(
    harness: LedgerHarness, server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "silence_seconds", ANSWER_SECONDS)
    server.freeze()
    with pytest.raises(TemporaryError, match="cannot be reached"):
        harness.claim(candidates("a"))
    server.thaw()
    assert harness.process("a") == 1


def test_a_commit_to_a_frozen_server_has_an_unknown_outcome(
    harness: LedgerHarness, server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> None:
        with harness.ledger.database.writing(before_commit=server.freeze) as connection:
            connection.execute(text("UPDATE pipelines SET source_schema = 'x'"))

    monkeypatch.setattr(BoundedConnection, "silence_seconds", ANSWER_SECONDS)
    with pytest.raises(OutcomeUnknown):
        write()
    server.thaw()
    assert harness.process("a") == 1


def test_a_commit_can_be_repeated_after_its_server_was_killed_before_it(
    server: PostgresqlServer,
) -> None:
    url = f"{server.fresh()}&connect_timeout=2"
    dying = True

    def kill(step: Step) -> None:
        if dying and step is Step.COMMITTING:
            server.kill()

    ledger = Ledger.open(url, probe=kill)
    ledger.ensure_pipeline(PIPELINE)
    claim = LedgerHarness(ledger).claim(candidates("a", "b"))
    with pytest.raises(TemporaryError):
        ledger.commit(outcome(claim))
    dying = False
    server.start()
    assert ledger.commit(outcome(claim)) == Committed(seq=1)
    assert [batch.seq for batch in ledger.batches(PIPELINE)] == [1]
    ledger.close()


def test_connections_ended_between_transactions_are_replaced_without_an_error(
    harness: LedgerHarness, server: PostgresqlServer
) -> None:
    assert harness.process("a") == 1
    end_all_connections(server)
    assert harness.process("b") == 2


def test_a_connection_that_returns_busy_to_the_pool_is_replaced_without_an_error(harness: LedgerHarness) -> None:
    pooled = harness.ledger.database.engine.raw_connection()
    connection = pooled.driver_connection
    assert isinstance(connection, BoundedConnection)
    pooled.close()
    connection.pgconn.send_query(b"SELECT 1")  # without an end, as after a break in the middle of an exchange
    assert harness.process("a") == 1


def test_a_connection_ended_within_a_transaction_is_a_temporary_error(
    harness: LedgerHarness, server: PostgresqlServer
) -> None:
    def write() -> None:
        with harness.ledger.database.writing() as connection:
            connection.execute(text("UPDATE pipelines SET next_seq = 99"))
            end_all_connections(server)
            connection.execute(text("UPDATE pipelines SET next_seq = 100"))

    with pytest.raises(TemporaryError, match="try again"):
        write()
    assert harness.process("a") == 1


def test_a_lock_wait_timeout_is_a_temporary_error(server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgresql._SETTINGS, "lock_timeout", 300)
    url = server.fresh()
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    claim = LedgerHarness(ledger).claim(candidates("a"))
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM pipelines FOR UPDATE")
        with pytest.raises(TemporaryError, match="lock"):
            ledger.commit(outcome(claim))
    assert ledger.commit(outcome(claim)) == Committed(seq=1)
    ledger.close()


def test_an_exhausted_pool_is_a_temporary_error(server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(postgresql, "POOL_TIMEOUT_SECONDS", 0.1)
    ledger = Ledger.open(server.fresh())
    with ledger.database.reading(), pytest.raises(TemporaryError, match="all connections"):
        ledger.pipelines()
    assert ledger.pipelines() == []
    ledger.close()


def test_a_server_without_free_connections_is_a_temporary_error(start_postgresql: StartPostgresql) -> None:
    server = start_postgresql(configuration={"max_connections": "5", "superuser_reserved_connections": "3"})
    url = server.fresh()
    server.sql("CREATE ROLE plain LOGIN")
    server.sql("GRANT ALL ON SCHEMA public TO plain", url=url)
    plain = url.replace("penstock@", "plain@")
    with psycopg.connect(plain), psycopg.connect(plain), pytest.raises(TemporaryError):
        Ledger.open(plain)
    Ledger.open(plain).close()


def test_a_standby_server_is_a_temporary_error(start_postgresql: StartPostgresql) -> None:
    server = start_postgresql()
    url = server.fresh()
    Ledger.open(url).close()
    server.stop()
    (server.folder / "data" / "standby.signal").touch(mode=0o644)
    server.start()
    with pytest.raises(TemporaryError, match="primary"):
        Ledger.open(url)


ACCESS = "local all all trust\nhost all penstock all scram-sha-256\nhost all plain all trust\n"


def test_a_connection_to_a_read_only_server_is_not_reused(harness: LedgerHarness) -> None:
    backends: list[int] = []

    def write(connection: Connection) -> None:
        backends.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.exec_driver_sql("UPDATE pipelines SET next_seq = 99")

    for _ in range(postgresql.CONNECTIONS_MAX + 1):
        with pytest.raises(TemporaryError, match="takes no changes now"):
            harness.ledger.database.transact(write)
    assert len(set(backends)) == len(backends), "each time another connection"


def test_a_missing_permission_is_reported_without_the_password(start_postgresql: StartPostgresql) -> None:
    server = start_postgresql(tcp=True, access=ACCESS)
    url = server.fresh(tcp=True)
    server.sql("ALTER ROLE penstock PASSWORD 'right'")
    Ledger.open(url.replace("penstock@", "penstock:right@")).close()
    for wrong, advice in (
        (url.replace("penstock@", "penstock:s3cret@"), "password"),
        (url, "password"),
        (url.replace("penstock@", "stranger@"), r"pg_hba\.conf"),
        (server.tcp_url("nowhere").replace("penstock@", "penstock:right@"), "create it"),
    ):
        with pytest.raises(ConfigurationError, match=advice) as caught:
            Ledger.open(wrong)
        assert "s3cret" not in str(caught.value)


def test_a_role_that_may_not_create_tables_gets_the_permission_named(server: PostgresqlServer) -> None:
    url = server.fresh()
    server.sql("CREATE ROLE plain LOGIN")
    with pytest.raises(ConfigurationError, match="CREATE in its schema"):
        Ledger.open(url.replace("penstock@", "plain@"))


def test_the_documented_grants_suffice_for_a_worker_that_may_not_change_tables(server: PostgresqlServer) -> None:
    url = server.fresh()
    Ledger.open(url).close()
    server.sql("CREATE ROLE worker LOGIN")
    worker = url.replace("penstock@", "worker@")
    with pytest.raises(ConfigurationError, match="SELECT, INSERT") as caught:
        Ledger.open(worker)
    assert "CREATE" not in str(caught.value)
    assert "not those of revision" not in str(caught.value)
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker", url=url)
    with closing(Ledger.open(worker)) as ledger:
        assert ledger.ensure_pipeline("clicks").next_seq == 1


def test_a_database_of_another_encoding_is_refused(server: PostgresqlServer) -> None:
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigurationError, match="UTF8"):
        Ledger.open(server.url("latin"))


def test_a_commit_of_a_failed_transaction_raises_an_error(harness: LedgerHarness) -> None:
    def write() -> None:
        with harness.ledger.database.writing() as connection:
            connection.execute(text("UPDATE pipelines SET next_seq = 99"))
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.connection.cursor().execute("SELECT * FROM nowhere")

    with pytest.raises(Clash):
        write()
    assert harness.process("a") == 1


def test_a_transaction_pooler_is_named_in_the_error(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    with harness.ledger.database.writing() as connection:
        connection.execute(text("DROP TABLE leaving"))  # as in the session of another server
    with pytest.raises(ConfigurationError, match="PgBouncer"):
        harness.ledger.commit(outcome(claim))


def test_queries_leave_no_rows_in_temporary_tables(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, opened: ExitStack
) -> None:
    monkeypatch.setattr(postgresql, "CONNECTIONS_MAX", 1)
    harness = harness_at(server.fresh(), opened)
    harness.process(*NAMES)
    ids = [row.object_id for row in harness.ledger.objects(PIPELINE, limit=len(NAMES))]
    for _ in range(3):
        assert len(harness.ledger.states(PIPELINE, ids)) == len(NAMES)
        with harness.ledger.database.reading() as connection:
            size = text("SELECT pg_relation_size('wanted') + pg_relation_size('leaving')")
            assert connection.execute(size).scalar_one() == 0


def test_overlapping_claims_cause_no_deadlock_on_the_server(harness: LedgerHarness, server: PostgresqlServer) -> None:
    def claim(number: int) -> int:
        rotated = NAMES[number * 50 :] + NAMES[: number * 50]
        names = rotated[::-1] if number % 2 else rotated
        return len(harness.claim(candidates(*names), attempt=f"by {number}").claimed)

    assert sum(together(claim)) == len(NAMES)
    assert "deadlock" not in server.log.read_text(encoding="utf-8")


def test_text_that_postgresql_refuses_is_stored_escaped(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a\0b"), worker="w\0\udcff")
    assert len(claim.claimed) == 1
    harness.ledger.commit(outcome(claim))
    rows = harness.ledger.objects(PIPELINE)
    assert {row.state for row in rows} == {ObjectState.PROCESSED}
    (batch,) = harness.ledger.batches(PIPELINE)
    assert batch.worker == "w\\x00\\udcff"


def test_a_migration_killed_in_the_middle_leaves_no_tables(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = server.fresh()
    with monkeypatch.context() as patch:
        from penstock.ledger import migrate

        upgrade = migrate.upgrade

        def upgrade_and_kill(connection: object) -> None:
            upgrade(connection)  # type: ignore[arg-type]
            server.kill()

        patch.setattr(migrate, "upgrade", upgrade_and_kill)
        with pytest.raises(TemporaryError):
            Ledger.open(url)
    server.start()
    assert server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", url=url) == [(0,)]
    Ledger.open(url).close()


def test_a_migration_waits_for_the_one_before_it(server: PostgresqlServer) -> None:
    url = server.fresh()

    def open_it(number: int) -> bool:
        Ledger.open(url).close()
        return True

    assert all(together(open_it))
