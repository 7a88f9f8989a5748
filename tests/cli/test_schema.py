"""`penstock admin schema` over ledgers as ingests leave them, made without Spark."""

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, CommandResult
from tests.cli.scene import Scene

from penstock.app.paths import LEDGER_FILE, table_paths
from penstock.ledger import Ledger
from penstock.objects.reference import ObjectRef
from penstock.operations.ingest.pipeline import IngestPipeline

NUMBERS = "\n".join(["id,age", *(f"{number},{number % 90}" for number in range(15))]) + "\n"


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a source, in the current folder; ingests only find out how to read it."""

    def serve(pipeline: IngestPipeline, *, sample: Sequence[ObjectRef], **_: object) -> None:
        read = pipeline._find_reading(sample)
        if pipeline.request.schema is not None:
            pipeline._remember_given(read, pipeline.state.ledger.ensure_pipeline(pipeline.where.pipeline))

    monkeypatch.setattr(IngestPipeline, "serve", serve)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "1.csv").write_text(NUMBERS)
    (tmp_path / "people" / "2.csv").write_text(f"{NUMBERS}16,n/x\n")
    return tmp_path / "people"


def set_table(folder: Path, columns: str) -> None:
    """Record a schema of the table, as the first batch does."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (column.split() for column in columns.split(", "))
    ]
    where = table_paths(folder / "clicks")
    with (
        closing(Ledger.open(f"sqlite:///{where.state / LEDGER_FILE}")) as ledger,
        ledger.database.writing() as connection,
    ):
        connection.exec_driver_sql(
            "INSERT INTO table_schemas (pipeline, schema_id, table_schema) VALUES (?, 1, ?)",
            (where.pipeline, json.dumps({"type": "struct", "fields": fields})),
        )
        connection.exec_driver_sql("UPDATE pipelines SET schema_id = 1")


def sentence(result: CommandResult) -> str:
    """Return the error of a call that was refused: one sentence."""
    assert result.exit_code == 2, result
    assert result.err.startswith("penstock: ")
    assert result.err.count("\n") == 1
    return result.err


def the_only(found: CommandResult) -> Any:
    [document] = found.document
    return document


def test_an_inference_is_explained_when_it_happens_and_ever_after(penstock: Call, people: Path) -> None:
    why = 'age is STRING since "n/x" in 2.csv, line 17, which may mean NULL; 30 of 31 values are BIGINT'
    result = penstock("ingest", "people", "clicks")
    assert "schema inferred from a sample and recorded: id BIGINT, age STRING" in result.err
    assert why in result.err

    result = penstock("admin", "schema", "show")
    assert (result.exit_code, result.err) == (0, "")
    assert 'csv, delimiter ","' in result.out
    assert f"source       {people}" in result.out
    assert "2 objects: 1.csv, 2.csv" in result.out
    assert why.removeprefix("age is STRING ") in result.out
    assert 'all 31 values are BIGINT, such as "0" in 1.csv, line 2' in result.out

    document = the_only(penstock("admin", "schema", "show", "--json"))
    assert document["ddl"] == "id BIGINT, age STRING"
    assert document["dialect"]["format"] == "csv"
    age = document["columns"][1]
    assert (age["name"], age["type"], age["nullable"], age["from"], age["why"]) == (
        "age",
        "STRING",
        True,
        "inferred",
        why,
    )
    assert (age["evidence"]["value"], age["evidence"]["line"], age["evidence"]["cause"]) == (
        '"n/x"',
        17,
        "perhaps a null mark",
    )
    assert document["origin"]["objects"] == [f"file://{people}/1.csv", f"file://{people}/2.csv"]
    assert penstock("admin", "schema", "show", "--ddl").out == "id BIGINT, age STRING\n"


