"""The migrations create exactly the tables that the code uses, without side effects."""

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from scripts.ledger_tables import FILE, tables
from sqlalchemy import Connection, create_engine, inspect, make_url
from sqlalchemy.schema import CreateTable
from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness, candidate, outcome

from penstock.errors import ConfigurationError
from penstock.ledger import Ledger, migrate
from penstock.ledger.migrate import SCRIPTS, downgrade, newest_revision, upgrade
from penstock.ledger.records import Beginning, OnChange, replaced_objects
from penstock.ledger.retractions import Retraction
from penstock.ledger.schema import VERSION_TABLE, metadata

pytestmark = pytest.mark.usefixtures("migrations")

CREATE = migrate.create


def schema_sql(connection: Connection) -> dict[str, str]:
    """Return the SQL of all tables and indexes by name, with white space normalized."""
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND type <> 'view'")
    return {name: " ".join(sql.split()) for name, sql in rows if VERSION_TABLE not in name}


def test_upgrading_creates_the_tables_of_the_metadata() -> None:
    ledger = Ledger.open("sqlite://")
    with ledger.database.reading() as connection:
        migrated = schema_sql(connection)
    with create_engine("sqlite://").connect() as connection:
        metadata.create_all(connection)
        created = schema_sql(connection)
    assert migrated == created
    assert len(migrated) >= len(metadata.tables)


def test_two_ledgers_are_created_at_once_by_two_threads() -> None:
    """As a worker with a dashboard does at its first start: Alembic's globals are of one migration at a time."""
    running: list[int] = []
    together = threading.Event()

    def upgrading(*arguments: Any) -> None:
        running.append(1)
        if len(running) > 1:
            together.set()
        together.wait(0.2)
        command_upgrade(*arguments)
        running.pop()

    command_upgrade = command.upgrade
    with patch("alembic.command.upgrade", upgrading), ThreadPoolExecutor(2) as threads:
        ledgers = list(threads.map(lambda _: Ledger.open("sqlite://"), range(2)))
    for ledger in ledgers:
        ledger.close()
    assert not together.is_set()


def test_a_new_sqlite_ledger_has_the_tables_of_the_migrations_without_running_them(tmp_path: Path) -> None:
    def opened(name: str) -> list[tuple[object, ...]]:
        with closing(Ledger.open(tmp_path / name)) as ledger, ledger.database.reading() as connection:
            versions = connection.exec_driver_sql(f"SELECT * FROM {VERSION_TABLE}").all()
            shape = connection.exec_driver_sql("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid")
            return [*map(tuple, versions), *map(tuple, shape)]

    migrated = opened("migrated.db")
    assert len(migrated) > len(metadata.tables)
    with patch.object(migrate, "create", CREATE), patch("alembic.command.upgrade") as run:
        assert opened("created.db") == migrated
    run.assert_not_called()
    assert FILE.read_text(encoding="utf-8") == tables(), "run python -m scripts.ledger_tables"


def test_a_process_that_creates_a_ledger_does_not_import_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from penstock.ledger import Ledger; "
        f"Ledger.open(Path({str(tmp_path / 'ledger.db')!r})).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_migrations_leave_no_difference_to_the_metadata() -> None:
    ledger = Ledger.open("sqlite://")
    with ledger.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_a_downgrade_to_base_and_an_upgrade_restore_the_tables() -> None:
    ledger = Ledger.open("sqlite://")
    with ledger.database.writing() as connection:
        before = schema_sql(connection)
        downgrade(connection, "base")
        assert set(inspect(connection).get_table_names()) == {VERSION_TABLE}
        upgrade(connection)
        assert schema_sql(connection) == before


def test_the_code_names_the_newest_revision() -> None:
    scripts = ScriptDirectory(str(Path(sys.modules["penstock.ledger"].__path__[0]) / SCRIPTS.split(":")[1]))
    assert scripts.get_heads() == [newest_revision()]


def test_opening_again_keeps_the_rows(tmp_path: Path) -> None:
    for _ in range(2):
        ledger = Ledger.open(tmp_path / "ledger.db")
        ledger.ensure_pipeline("kept")
        assert [row.id for row in ledger.pipelines()] == ["kept"]
        ledger.close()


def test_a_newer_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    with ledger.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    ledger.close()
    with pytest.raises(ConfigurationError, match=r"^The ledger .* was written by a newer Penstock \(revision 9999\)"):
        Ledger.open(tmp_path / "ledger.db")


def test_tables_of_another_program_are_refused_and_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    with create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE batches (name TEXT)")
    with pytest.raises(ConfigurationError, match=r"theirs.db has a table batches"):
        Ledger.open(url)
    with create_engine(url).connect() as connection:
        assert inspect(connection).get_table_names() == ["batches"]


