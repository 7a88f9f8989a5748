"""A user's mistake gets one error message and an exit code, before Spark starts, and creates no table."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.cli.conftest import Call, CommandResult
from tests.cli.scene import Scene
from tests.permissions import obey_permissions

import penstock as penstock_package
from penstock.app.state import open_state
from penstock.config import dotted, load_settings
from penstock.errors import ConfigurationError
from penstock.pipeline.spark import classic

USAGE, FAILED, CONFIGURATION, TEMPORARY_FAILURE = 2, 1, 78, 75


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a source, and let Spark fail to start: a mistake found too late fails its test."""

    def no_spark(settings: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(classic, "launch_gateway", no_spark)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1, "v": 2.5}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_one_error(result: CommandResult, *parts: str) -> None:
    assert result.out == ""
    lines = [line for line in result.err.splitlines() if line.startswith("penstock: ")]
    assert len(lines) == 1, result.err
    assert "Traceback" not in result.err
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("in", "t", "--format", "xml"), ("'xml'", "jsonl")),
        (
            ("in", "t", "--catalog", "lake:web.t"),
            ("the format delta, which has no --catalog", "--register", "or write iceberg:"),
        ),
        (
            ("in", "iceberg:t", "--register", "glue:web.t"),
            ("the format iceberg, which has no --register", "--catalog NAME:NAMESPACE.TABLE"),
        ),
        (("in", "iceberg:t", "--catalog", "web.t"), ("'web.t'", "NAME:NAMESPACE.TABLE")),
        (("in", "t", "--schema", "id lnog"), ("'id'", "'lnog'", "long")),
        (("in", "t", "--schema", "id"), ("id",)),
        (("in", "t", "--schema", "id long, ID string"), ("'ID'", "twice")),
        (("in", "t", "--format", "jsonl", "--schema", "m map<int,string>"), ("m MAP", "STRING")),
        (("in", "t", "--schema", "_object string"), ("_object",)),
        (("nope", "t"), ("nope", "does not exist")),
        (("in/none.jsonl", "t"), ("none.jsonl", "does not exist")),
        (("hdfs://x/y", "t"), ("hdfs://x/y", "local folder nor s3://BUCKET/PREFIX")),
        (("in", "hdfs://x/y"), ("hdfs://x/y", "local folder nor s3://BUCKET/PREFIX")),
        (("s3://", "t"), ("'s3://'", "write s3://BUCKET/PREFIX")),
        (("in", "s3://bucket"), ("s3://bucket", "give a prefix in it")),
        (("s3://bucket/x", "t", "--watch"), ("s3://bucket/x", "--queue")),
        (("s3://lake/in", "s3://lake/in"), ("s3://lake/in", "Penstock writes itself")),
        (("s3://lake/in_quarantine/x", "s3://lake/in"), ("lies in s3://lake/in_quarantine",)),
        (("in", "in"), ("Penstock writes itself",)),
        (("in/_penstock", "in"), ("in/_penstock",)),
        (("in", "in/a.jsonl"), ("is a file",)),
        (("in", "t", "--transform", "nomodule"), ("nomodule", "module:function")),
        (("in", "t", "--transform", "nomodule:f"), ("no module nomodule", "on Python's path")),
        (("in", "t", "--transform", "json:nothing"), ("json", "nothing")),
        (("in", "t", "--transform", "os:sep"), ("os", "sep")),
        (("in", "t", "--transform", "raising:f"), ("raising", "ZeroDivisionError")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_invalid_arguments_of_ingest_are_usage_errors(
    penstock: Call, here: Path, arguments: Sequence[str], parts: Sequence[str]
) -> None:
    (here / "raising.py").write_text("1 / 0\n")
    result = penstock("ingest", *arguments)
    assert result.exit_code == USAGE
    assert_one_error(result, *parts)
    assert not (here / "t").exists()


@pytest.mark.parametrize(
    "arguments", [("ingest", "in"), ("bogus",), ("ingest", "in", "t", "--bogus"), ("objects", "show")]
)
def test_missing_and_unknown_arguments_are_usage_errors(penstock: Call, here: Path, arguments: Sequence[str]) -> None:
    result = penstock(*arguments)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", [("admin", "outbox", "relay"), ("admin", "monitor")])
def test_json_needs_once_for_commands_that_stay_up(penstock: Call, here: Path, command: Sequence[str]) -> None:
    result = penstock(*command, "shop:app", "--json")
    assert result.exit_code == USAGE
    assert_one_error(result, "--json", "--once")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OBJECTS_MAX_BATCH_OBJECTS", "abc"),
        ("OBJECTS_MAX_BATCH_OBJECTS", "0"),
        ("WORKER_LEASE", "-1"),
        ("KILL_AT", "nowhere"),
        ("SPARK_DRIVER_MEMORY", "much"),
    ],
)
def test_an_invalid_setting_in_the_environment_is_a_configuration_error(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{name}", value)
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, name.lower() if name == "KILL_AT" else f"PENSTOCK_{name}", value)


