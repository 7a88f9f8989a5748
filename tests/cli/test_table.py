"""`penstock table show`."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from tests.cli.conftest import Call
from tests.cli.scene import SCHEMA, Scene

from penstock.cli.table import fitting, in_json, text_of
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import open_sink
from penstock.sinks.sink import Append
from penstock.storage.local import LocalFiles

USAGE = 2


def iceberg_table(folder: Path, ids: list[int]) -> None:
    """Create an Iceberg table as a pipeline of an app leaves it: without a data directory of its own."""
    files = LocalFiles(folder)
    sink = open_sink(files, scheme="iceberg", pipeline="clicks")
    sink.ensure_schema(SCHEMA)
    (folder / "data/a/r1").mkdir(parents=True)
    pq.write_table(pa.table({"id": ids}, schema=SCHEMA), folder / "data/a/r1/p.parquet")
    table = sink.load()
    assert table is not None
    found = list_files(files, "data/a/r1", partition_by=(), schema=SCHEMA)
    table.append(Append(seq=1, attempt_id=f"01K0{0:022d}", files=found))


def test_the_first_rows_are_shown_with_their_number_and_that_of_all(penstock: Call, scene: Scene) -> None:
    scene.process("a", rows=1_234)
    scene.publish()
    shown = penstock("table", "show", "clicks")
    assert shown.exit_code == 0
    assert shown.out.splitlines() == ["id", *map(str, range(10))]
    assert shown.err == "10 of 1,234 rows (version 1); --limit shows more.\n"
    assert penstock("table", "show", "--limit", "2").out.splitlines() == ["id", "0", "1"], "the only table here"
    everything = penstock("table", "show", "--table", "clicks", "--limit", "2000")
    assert everything.err == "1,234 rows (version 1).\n"
    document = penstock("table", "show", f"file://{scene.table}", "--limit", "2", "--json").document
    assert document == {
        "table": str(scene.table),
        "format": "delta",
        "version": 1,
        "rows_total": 1_234,
        "columns": [{"name": "id", "type": "long"}],
        "rows": [{"id": 0}, {"id": 1}],
    }


def test_a_table_without_rows_and_one_that_does_not_exist_differ(penstock: Call, scene: Scene) -> None:
    missing = penstock("table", "show", "clicks")
    assert (missing.exit_code, missing.out) == (USAGE, "")
    assert f"There is no table at {scene.table}: a pipeline creates its table" in missing.err
    assert penstock("table", "show", "clicks", "--quarantine").err == missing.err
    assert penstock("table", "show", "nowhere", "--json").exit_code == USAGE
    open_sink(scene.where.table, pipeline=scene.where.pipeline).ensure_schema(SCHEMA)
    empty = penstock("table", "show", "clicks")
    assert (empty.exit_code, empty.out) == (0, "")
    assert empty.err == f"The table {scene.table} has no rows (version 0); its columns: id.\n"
    document = penstock("table", "show", "clicks", "--json").document
    assert (document["version"], document["rows_total"], document["rows"]) == (0, 0, [])


def test_the_quarantine_has_the_bad_lines_of_the_table(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    none = penstock("table", "show", "--quarantine")
    assert (none.exit_code, none.out) == (0, "")
    assert none.err == f"No line was ever quarantined: there is no table {scene.table}_quarantine.\n"
    document = penstock("table", "show", "--quarantine", "--json").document
    assert (document["version"], document["rows_total"], document["columns"], document["rows"]) == (None, 0, [], [])
    scene.quarantine("b.jsonl", b"\x1b[2J\xff", b"x" * 5_000)
    scene.publish()
    shown = penstock("table", "show", "--quarantine", "--columns", "reason,raw", "--limit", "1")
    assert shown.out.splitlines() == ["reason     raw", r"malformed  \x1b[2J\xff"]
    assert shown.err == "1 of 2 rows (version 1); --limit shows more.\n"
    long = penstock("table", "show", "clicks", "--quarantine", "--columns", "raw").out.splitlines()[2]
    assert long == f"{'x' * 200}... (5,000 characters)"
    whole = penstock("table", "show", "clicks_quarantine", "--columns", "raw", "--json").document
    assert [len(row["raw"]) for row in whole["rows"]] == [8, 5_000]


def test_the_table_of_an_apps_pipeline_is_shown(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.process("a")
    app_scene.publish()
    expected = ["id", "0", "1"]
    assert penstock("table", "show", "--app", shop, "--pipeline", "clicks").out.splitlines() == expected
    assert penstock("table", "show", "tables/clicks").out.splitlines() == expected
    several = penstock("table", "show", "--app", shop)
    assert (several.exit_code, "Which pipeline? Give --pipeline; there are clicks, views." in several.err) == (
        USAGE,
        True,
    )
    none = penstock("table", "show", "--app", shop, "--pipeline", "views")
    assert (none.exit_code, "There is no table at" in none.err) == (USAGE, True)
    both = penstock("table", "show", "tables/clicks", "--app", shop)
    assert (both.exit_code, "leave out --table, --app and --pipeline" in both.err) == (USAGE, True)


def test_an_iceberg_table_is_found_with_and_without_its_scheme(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    iceberg_table(tmp_path / "views", [7, 8, 9])
    for address in ("iceberg:views", "views", str(tmp_path / "views")):
        shown = penstock("table", "show", address, "--limit", "1", "--json").document
        assert (shown["format"], shown["rows_total"], shown["rows"]) == ("iceberg", 3, [{"id": 7}])
    other = penstock("table", "show", "delta:views")
    assert (other.exit_code, "holds a table in the format iceberg and no Delta table; write iceberg:" in other.err) == (
        1,
        True,
    )
    assert "is in no known format" in penstock("table", "show", "parquet:/views").err


def test_columns_are_selected_by_name(penstock: Call, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1], "b": ["x"], "c": [None]}, schema=None))
    shown = penstock("table", "show", tmp_path / "t", "--columns", "b, a")
    assert shown.out.splitlines() == ["b  a", "x  1"]
    unknown = penstock("table", "show", tmp_path / "t", "--columns", "a,B")
    assert (unknown.exit_code, "has no column B; its columns: a, b, c." in unknown.err) == (USAGE, True)
    for wrong in ("a,,b", "a,a", ""):
        assert "has an empty name, or one twice" in penstock("table", "show", tmp_path / "t", "--columns", wrong).err


def test_nulls_and_texts_that_look_like_something_else_differ() -> None:
    assert [text_of(value) for value in (None, "null", "", " a", '"a"', "a b", 'say "a"')] == [
        "null",
        '"null"',
        '""',
        '" a"',
        '"\\"a\\""',
        "a b",
        'say "a"',
    ]
    assert [text_of(value) for value in (True, 1.5, float("nan"), b"\xffa", {"a": None}, [b"x"])] == [
        "true",
        "1.5",
        "NaN",
        r"\xffa",
        '{"a": null}',
        '["x"]',
    ]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (text_of(at), text_of(at.date()), in_json([at, float("-inf")])) == (
        "2026-01-02 03:04:05Z",
        "2026-01-02",
        ["2026-01-02T03:04:05Z", "-Infinity"],
    )


@pytest.mark.parametrize(
    ("widths", "leasts", "total", "expected"),
    [
        ([4, 4], [4, 4], 10, [4, 4]),
        ([4, 4], [4, 4], 9, [4]),  # the second does not fit
        ([4, 50, 30], [4, 12, 12], 80, [4, 42, 30]),  # the widest is cut
        ([4, 50, 30], [4, 12, 12], 40, [4, 16, 16]),
        ([50, 4], [12, 4], 20, [14, 4]),
        ([50, 4], [12, 4], 10, [10]),  # one column at least
    ],
)
def test_columns_share_the_width_of_the_terminal(
    widths: list[int], leasts: list[int], total: int, expected: list[int]
) -> None:
    assert fitting(widths, leasts, total) == expected


def test_a_terminal_gets_the_columns_that_fit_without_escapes_of_the_data(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": [1, None], "text": ["\x1b[31m" + "名" * 60, "null"], **{f"c{n}": [n, n] for n in range(10)}}
    write_deltalake(str(tmp_path / "t"), pa.table(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    shown = penstock("table", "show", tmp_path / "t")
    assert "\x1b[31m" not in shown.out
    header, first, second = re.sub(r"\x1b\[[\d;]*m", "", shown.out).splitlines()
    assert header.split() == ["id", "text", "c0", "c1", "c2", "c3", "c4"]
    assert first.rstrip() == r"   1  \x1b[31m名...    0   1   2   3   4"
    assert second.split() == ["null", '"null"', "0", "1", "2", "3", "4"]
    assert "5 more columns: c5, c6, c7, c8, c9; --columns selects columns, --json prints all." in shown.err