def test_before_the_first_ingest_there_is_nothing_to_show(penstock: Call, people: Path, scene: Scene) -> None:
    with scene._state() as state:
        state.ledger.ensure_pipeline(scene.where.pipeline)
    result = penstock("admin", "schema", "show")
    assert (result.exit_code, result.out) == (0, "")
    assert result.err.startswith("No schema is remembered: the first ingest without --schema infers one")
    document = the_only(penstock("admin", "schema", "show", "--json"))
    assert (document["ddl"], document["columns"], document["origin"]) == (None, [], None)
    assert "No schema is remembered for " in sentence(penstock("admin", "schema", "diff"))


def test_a_schema_of_an_earlier_version_is_shown_without_an_origin(penstock: Call, scene: Scene) -> None:
    with scene._state() as state:
        state.ledger.remember_source_schema(scene.where.pipeline, "id BIGINT", None)
    result = penstock("admin", "schema", "show")
    assert "unknown format (recorded by an earlier version)" in result.out
    assert the_only(penstock("admin", "schema", "show", "--json"))["columns"][0]["from"] is None
    assert "The source of " in sentence(penstock("admin", "schema", "diff"))
    assert "give it (--format)" in sentence(penstock("admin", "schema", "set", "id int"))
    assert penstock("admin", "schema", "set", "id int", "--format", "jsonl").exit_code == 0
    document = the_only(penstock("admin", "schema", "show", "--json"))
    assert (document["ddl"], document["dialect"]) == ("id INT", {"format": "jsonl"})