@pytest.mark.parametrize(
    ("toml", "part"),
    [
        ("[worker]\nconcurrency = 'many'", "worker.concurrency"),
        ("[worker]\nconcurency = 5", "concurency"),
        ("[worker]\nconcurrency = ", "penstock.toml"),
    ],
)
def test_an_invalid_settings_file_is_a_configuration_error(penstock: Call, here: Path, toml: str, part: str) -> None:
    (here / "penstock.toml").write_text(toml)
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, part)


@pytest.mark.parametrize("name", ["ledger.db", "queue.db"])
def test_a_data_directory_with_invalid_databases_is_a_configuration_error(
    penstock: Call, here: Path, name: str
) -> None:
    (here / "t" / "_penstock").mkdir(parents=True)
    (here / "t" / "_penstock" / name).write_text("this is no database, and long enough to be recognized as none" * 40)
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, name)


def test_a_ledger_of_a_newer_version_is_refused(penstock: Call, here: Path) -> None:
    with open_state(here / "t" / "_penstock"):
        pass
    with sqlite3.connect(here / "t" / "_penstock" / "ledger.db") as connection:
        connection.execute("UPDATE penstock_ledger_version SET version_num = '9999'")
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, "newer", "ledger.db")


def test_a_queue_of_a_newer_version_is_refused(penstock: Call, here: Path) -> None:
    with open_state(here / "t" / "_penstock"):
        pass
    with sqlite3.connect(here / "t" / "_penstock" / "queue.db") as connection:
        connection.execute("PRAGMA user_version = 9999")
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, "newer", "queue.db")


def test_a_table_folder_with_foreign_files_is_refused(penstock: Call, here: Path) -> None:
    (here / "t").mkdir()
    (here / "t" / "holiday.jpg").touch()
    result = penstock("ingest", "in", "t")
    assert result.exit_code == FAILED
    assert_one_error(result, "holiday.jpg")


@pytest.mark.parametrize("taken", ["landing", "t_quarantine"])
def test_a_refused_table_folder_stays_as_it_was(penstock: Call, here: Path, taken: str) -> None:
    (here / taken).mkdir()
    (here / taken / "a.jsonl").write_text('{"id": 1}\n')
    before = sorted(here.rglob("*"))
    result = penstock("ingest", "in", taken.removesuffix("_quarantine"), "--schema", "id long")
    assert result.exit_code == FAILED
    assert_one_error(result, taken, "a.jsonl", "SOURCE comes first, TABLE second")
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("options", [(), ("--watch",), ("--queue", "q", "--one-host")])
@pytest.mark.parametrize("sign", ["_delta_log/0.json", "_penstock/table"])
def test_a_table_as_the_source_is_refused(penstock: Call, here: Path, sign: str, options: Sequence[str]) -> None:
    (here / "clicks" / sign).parent.mkdir(parents=True)
    (here / "clicks" / sign).touch()
    before = sorted(here.rglob("*"))
    result = penstock("ingest", "clicks", "t", "--schema", "id long", *options)
    assert result.exit_code == USAGE
    assert_one_error(result, f"{here / 'clicks'} is a table; SOURCE comes first, TABLE second.")
    assert sorted(here.rglob("*")) == before


def test_another_schema_than_the_tables_is_refused(penstock: Call, scene: Scene, here: Path) -> None:
    scene.process("a")  # one column, id long
    result = penstock("ingest", "in", "clicks", "--schema", "id string", "--no-provenance")
    assert result.exit_code == FAILED
    assert_one_error(result, "id", "long", "string", "clicks")
    assert penstock("status", "--json").document["objects"]["processing"] == 0


