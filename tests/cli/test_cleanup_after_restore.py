"""`penstock admin cleanup` on a table that another writer has restored: objects whose rows are missing stay in the
source.
"""

import os
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.conftest import Call
from tests.cli.scene import Scene

APP = """
from penstock import App, DeltaSink, ObjectSource, cleanup

CLEANUPS = {"delete": cleanup.Delete(after="0 s"), "move": cleanup.Move("done")}


def app_that(action):
    app = App()
    source = ObjectSource("landing", queue="clicks-files", schema="id long", cleanup=CLEANUPS[action])
    app.pipeline("clicks", source=source, sink=DeltaSink("tables/clicks"))
    return app


delete, move = app_that("delete"), app_that("move")
"""


@pytest.fixture
def published_scene(app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Publish two batches whose files are in the source."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "keeper.py").write_text(APP)
    app_scene.source.mkdir()
    for name in ("first", "second"):
        path = Path(os.fsdecode(app_scene.ref(name).key))
        path.write_bytes(b"x" * 1_000)
        os.utime(path, ns=(1, 1))  # as the scene has recorded it
        app_scene.process(name)
        app_scene.publish()
    return app_scene


def files_in_source(scene: Scene) -> list[str]:
    return sorted(path.name for path in scene.source.iterdir())


@pytest.mark.parametrize("action", ["delete", "move"])
def test_files_whose_rows_a_restore_removed_are_kept(penstock: Call, published_scene: Scene, action: str) -> None:
    table = DeltaTable(str(published_scene.table))
    complete = table.version()
    table.restore(complete - 1)
    for dry_run in ((), ("--dry-run",)):
        result = penstock("admin", "cleanup", f"keeper:{action}", "clicks", *dry_run)
        assert result.exit_code == 1
        assert f"Version {complete + 1} of the table" in result.err
        assert "(RESTORE, by another writer) removed rows of batch 2" in result.err
    assert files_in_source(published_scene) == ["first", "second"]
    assert "their objects stay in their source" in penstock("status", "--app", f"keeper:{action}").out

    table.restore(complete)
    assert penstock("admin", "cleanup", f"keeper:{action}", "clicks").exit_code == 0
    assert files_in_source(published_scene) == []


def test_although_missing_cleans_files_of_deliberately_removed_rows(penstock: Call, published_scene: Scene) -> None:
    table = DeltaTable(str(published_scene.table))
    table.restore(table.version() - 1)
    assert penstock("admin", "cleanup", "keeper:delete", "clicks").exit_code == 1
    assert penstock("admin", "cleanup", "keeper:delete", "clicks", "--although-missing").exit_code == 0
    assert files_in_source(published_scene) == []


def test_files_whose_rows_are_in_the_table_are_deleted(penstock: Call, published_scene: Scene) -> None:
    assert penstock("admin", "compact", "--app", "keeper:delete").exit_code == 0
    assert penstock("admin", "cleanup", "keeper:delete", "clicks").exit_code == 0
    assert files_in_source(published_scene) == []