def test_a_given_schema_is_remembered_with_its_dialect(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks", "--format", "csv", "--schema", "id int, age string", "--no-header")
    document = the_only(penstock("admin", "schema", "show", "--json"))
    assert document["ddl"] == "id INT, age STRING"
    assert document["dialect"]["header"] is False
    assert document["origin"]["how"] == "given"
    assert [column["from"] for column in document["columns"]] == ["given", "given"]
    assert 'csv, delimiter ",", no header' in penstock("admin", "schema", "show").out


def test_objects_that_differ_from_the_remembered_schema_are_listed_with_the_reason(
    penstock: Call, people: Path
) -> None:
    (people / "2.csv").unlink()
    penstock("ingest", "people", "clicks")
    result = penstock("admin", "schema", "diff")
    assert (result.exit_code, result.out, result.err) == (0, "", "No differences.\n")

    (people / "2.csv").write_text("id,age,city\n1,2,x\n2,old,y\n")
    result = penstock("admin", "schema", "diff")
    assert result.exit_code == 3
    assert 'age is STRING since "old" in 2.csv, line 3, which may mean NULL; 16 of 17 values are BIGINT' in result.out
    assert 'not remembered, so not read; city is STRING: all 2 values are STRING, such as "x" in 2.csv, line 2' in (
        result.out
    )
    assert "Note: headers differ: only 2.csv has city; where a column is missing, it is null." in result.out

    (people / "1.csv").write_text("id\n1\n2\n")
    (people / "2.csv").write_text("id\n1\n2\n")
    result = penstock("admin", "schema", "diff", "--json")
    assert result.exit_code == 3
    [gone] = json.loads(result.out)["differences"]
    assert (gone["name"], gone["remembered"], gone["found"], gone["against"]) == ("age", "BIGINT", None, "objects")
    assert gone["reason"] == "no object of the sample has it; rows get NULL"


def test_a_dialect_that_changed_is_a_difference(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    for name in ("1.csv", "2.csv"):
        (people / name).write_text(NUMBERS.replace(",", ";") + "16;n/x\n")
    [found] = json.loads(penstock("admin", "schema", "diff", "--json").out)["differences"]
    assert (found["name"], found["remembered"], found["found"]) == ("delimiter", '","', '";"')
    assert found["object"] == f"file://{people}/1.csv"


def test_a_given_dialect_is_used_for_the_comparison(penstock: Call, people: Path) -> None:
    (people / "1.csv").write_text("1,2\n3,x\n")
    (people / "2.csv").unlink()
    penstock("ingest", "people", "clicks", "--no-header", "--format", "csv")
    assert penstock("admin", "schema", "diff").err == "No differences.\n"


def test_a_given_schema_is_compared_without_reading_objects(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    (people / "1.csv").unlink()
    (people / "2.csv").unlink()
    result = penstock("admin", "schema", "diff", "--schema", "ID bigint, v double", "--json")
    assert result.exit_code == 3
    found = json.loads(result.out)
    assert [(one["name"], one["remembered"], one["found"], one["against"]) for one in found["differences"]] == [
        ("v", None, "DOUBLE", "given"),
        ("age", "STRING", None, "given"),
    ]
    assert (found["source"], found["objects"]) == ("", [])
    assert "holds no objects to compare with" in sentence(penstock("admin", "schema", "diff"))


def test_the_columns_of_the_table_are_compared_too(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    set_table(people.parent, "id long, age long, extra date, _object string, _offset long")
    result = penstock("admin", "schema", "diff", "--json")
    found = json.loads(result.out)["differences"]
    assert [(one["name"], one["remembered"], one["found"], one["against"]) for one in found] == [
        ("age", "STRING", "BIGINT", "table"),
        ("extra", None, "DATE", "table"),
    ]


def test_a_wrong_inference_is_changed_and_the_next_ingest_uses_it(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    result = penstock("admin", "schema", "set", "--column", "age int", "--column", "city string", "--null", "n/x")
    assert result.exit_code == 0
    assert "Remembered; the next ingest uses it." in result.err
    result = penstock("ingest", "people", "clicks")
    assert "schema inferred" not in result.err
    document = the_only(penstock("admin", "schema", "show", "--json"))
    assert document["ddl"] == "id BIGINT, age INT, city STRING"
    assert document["dialect"]["null_marks"] == ["n/x"]
    assert [column["from"] for column in document["columns"]] == ["inferred", "set", "set"]
    assert document["columns"][0]["evidence"]["line"] == 2
    assert (document["origin"]["how"], document["origin"]["source"]) == ("set", str(people))

    result = penstock("admin", "schema", "set", "--column", "age int")
    assert (result.exit_code, result.out, result.err) == (0, "", "Nothing changes: this is what is remembered.\n")
    [entry] = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["outcome"]) == ("schema set", "done")
    assert (entry["details"]["before"], entry["details"]["after"]) == (
        "id BIGINT, age STRING",
        "id BIGINT, age INT, city STRING",
    )


def test_a_schema_is_inferred_again_once_the_files_are_repaired(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    (people / "2.csv").write_text(NUMBERS)
    result = penstock("admin", "schema", "set", "--infer", "--json")
    assert result.document["ddl"] == "id BIGINT, age BIGINT"
    assert result.document["differences"][0]["reason"].startswith("age is BIGINT: all 30 values are BIGINT, such as")
    assert penstock("admin", "schema", "diff").exit_code == 0
    assert the_only(penstock("admin", "schema", "show", "--json"))["origin"]["how"] == "inferred"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ["--column", "age bigint"],
            (
                "The column age is STRING in the table {table} and would become BIGINT, which it cannot hold: keep "
                "STRING, or give --transform if a transform casts it to STRING, or ingest into another table "
                "(penstock ingest --schema)."
            ),
        ),
        (["id bigint"], "The table {table} has a column age (STRING), and the schema would lack it: keep it"),
        (["ID bigint, age string"], "The column ID would be written to the table {table}, which spells it id"),
    ],
)
def test_a_type_that_the_table_cannot_hold_is_refused(
    penstock: Call, people: Path, change: Sequence[str], expected: str
) -> None:
    penstock("ingest", "people", "clicks")
    set_table(people.parent, "id long, age string, _object string, _offset long")
    refused = sentence(penstock("admin", "schema", "set", *change))
    assert expected.format(table=people.parent / "clicks") in refused
    assert penstock("admin", "schema", "show", "--ddl").out == "id BIGINT, age STRING\n"
    assert penstock("admin", "audit", "--json").document == []
    assert penstock("admin", "schema", "set", *change, "--transform").exit_code == 0


def test_a_new_column_fits_every_table(penstock: Call, people: Path) -> None:
    penstock("ingest", "people", "clicks")
    set_table(people.parent, "id long, age string, _object string, _offset long")
    assert penstock("admin", "schema", "set", "--column", "city string").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["set"], "Give either --infer, or what is to change"),
        (["set", "--infer", "--column", "a int"], "Give either --infer, or what is to change"),
        (["set", "--column", "a int", "--source", "people"], "--source is for --infer"),
        (["set", "id whatever"], "unknown type 'whatever'"),
        (["set", "--column", "id"], "ends where the type of 'id' should follow"),
        (["set", "o struct<a int>"], "The format csv has no place for a list or struct"),
        (["set", "--format", "avrox"], "The format 'avrox' is unknown"),
        (["set", "--delimiter", ";;"], "The delimiter ';;' is not one ASCII character"),
        (
            ["set", "--format", "jsonl", "--no-header"],
            "The options of the dialect are for the format csv, and the format is jsonl",
        ),
        (["diff", "--source", "my people"], "is an argument here: `penstock admin schema diff 'my people'`."),
        (["diff", "people", "--schema", "id int"], "SOURCE and --schema are two things to compare with"),
        (["diff", "nowhere"], "does not exist; give a folder or file to read"),
        (["diff", "--schema", "id"], "ends where the type of 'id' should follow"),
        (["show", "--ddl", "--json"], "--ddl and --json are two formats"),
    ],
)
def test_mistakes_are_one_sentence(penstock: Call, people: Path, arguments: Sequence[str], expected: str) -> None:
    penstock("ingest", "people", "clicks")
    assert expected in sentence(penstock("admin", "schema", *arguments))