@pytest.mark.parametrize(
    "command", [("ingest", "in", "moved"), ("status", "--table", "moved"), ("admin", "gc", "--table", "moved")]
)
def test_a_table_whose_folder_was_moved_is_refused(
    penstock: Call, scene: Scene, here: Path, command: Sequence[str]
) -> None:
    scene.process("a")
    scene.publish()
    scene.table.rename(here / "moved")
    result = penstock(*command)
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, str(here / "moved"), scene.where.pipeline, "move it back")
    (here / "moved").rename(scene.table)
    assert penstock("status").out.startswith("all well")


def test_a_foreign_table_with_other_columns_is_refused(penstock: Call, here: Path) -> None:
    DeltaTable.create(str(here / "t"), pa.schema([("id", pa.int64()), ("colour", pa.string())]))
    result = penstock("ingest", "in", "t")
    assert result.exit_code == FAILED
    assert_one_error(result, "colour", "missing", str(here / "t"))
    assert DeltaTable(str(here / "t")).version() == 0
    assert not (here / "t" / "data").exists()


@pytest.mark.parametrize(
    ("columns", "exit_code", "part"),
    [
        ("day", USAGE, "no column day"),
        ("id,,v", USAGE, "has an empty column name"),
        ("", USAGE, "has an empty column name"),
        ("id, id", USAGE, "more than once"),
        ("v", FAILED, "v is double, which cannot be partitioned by"),
        ("id, day(ts)", USAGE, "t cannot be partitioned by day(ts), as its format has no partition transforms"),
    ],
)
def test_invalid_partition_columns_are_refused(
    penstock: Call, here: Path, columns: str, exit_code: int, part: str
) -> None:
    result = penstock("ingest", "in", "t", "--partition-by", columns)
    assert result.exit_code == exit_code
    assert_one_error(result, part)
    assert not (here / "t" / "data").exists()


@pytest.mark.parametrize(
    ("key", "order_by", "drop", "part"),
    [
        ("no", "id", "v", "The merge names no, and the rows have id"),
        ("id", "at", "v", "The merge names at, and the rows have id"),
        ("id", "id", "op", "The merge names op, and the rows have id"),
        ("v", "id", "op", "The column v is double, which cannot be a key"),
    ],
)
def test_an_unfit_column_of_a_merge_is_refused(
    penstock: Call, here: Path, key: str, order_by: str, drop: str, part: str
) -> None:
    merge = ("--merge-key", key, "--order-by", order_by, "--merge-drop", drop)
    schema = "id long, v double" + (", op string" if "double" in part else "")
    result = penstock("ingest", "in", "t", "--schema", schema, *merge)
    assert result.exit_code == USAGE
    assert_one_error(result, part)
    assert not (here / "t" / "data").exists()


@pytest.mark.parametrize(
    ("fields", "exit_code", "part"),
    [
        ("days(id)", USAGE, "days(id) has an unknown transform"),
        ("bucket(id, 16)", USAGE, "write bucket(N, COLUMN), with a whole number N"),
        ("bucket(4, id), bucket( 4,id )", USAGE, "is partitioned by bucket(4, id) more than once"),
        ("bucket(4, id), id", USAGE, "is partitioned by bucket(4, id) and id; keep one of them"),
        ("day(ts)", USAGE, "no column ts to partition by"),
        ("hour(id)", FAILED, "id is long, which cannot be partitioned by hour(id); make a timestamp of it"),
        ("bucket(4, v)", FAILED, "v is double, which cannot be partitioned by bucket(4, v)"),
        ("truncate(4, v)", FAILED, "v is double, which cannot be partitioned by truncate(4, v)"),
    ],
)
def test_invalid_partition_transforms_are_refused(
    penstock: Call, here: Path, fields: str, exit_code: int, part: str
) -> None:
    result = penstock("ingest", "in", "iceberg:t", "--schema", "id long, v double", "--partition-by", fields)
    assert result.exit_code == exit_code
    assert_one_error(result, part)
    assert not (here / "t" / "data").exists()


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--max-batch-objects", 0, "objects_max_batch_objects"),
        ("--max-batch-objects", 100_001, "objects_max_batch_objects"),
        ("--max-attempts", 0, "objects_max_attempts"),
        ("--max-attempts", 101, "objects_max_attempts"),
        ("--max-quarantine-ratio", 1.5, "objects_max_quarantine_ratio"),
        ("--stop-timeout", 9.9, "worker_stop_timeout"),
        ("--stop-timeout", "5s", "worker_stop_timeout"),
    ],
)
def test_a_value_out_of_range_is_a_usage_error_as_a_flag_and_a_configuration_error_as_a_setting(
    penstock: Call, here: Path, option: str, value: float | str, field: str
) -> None:
    result = penstock("ingest", "in", "t", option, value)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert option in result.err
    with pytest.raises(ConfigurationError, match=dotted(field)):
        load_settings(**{field: value})


