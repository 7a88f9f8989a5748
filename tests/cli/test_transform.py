"""The transform that a ledger remembers: runs with another one are refused, and a person may accept it."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock import Merge
from penstock.app.paths import LEDGER_FILE
from penstock.ledger import Ledger
from penstock.ledger.schema import pipelines

USAGE = 2
CLEAN = "cleaning_of_the_scene:clean"


@pytest.fixture
def cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module with two transforms that Python can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cleaning_of_the_scene.py").write_text("def clean(frame): return frame\n\ndef tidy(frame): ...\n")


def recorded(scene: Scene) -> str | None:
    with closing(Ledger.open(f"sqlite:///{scene.where.state / LEDGER_FILE}")) as ledger:
        row = ledger.pipeline(scene.where.pipeline)
    assert row is not None
    return row.transform


def make_file(scene: Scene) -> None:
    scene.source.mkdir()
    (scene.source / "a.jsonl").write_text('{"id": 1}\n')


@pytest.mark.usefixtures("cleaning")
def test_an_ingest_with_another_transform_or_none_is_refused_before_anything_starts(
    penstock: Call, scene: Scene
) -> None:
    scene.process("a", transform=CLEAN)
    make_file(scene)
    none = penstock("ingest", "landing", "clicks", "--schema", "id long")
    assert (none.exit_code, none.out) == (USAGE, "")
    assert none.err == (
        f"penstock: The rows of {scene.table} were made with the transform {CLEAN}, and this ingest has none: give "
        f"--transform {CLEAN}. If new rows are to be made differently on purpose, run `penstock admin schema transform "
        "--none --table clicks` first.\n"
    )
    other = penstock("ingest", "landing", "clicks", "--transform", "cleaning_of_the_scene:tidy")
    assert other.exit_code == USAGE
    assert "and this ingest has the transform cleaning_of_the_scene:tidy: give --transform" in other.err
    assert "`penstock admin schema transform cleaning_of_the_scene:tidy --table clicks` first" in other.err


@pytest.mark.usefixtures("cleaning")
def test_a_transform_is_refused_for_rows_made_without_one_until_it_is_accepted(penstock: Call, scene: Scene) -> None:
    scene.process("a", transform="")
    command = ("ingest", "landing", "clicks", "--schema", "id long", "--transform", CLEAN)
    scene.source.mkdir()
    refused = penstock(*command)
    assert refused.exit_code == USAGE
    assert f"were made without a transform, and this ingest has the transform {CLEAN}: leave out --tran" in refused.err
    accepted = penstock("admin", "schema", "transform", CLEAN, "--table", "clicks")
    assert (accepted.exit_code, accepted.err) == (0, "")
    assert accepted.out == (
        f"The next rows of {scene.where.pipeline} are made with the transform {CLEAN}, those before without a "
        "transform.\n"
    )
    assert recorded(scene) == CLEAN
    assert penstock(*command).out.startswith("Nothing to do: the source holds no objects.")
    again = penstock("admin", "schema", "transform", CLEAN)
    assert (again.out, again.err.startswith("Nothing changes: ")) == ("", True)
    document = penstock("admin", "schema", "transform", "--none", "--json").document
    assert document == {"pipeline": scene.where.pipeline, "before": CLEAN, "after": ""}
    (second, first) = penstock("admin", "audit", "--json").document
    assert (first["action"], first["outcome"], second["action"]) == ("schema transform", "done", "schema transform")


def test_the_remembered_merge_is_shown_beside_the_transform(penstock: Call, scene: Scene) -> None:
    scene.process("a", transform="")
    merge = Merge("id", order_by="at", delete_when="op = 'D'")
    with (
        closing(Ledger.open(f"sqlite:///{scene.where.state / LEDGER_FILE}")) as ledger,
        ledger.database.writing() as sql,
    ):
        sql.execute(update(pipelines).values(merge=merge.text()))
    options = """--merge-key id --order-by at --delete-when "op = 'D'\""""
    shown = penstock("admin", "schema", "show").out
    assert [line.partition("  ")[2].strip() for line in shown.splitlines()][-2:] == ["none", options]
    (document,) = penstock("admin", "schema", "show", "--json").document
    assert (document["transform"], document["merge"]) == ("", options)


