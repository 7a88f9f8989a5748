"""`penstock admin ledger`: its tables, and old rows that are archived."""

import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene
from tests.services.forked_process import run_forked

from penstock.ledger.migrate import newest_revision

HEAD = newest_revision()
LONG_AGO_SECONDS = 100 * 86_400.0
KILLED = -signal.SIGKILL


def database(scene: Scene) -> Path:
    return scene.where.state / "ledger.db"


def age(scene: Scene) -> None:
    """Make everything committed until now old."""
    with closing(sqlite3.connect(database(scene))) as connection, connection:
        connection.execute("UPDATE batches SET committed_at = committed_at - ?", (LONG_AGO_SECONDS,))


def object_rows(scene: Scene) -> int:
    with closing(sqlite3.connect(database(scene))) as connection:
        (count,) = connection.execute("SELECT count(*) FROM objects").fetchone()
    return int(count)


def files(scene: Scene) -> list[Path]:
    return sorted((scene.table / "_penstock" / "archive").glob("*"))


@pytest.fixture
def old_scene(scene: Scene) -> Scene:
    """Create two objects that were processed and published long ago."""
    scene.process("a", "b")
    scene.publish()
    age(scene)
    return scene


def test_show_prints_address_revision_and_rows(penstock: Call, old_scene: Scene) -> None:
    document = penstock("admin", "ledger", "show", "--json").document
    assert document["revision"] == document["newest_revision"] == HEAD
    assert document["server"].startswith("SQLite 3.")
    assert document["tables"]["objects"] == {"rows": 2, "estimated": False}
    assert document["archived_objects"] == 0
    result = penstock("admin", "ledger", "show")
    assert f"revision                {HEAD}\n" in result.out
    assert "table objects           2 rows\n" in result.out


def test_archived_rows_are_shown_as_before(penstock: Call, old_scene: Scene) -> None:
    uri = old_scene.ref("a").uri
    before = penstock("objects", "show", uri, "--json").document
    counts = penstock("status", "--json").document["objects"]
    result = penstock("admin", "ledger", "archive", "--dry-run")
    assert result.out == "2 objects of 1 batch would be archived: 1 file.\n"
    assert (object_rows(old_scene), files(old_scene)) == (2, [])

    (document,) = penstock("admin", "ledger", "archive", "--json").document
    assert (document["objects"], document["batches"], document["files"]) == (2, 1, 1)
    (file,) = files(old_scene)
    assert (object_rows(old_scene), file.stat().st_size) == (0, document["bytes"])
    assert penstock("admin", "ledger", "archive", "--json").document[0]["objects"] == 0

    (after,) = penstock("objects", "show", uri, "--json").document
    assert after == before[0] | {"archived": True}
    assert len(after["timeline"]) == 1
    assert "processed, archived" in penstock("objects", "show", uri).out
    assert penstock("status", "--json").document["objects"] == counts
    shown = penstock("admin", "ledger", "show", "--json").document
    assert (shown["archived_objects"], shown["archive_files"]) == (2, 1)


def test_lists_report_archived_objects_and_list_them_on_request(penstock: Call, old_scene: Scene) -> None:
    penstock("admin", "ledger", "archive")
    result = penstock("objects", "list", "--json")
    assert result.document == []
    assert "2 processed objects left the ledger" in result.err
    rows = penstock("objects", "list", "--archived", "--json").document
    assert [(row["object"], row["state"], row["archived"]) for row in rows] == [
        (old_scene.ref(name).uri, "processed", True) for name in ("a", "b")
    ]
    assert len(penstock("objects", "list", "--archived", "--filter", "/LANDING/B", "--json").document) == 1
    assert len(penstock("objects", "list", "--archived", "--limit", "1", "--json").document) == 1
    assert penstock("objects", "list", "--archived", "--only", "dead").exit_code == 2


def test_young_and_unpublished_batches_are_not_archived(penstock: Call, scene: Scene) -> None:
    scene.process("unpublished")
    age(scene)
    assert penstock("admin", "ledger", "archive", "--json").document[0]["objects"] == 0
    scene.publish()
    scene.process("young")
    scene.publish()
    assert penstock("admin", "ledger", "archive", "--json").document[0]["objects"] == 1
    assert object_rows(scene) == 1


def test_an_age_below_the_minimum_is_refused(penstock: Call, old_scene: Scene) -> None:
    result = penstock("admin", "ledger", "archive", "--older-than", "14 days")
    assert result.exit_code == 2
    assert "15 days after their batch at the earliest" in result.err
    assert penstock("admin", "ledger", "archive", "--older-than", "soon").exit_code == 2
    assert penstock("admin", "ledger", "archive", "--older-than", "15 days", "--json").document[0]["objects"] == 2