def test_a_failed_migration_leaves_no_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE x (ix_objects_uri TEXT)")
        connection.exec_driver_sql("CREATE INDEX ix_objects_uri ON x (ix_objects_uri)")  # the migration needs this name
    with pytest.raises(Exception, match="ix_objects_uri"):
        Ledger.open(url)
    with create_engine(url).connect() as connection:
        assert inspect(connection).get_table_names() == ["x"]


def test_opening_a_ledger_ignores_alembic_ini_and_leaves_logging_unchanged(tmp_path: Path) -> None:
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = nowhere\n")
    program = (
        "import logging\n"
        "logging.basicConfig(level='WARNING')\n"
        "mine = logging.getLogger('mine')\n"
        "from penstock.ledger import Ledger\n"
        "Ledger.open('sqlite:///here.db').close()\n"
        "assert not mine.disabled and len(logging.getLogger().handlers) == 1\n"
        "assert logging.getLogger().level == logging.WARNING\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert (tmp_path / "here.db").exists()


def test_no_log_handler_is_added() -> None:
    before = list(logging.getLogger().handlers)
    Ledger.open("sqlite://").close()
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize(("url", "key"), [("mysql://", "`key` VARBINARY(4096)"), ("postgresql://", "key BYTEA")])
def test_the_tables_compile_for_other_databases(url: str, key: str) -> None:
    dialect = make_url(url).get_dialect()()
    tables = {name: str(CreateTable(table).compile(dialect=dialect)) for name, table in metadata.tables.items()}
    assert key in tables["objects"]


def test_a_ledger_with_retractions_is_not_downgraded_to_a_revision_that_would_ignore_them() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline("clicks")
    ledger.retractions.retract(
        Retraction(pipeline="clicks", attempt_id="a", worker="w", addresses=["s3://b/a"], reason="r")
    )
    with pytest.raises(ConfigurationError, match="cannot be downgraded"), ledger.database.writing() as connection:
        downgrade(connection, "0012")


def test_a_ledger_that_replaced_versions_is_not_downgraded_to_a_revision_that_would_add_them() -> None:
    ledger = Ledger.open("sqlite://")
    harness = LedgerHarness(ledger)
    harness.ledger.ensure_pipeline(PIPELINE)
    for name in ("v1", "v2"):
        held = harness.claim([candidate(name, key=b"a")], on_change=OnChange.REPLACE)
        ledger.commit(outcome(held, on_change=OnChange.REPLACE, since_seq=held.next_seq))
        if name == "v1":
            with ledger.database.writing() as connection:
                downgrade(connection, "0014")
                upgrade(connection)
    with pytest.raises(ConfigurationError, match="changed objects"), ledger.database.writing() as connection:
        downgrade(connection, "0014")
    assert replaced_objects(ledger.batches(PIPELINE)[-1].record.replaces) == ("s3://landing/a",)


def test_a_ledger_with_appended_rows_is_not_downgraded_to_a_revision_that_would_take_them_for_whole_files() -> None:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)

    def process(name: str, base: str | None) -> str:
        held = harness.claim([candidate(name, key=b"a")], on_change=OnChange.TAIL)
        done = outcome(held, on_change=OnChange.TAIL, since_seq=held.next_seq)
        beginning = Beginning(size_bytes=1, digest="d", reading="r")
        ledger.commit(replace(done, processed=[replace(done.processed[0], beginning=beginning, appended_to=base)]))
        return held.attempt_id

    process("v1", None)
    with ledger.database.writing() as connection:
        downgrade(connection, "0015")
        upgrade(connection)
    held = harness.claim([candidate("v2", key=b"a")], on_change=OnChange.TAIL)
    assert ledger.beginnings(PIPELINE, held.attempt_id) == {}, "the next version is read whole"
    process("v4", process("v3", None))
    with pytest.raises(ConfigurationError, match="files that grew"), ledger.database.writing() as connection:
        downgrade(connection, "0015")


def test_a_ledger_with_merged_batches_is_not_downgraded_to_a_revision_that_would_add_their_rows() -> None:
    ledger = Ledger.open("sqlite://")
    harness = LedgerHarness(ledger)
    ledger.ensure_pipeline(PIPELINE)
    with ledger.database.writing() as connection:
        downgrade(connection, "0015")
        upgrade(connection)
    merged = outcome(harness.claim([candidate("a")]))
    ledger.commit(replace(merged, record=replace(merged.record, merge="{}", tombstones="[]")))
    with pytest.raises(ConfigurationError, match="merged by key"), ledger.database.writing() as connection:
        downgrade(connection, "0015")
    assert ledger.ensure_pipeline(PIPELINE).merge == "{}"
    assert ledger.deletes_before(PIPELINE, 1) == {}
    assert list(ledger.deletes_before(PIPELINE, 2).values()) == ["[]"]
    assert (ledger.is_merged(PIPELINE, 0), ledger.is_merged(PIPELINE, 1)) == (False, True)