def test_the_schema_of_an_apps_pipeline_is_in_its_code(penstock: Call, app_scene: Scene, shop: str) -> None:
    with app_scene._state() as state:
        state.ledger.ensure_pipeline("clicks")
    assert "The app declares the schema of clicks in its code" in sentence(
        penstock("admin", "schema", "set", "id int", "--app", shop, "--pipeline", "clicks")
    )
    result = penstock("admin", "schema", "show", "--app", shop)
    assert (result.exit_code, result.out) == (0, "")


def test_a_change_that_lost_a_race_is_refused(penstock: Call, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock("ingest", "people", "clicks")
    replace = Ledger.replace_source_schema
    first = threading.Event()

    def late(ledger: Ledger, seen: Any, ddl: str, options: str | None) -> bool:
        if not first.is_set():
            first.set()
            assert replace(ledger, seen, "id STRING", options)
        return replace(ledger, seen, ddl, options)

    monkeypatch.setattr(Ledger, "replace_source_schema", late)
    assert "was changed by another process meanwhile" in sentence(penstock("admin", "schema", "set", "id int"))
    assert penstock("admin", "schema", "show", "--ddl").out == "id STRING\n"


def test_an_ingest_with_a_schema_does_not_overwrite_a_change_made_while_it_ran(
    penstock: Call, people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock("ingest", "people", "clicks")

    def serve(pipeline: IngestPipeline, *, sample: Sequence[ObjectRef], **_: object) -> None:
        seen = pipeline.state.ledger.ensure_pipeline(pipeline.where.pipeline)
        read = pipeline._find_reading(sample)
        assert pipeline.state.ledger.replace_source_schema(seen, "id INT", seen.source_options)
        pipeline._remember_given(read, seen)

    monkeypatch.setattr(IngestPipeline, "serve", serve)
    penstock("ingest", "people", "clicks", "--schema", "id string")
    assert penstock("admin", "schema", "show", "--ddl").out == "id INT\n"


def test_the_former_place_of_the_command_is_hinted_at(penstock: Call) -> None:
    result = penstock("schema", "show")
    assert result.exit_code == 2
    assert "penstock admin schema" in result.err