def test_a_missing_archive_file_is_reported_and_its_objects_stay_processed(penstock: Call, old_scene: Scene) -> None:
    penstock("admin", "ledger", "archive")
    files(old_scene)[0].unlink()
    result = penstock("objects", "show", old_scene.ref("a").uri)
    assert result.exit_code == 0
    assert "processed, archived" in result.out
    assert "is missing" in result.out
    assert "is missing" in penstock("objects", "list", "--archived").err


def test_the_archive_is_written_to_the_configured_folder(
    penstock: Call, old_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_ARCHIVE", str(old_scene.source.parent / "cold storage"))
    penstock("admin", "ledger", "archive")
    assert files(old_scene) == []
    assert len(list((old_scene.source.parent / "cold storage").rglob("*.parquet"))) == 1
    monkeypatch.delenv("PENSTOCK_OBJECTS_ARCHIVE")
    assert len(penstock("objects", "show", old_scene.ref("a").uri, "--json").document[0]["timeline"]) == 1


@pytest.mark.parametrize(("step", "rows", "kept"), [("archive_written", 2, 1), ("archiving", 2, 1), ("archived", 0, 1)])
def test_the_next_run_completes_an_archive_killed_at_a_step(
    penstock: Call, old_scene: Scene, step: str, rows: int, kept: int
) -> None:
    killed = run_forked(
        [sys.executable, "-m", "penstock", "admin", "ledger", "archive"],
        cwd=old_scene.table.parent,
        env={**os.environ, "PENSTOCK_KILL_AT": step, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        timeout=60,
    )
    assert killed.returncode == KILLED
    assert (object_rows(old_scene), len(files(old_scene))) == (rows, kept)
    for file in files(old_scene):
        os.utime(file, (0, 0))  # long ago: the writer is dead
    (document,) = penstock("admin", "ledger", "archive", "--json").document
    assert (document["objects"], document["swept"]) == ((2, 1) if rows else (0, 0))
    assert (object_rows(old_scene), len(files(old_scene))) == (0, 1)
    assert len(penstock("objects", "show", old_scene.ref("b").uri, "--json").document[0]["timeline"]) == 1


def test_the_tables_of_an_app_need_the_app(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.process("a")
    app_scene.publish()
    age(app_scene)
    result = penstock("admin", "ledger", "archive")
    assert result.exit_code == 2
    assert "--app" in result.err
    result = penstock("admin", "ledger", "archive", "--app", shop)
    assert "clicks: 1 object of 1 batch archived: 1 file" in result.out
    assert object_rows(app_scene) == 0


def test_the_ledger_can_be_downgraded_and_upgraded_again(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    result = penstock("admin", "ledger", "downgrade")
    assert result.exit_code == 2
    assert "one of base, 0001" in result.err
    assert penstock("admin", "ledger", "downgrade", "--yes").exit_code == 2, "no revision was given"
    assert "--yes" in penstock("admin", "ledger", "downgrade", "0003").err
    assert penstock("admin", "ledger", "downgrade", "0003", "--yes", "--json").document == {
        "before": HEAD,
        "after": "0003",
    }
    result = penstock("admin", "ledger", "downgrade", HEAD, "--yes")
    assert (result.exit_code, f"is at 0003, which is earlier than {HEAD}" in result.err) == (2, True)
    document = penstock("admin", "ledger", "show", "--json").document
    assert (document["revision"], document["tables"]["objects"]["rows"]) == ("0003", 1)
    assert "this Penstock works with" in penstock("admin", "ledger", "show").out
    assert penstock("admin", "ledger", "upgrade").out == f"The ledger's tables were at 0003 and are now at {HEAD}.\n"
    assert penstock("admin", "ledger", "upgrade").out == f"The ledger is at {HEAD} already: nothing was changed.\n"
    assert penstock("admin", "ledger", "upgrade", "0099").exit_code == 2
    assert object_rows(scene) == 1
    assert penstock("admin", "ledger", "downgrade", "base", "--yes").out == (
        f"The ledger's tables were at {HEAD}, and are now deleted.\n"
    )
    assert penstock("admin", "ledger", "upgrade").out == f"The ledger's tables were created, at revision {HEAD}.\n"


def test_an_unknown_pipeline_is_a_usage_error(penstock: Call, app_scene: Scene) -> None:
    app_scene.process("a")
    assert penstock("admin", "ledger", "upgrade", "--pipeline", "clicks").exit_code == 0
    result = penstock("admin", "ledger", "upgrade", "--pipeline", "nix")
    assert (result.exit_code, "knows no pipeline nix; its pipelines: clicks" in result.err) == (2, True)


def test_a_downgrade_that_would_lose_archived_objects_is_refused(penstock: Call, old_scene: Scene) -> None:
    penstock("admin", "ledger", "archive")
    result = penstock("admin", "ledger", "downgrade", "0003", "--yes")
    assert result.exit_code == 78
    assert "archived objects" in result.err
    assert penstock("admin", "ledger", "show", "--json").document["revision"] == HEAD


def test_show_creates_no_ledger(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert penstock("admin", "ledger", "show").exit_code == 2
    assert list(tmp_path.iterdir()) == []