def test_a_table_with_an_unsupported_feature_is_refused(penstock: Call, here: Path) -> None:
    DeltaTable.create(
        str(here / "t"), pa.schema([("id", pa.int64())]), configuration={"delta.enableChangeDataFeed": "true"}
    )
    table = DeltaTable(str(here / "t"))
    table.alter.add_constraint({"positive": "id > 0"})
    result = penstock("ingest", "in", "t")
    assert result.exit_code == FAILED
    assert_one_error(result, str(here / "t"))


def test_missing_java_is_a_configuration_error(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("penstock.pipeline.spark.java.find_spec", lambda name: None)
    monkeypatch.setattr("penstock.app.spark._has_session", lambda: False)  # one of another test needs no Java
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, "Java")


def test_a_missing_spark_extra_is_a_configuration_error(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.extra.find_spec", lambda name: None)
    result = penstock("ingest", "in", "t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, "pip install 'penstock[spark]'")


def test_a_table_folder_that_cannot_be_created_is_a_configuration_error(here: Path) -> None:
    (here / "locked").mkdir(mode=0o500)
    result = without_rights("ingest", "in", "locked/t")
    assert result.exit_code == CONFIGURATION
    assert_one_error(result, "locked/t", "Permission denied")


def test_a_read_only_data_directory_is_reported(scene: Scene) -> None:
    scene.process("a")
    for path in (*scene.where.state.iterdir(), scene.where.state):
        path.chmod(0o500 if path.is_dir() else 0o400)
    result = without_rights("objects", "list")
    assert result.exit_code in (CONFIGURATION, TEMPORARY_FAILURE)
    assert_one_error(result, str(scene.where.state))


def without_rights(*arguments: str) -> CommandResult:
    """Call penstock in a process that obeys permissions, even if the tests run as root."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(penstock_package.__file__).parents[1])},
        preexec_fn=obey_permissions,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_a_source_without_one_good_line_needs_a_schema(penstock: Call, here: Path) -> None:
    (here / "in" / "a.jsonl").write_text("no JSON at all\n")
    result = penstock("ingest", "in", "t")
    assert result.exit_code == USAGE
    assert_one_error(result, "--schema", str(here / "in" / "a.jsonl"))


def test_an_empty_source_is_no_error(penstock: Call, here: Path) -> None:
    (here / "in" / "a.jsonl").unlink()
    assert penstock("ingest", "in", "t").out.startswith("Nothing to do: the source holds no objects. 0 rows added.")
    result = penstock("ingest", "in", "t", "--json")
    assert result.exit_code == 0
    report = json.loads(result.out)
    assert (report["objects_found"], report["rows_written"], report["table_version"]) == (0, 0, None)


def test_folders_that_are_left_out_are_named(penstock: Call, here: Path) -> None:
    (here / "in" / "a.jsonl").rename(here / "in" / ".hidden")
    (here / "in" / "landing").mkdir()
    (here / "in" / "landing" / "a.jsonl").write_text('{"id": 1}\n')
    with open_state(here / "in" / "landing" / "_penstock"):
        pass
    assert "Left out: 1 hidden, the files below 1 table (in/landing)." in penstock("ingest", "in", "t").out.splitlines()
    document = penstock("ingest", "in", "t", "--json").document
    assert document["files_ignored"] == {"hidden": 1, "excluded": 1}
    assert "folders_excluded" not in document
