"""`penstock admin publish`, `repair`, `compact` and `batches show`."""

import shutil
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock.app.jobs.compact import compact_tables
from penstock.app.paths import LEDGER_FILE
from penstock.events import Bus, Event, TableCompacted
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe


def rows(scene: Scene) -> int:
    return int(DeltaTable(str(scene.table)).to_pyarrow_table().num_rows)


@pytest.fixture
def backup(scene: Scene, tmp_path: Path) -> Path:
    """Back up the ledger after its first batch, and publish a second one."""
    scene.process("a")
    scene.publish()
    kept = tmp_path / "backup.db"
    shutil.copy(scene.where.state / LEDGER_FILE, kept)
    scene.process("b")
    scene.publish()
    return kept


def restore_ledger(scene: Scene, backup: Path) -> None:
    for file in scene.where.state.glob(f"{LEDGER_FILE}*"):
        file.unlink()
    shutil.copy(backup, scene.where.state / LEDGER_FILE)


class Terminal:
    """A terminal on which the user answers."""

    def __init__(self, *answers: str) -> None:
        self._answers = iter(answers)

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        return next(self._answers)


def test_committed_batches_are_published_once(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.process("b")
    assert penstock("admin", "publish", "--json").document == [{"pipeline": scene.where.pipeline, "batches": 2}]
    assert rows(scene) == 4
    assert "nothing to publish" in penstock("admin", "publish").out
    assert rows(scene) == 4


def test_a_ledger_that_agrees_with_its_table_is_left_alone(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    result = penstock("admin", "repair", "--json")
    assert result.exit_code == 0
    assert "there is nothing to repair" in result.err
    assert (result.document[0]["needed"], result.document[0]["repaired"]) == (False, False)


def test_a_restored_ledger_halts_publishing_until_it_is_repaired(penstock: Call, scene: Scene, backup: Path) -> None:
    restore_ledger(scene, backup)
    halted = penstock("admin", "publish")
    assert halted.exit_code == 1
    assert "`penstock admin repair`" in halted.err

    dry = penstock("admin", "repair", "--dry-run", "--json").document[0]
    assert (dry["needed"], dry["repaired"], dry["imported"], dry["agrees_at"]) == (True, False, [2], 1)
    assert dry["unnamed"] == [2], "the runs of this scene write no records"
    unasked = penstock("admin", "repair")
    assert unasked.exit_code == 2
    assert "give --yes" in unasked.err
    assert penstock("admin", "publish").exit_code == 1, "nothing was changed until now"

    result = penstock("admin", "repair", "--yes")
    assert result.exit_code == 0
    assert "ledger.repair_finished" in result.err
    assert "The objects of batch 2 are unknown" in result.err
    scene.process("c")
    assert penstock("admin", "publish").exit_code == 0
    assert rows(scene) == 6


def test_a_declined_repair_changes_nothing_and_is_no_error(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_that_asks.py").write_text(
        "from pathlib import Path\n"
        "from penstock import App, DeltaSink, ObjectSource\n"
        "def record(error, context):\n"
        "    Path('errors.txt').write_text(context.error)\n"
        "app = App(on_error=record)\n"
        "for name in ('clicks', 'views'):\n"
        "    source = ObjectSource('landing', queue=f'{name}-files', schema='id long')\n"
        "    app.pipeline(name, source=source, sink=DeltaSink(f'tables/{name}'))\n"
    )
    scenes = [Scene.of_app(tmp_path, name) for name in ("clicks", "views")]
    for scene in scenes:
        scene.process("a")
        scene.publish()
    kept = tmp_path / "backup.db"
    shutil.copy(scenes[0].where.state / LEDGER_FILE, kept)
    for scene in scenes:
        scene.process("b")
        scene.publish()
    restore_ledger(scenes[0], kept)  # the backup of both

    monkeypatch.setattr(sys, "stdin", Terminal("y\n", "n\n"))
    result = penstock("admin", "repair", "--app", "shop_that_asks:app")
    assert result.exit_code == 1
    assert "clicks: repaired" in result.err
    assert result.err.endswith("Nothing was changed for views.\n")
    assert not Path("errors.txt").exists(), "a declined repair is no failure"


def test_another_tables_ledger_is_repaired_only_with_adopt(penstock: Call, scene: Scene, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    with scene.worker():
        pass
    shutil.copy(scene.where.state / LEDGER_FILE, empty)
    scene.process("a")
    scene.publish()
    restore_ledger(scene, empty)
    refused = penstock("admin", "repair", "--yes")
    assert refused.exit_code == 1
    assert "--adopt" in refused.err
    assert penstock("admin", "repair", "--yes", "--adopt", "--json").document[0]["repaired"] is True
    assert "nothing to publish" in penstock("admin", "publish").out


def test_two_different_pipelines_are_a_usage_error(penstock: Call, scene: Scene) -> None:
    result = penstock("admin", "publish", "shop:app", "clicks", "--pipeline", "views")
    assert (result.exit_code, result.err) == (
        2,
        "penstock: PIPELINE is clicks and --pipeline is views: name one pipeline.\n",
    )


def test_small_files_are_merged(penstock: Call, scene: Scene) -> None:
    for name in "abc":
        scene.process(name)
        scene.publish()
    assert "3 files would become 1" in penstock("admin", "compact", "--dry-run").out
    (document,) = penstock("admin", "compact", "--json").document
    assert (document["files_before"], document["files_after"], document["merged"]) == (3, 1, 3)
    assert "nothing to merge" in penstock("admin", "compact").out
    assert rows(scene) == 6
    scene.process("d")
    assert penstock("admin", "publish").exit_code == 0
    assert rows(scene) == 8


def test_a_vacuum_obeys_the_tables_retention(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.publish()
    assert "0 old files deleted" in penstock("admin", "compact", "--vacuum").out
    refused = penstock("admin", "compact", "--vacuum", "--retention-hours", 1)
    assert refused.exit_code == 1
    assert "--retention-hours" in refused.err
    assert penstock("admin", "compact", "--retention-hours", 1).exit_code == 2
    assert penstock("admin", "compact", "--target-size", "much").exit_code == 2


def test_a_batch_is_shown_with_its_files_and_objects(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b", rows=3, bad_lines=1)
    assert "not visible yet" in penstock("admin", "batches", "show", 1).out
    scene.publish()
    document = penstock("admin", "batches", "show", 1, "--json").document
    (table,) = document["tables"]
    assert (table["visible"], table["table_version"]) == (True, 1)
    assert [file["rows"] for file in table["files"]] == [6]
    assert sorted(document["object_uris"]) == sorted(scene.ref(name).uri for name in "ab")
    assert document["seconds"] >= 0
    result = penstock("admin", "batches", "show", 1)
    assert "visible since version 1" in result.out
    assert "read and write 1.2 s" in result.out
    assert "no link: Spark's UI was off" in result.out
    assert "1 of 2 objects" in penstock("admin", "batches", "show", 1, "--limit", 1).err


def test_a_batch_that_does_not_exist_is_reported(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    result = penstock("admin", "batches", "show", 7)
    assert result.exit_code == 2
    assert "the last one is 1" in result.err


def test_a_compaction_orders_rows_by_columns(scene: Scene, penstock: Call) -> None:
    for name in ("a", "b", "c"):
        scene.process(name)
    scene.publish()
    assert penstock("admin", "compact", "--order-by", "no such").exit_code != 0
    assert "a column twice" in penstock("admin", "compact", "--order-by", "id, id").err
    assert "3 files became 1" in penstock("admin", "compact", "--order-by", "id").out
    assert "nothing to merge" in penstock("admin", "compact", "--order-by", "id").out
    assert rows(scene) == 6


def test_a_stopped_compaction_begins_no_further_merge(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.process(name)
    scene.publish()
    events: list[Event] = []
    (done,) = compact_tables(
        scene.where, bus=Bus(events.append), probe=no_probe, clock=SystemClock(), stopped=lambda: True
    )
    assert (done.merged, done.left, done.files_after) == (0, 3, 3)
    assert events == []
    (done,) = compact_tables(scene.where, bus=Bus(events.append), probe=no_probe, clock=SystemClock())
    assert (done.merged, done.files_after) == (3, 1)
    assert [type(event) for event in events] == [TableCompacted]
    assert rows(scene) == 6