def test_the_pipeline_of_an_app_with_another_transform_is_refused_until_it_is_accepted(
    penstock: Call, app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_scene.process("a", transform="shop_that_cleans:clean")
    (tmp_path / "landing").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_that_cleans.py").write_text(
        "from penstock import App, DeltaSink, ObjectSource\n"
        "def tidy(frame): return frame\n"
        "app = App()\n"
        "source = ObjectSource('landing', queue='clicks-files', schema='id long')\n"
        "app.pipeline('clicks', source=source, transform=tidy, sink=DeltaSink('tables/clicks'))\n"
    )
    run = ("run", "shop_that_cleans:app", "clicks", "--available-now")
    refused = penstock(*run)
    assert refused.exit_code == USAGE
    assert refused.err.splitlines()[-1] == (
        f"penstock: The rows of {app_scene.table} were made with the transform shop_that_cleans:clean, and the app "
        "declares the transform shop_that_cleans:tidy: declare the same for the pipeline clicks. If new rows are to be "
        "made differently on purpose, run `penstock admin schema transform shop_that_cleans:tidy --pipeline clicks` "
        "first."
    )
    for options in ((), ("--app", "shop_that_cleans:app")):
        name = "shop_that_cleans:tidy"
        accepted = penstock("admin", "schema", "transform", name, "--pipeline", "clicks", *options)
        assert accepted.exit_code == 0, accepted.err
    assert penstock(*run).exit_code == 0


def test_the_name_is_shown_with_the_schema_the_batch_the_object_and_the_status(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.process("b", transform=CLEAN)
    scene.send("a")  # so that there is a queue
    assert f"transform  {CLEAN}" in penstock("admin", "schema", "show").out
    (schema,) = penstock("admin", "schema", "show", "--json").document
    assert schema["transform"] == CLEAN
    assert f"transform     {CLEAN}\n" in penstock("admin", "batches", "show", "2").out
    assert "transform" not in penstock("admin", "batches", "show", "1").out, "it is unknown"
    batches = penstock("admin", "batches", "list", "--json").document
    assert [batch["transform"] for batch in batches] == [None, CLEAN]
    assert f"transform   {CLEAN}\n" in penstock("objects", "show", "landing/b").out
    assert "transform" not in penstock("objects", "show", "landing/a").out
    (shown,) = penstock("objects", "show", "landing/b", "--json").document
    assert shown["transform"] == CLEAN
    assert [one["transform"] for one in penstock("status", "--json").document["pipelines"]] == [CLEAN]
    penstock("admin", "schema", "transform", "--none")
    assert "transform  none\n" in penstock("admin", "schema", "show").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give the name of the transform, or --none."),
        (("a:b", "--none"), "Give the name of the transform, or --none."),
        (("clean",), "is not of the form module:function"),
        (("a:",), "is not of the form module:function"),
    ],
)
def test_a_change_without_a_name_is_refused(
    penstock: Call, scene: Scene, arguments: tuple[str, ...], words: str
) -> None:
    scene.process("a", transform="")
    refused = penstock("admin", "schema", "transform", *arguments)
    assert (refused.exit_code, words in refused.err) == (USAGE, True)
    assert recorded(scene) == ""


def test_a_change_names_one_pipeline_of_an_existing_ledger(
    penstock: Call, app_scene: Scene, shop: str, tmp_path: Path
) -> None:
    Scene.of_app(tmp_path, "views").process("a")
    app_scene.process("a")
    several = penstock("admin", "schema", "transform", "--none", "--app", shop)
    assert (several.exit_code, "Which pipeline? Give --pipeline; there are clicks, views." in several.err) == (
        USAGE,
        True,
    )
    assert penstock("admin", "schema", "transform", "--none", "--table", "nowhere").exit_code == USAGE
