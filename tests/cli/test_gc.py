"""`penstock admin gc`."""

from pathlib import Path

from tests.cli.conftest import Call
from tests.cli.scene import Scene


def files(scene: Scene) -> set[Path]:
    return {path for path in (scene.table / "data").rglob("*") if path.is_file()}


def test_gc_reports_that_there_is_nothing_to_delete(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    result = penstock("admin", "gc")
    assert (result.exit_code, result.out) == (0, "0 files of 0 attempts deleted, 0 bytes.\n")


def test_only_files_of_abandoned_attempts_are_deleted(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    kept = files(scene)
    size_bytes = scene.leave_files("b")
    assert f"1 file of 1 attempt would be deleted, {size_bytes:,} bytes." in penstock("admin", "gc", "--dry-run").out
    assert len(files(scene)) == 2
    document = penstock("admin", "gc", "--json").document
    assert document == {
        "compactions": 0,
        "attempts": 1,
        "files": 1,
        "bytes": size_bytes,
        "dry_run": False,
        "unknown": [],
    }
    assert files(scene) == kept
    assert penstock("admin", "gc", "--json").document["files"] == 0


def test_foreign_files_are_left_alone_and_reported(penstock: Call, scene: Scene) -> None:
    strange = scene.table / "data" / "mine\x1b[31m"
    strange.mkdir(parents=True)
    (strange / "keep").touch()
    result = penstock("admin", "gc")
    assert result.exit_code == 0
    assert "Left alone" in result.err
    assert "\x1b" not in result.err
    assert (strange / "keep").exists()


def test_gc_of_an_apps_tables_needs_the_app(penstock: Call, app_scene: Scene, shop: str) -> None:
    app_scene.process("a")
    kept = files(app_scene)
    size_bytes = app_scene.leave_files("b")
    result = penstock("admin", "gc")
    assert (result.exit_code, result.out) == (2, "")
    assert "--app" in result.err
    result = penstock("admin", "gc", "--app", shop, "--pipeline", "click")
    assert (result.exit_code, result.out) == (2, "")
    assert "no pipeline click; its pipelines: clicks, views." in result.err
    assert len(files(app_scene)) == 2

    result = penstock("admin", "gc", "--app", shop, "--dry-run")
    assert result.out == (
        f"clicks: 1 file of 1 attempt would be deleted, {size_bytes:,} bytes.\n"
        "views: 0 files of 0 attempts would be deleted, 0 bytes.\n"
    )
    assert penstock("admin", "gc", "--app", shop, "--pipeline", "views", "--json").document["files"] == 0
    assert penstock("admin", "gc", "--app", shop, "--json").document["bytes"] == size_bytes
    assert files(app_scene) == kept
