"""Commands that act on objects by the name of a pipeline or object handler: never on those of another app."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Said
from tests.cli.scene import Scene

from penstock.app.paths import LEDGER_FILE
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, OwnedName

APP = """
from penstock import App, DeltaSink, ObjectSource, cleanup

app = App(name="shop")
source = ObjectSource("landing", queue="clicks-files", schema="id long", cleanup=cleanup.Delete(after="0 s"))
app.pipeline("clicks", source=source, sink=DeltaSink("tables/clicks"))


@app.object_handler("bills", source="landing-of-bills", name="bills", source_cleanup=cleanup.Delete(after="0 s"))
def bills(thing):
    pass
"""

# A command for each family, and for each way on which they come to the ledger.
ON_OBJECTS: dict[str, tuple[str, ...]] = {
    "reconcile of a pipeline": ("reconcile", "clerk:app", "clicks"),
    "reconcile of an object handler": ("reconcile", "clerk:app", "bills"),
    "cleanup of a pipeline": ("admin", "cleanup", "clerk:app", "clicks"),
    "cleanup of an object handler": ("admin", "cleanup", "clerk:app", "bills"),
    "gc": ("admin", "gc", "--app", "clerk:app"),
    "objects retry": ("objects", "retry", "--app", "clerk:app", "--yes"),
    "objects import": ("objects", "import", "clerk:app", "bills", "--processed", "list.jsonl"),
    "ledger archive": ("admin", "ledger", "archive", "--app", "clerk:app"),
    "publish": ("admin", "publish", "--app", "clerk:app"),
    "repair": ("admin", "repair", "--app", "clerk:app"),
    "compact": ("admin", "compact", "--app", "clerk:app"),
    "dead replay": ("dead", "replay", "--app", "clerk:app", "--yes"),
    "dead purge": ("dead", "purge", "--app", "clerk:app", "--yes", "--tier", "dlq"),
    "dead export": ("dead", "export", "--app", "clerk:app", "--to", "letters.jsonl"),
}


@pytest.fixture
def clerk(app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An app `shop` with a pipeline and an object handler, on a ledger that another app may share."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "clerk.py").write_text(APP)
    for folder in ("landing", "landing-of-bills"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "landing-of-bills" / "a").write_text("1")
    (tmp_path / "list.jsonl").write_text('{"uri": "landing-of-bills/a"}')
    app_scene.process("a")
    app_scene.fail("b", AttemptFailure.DEAD, "truncated")
    return app_scene


def register(app: str, **queues: str) -> None:
    """As a worker of that app does at its start."""
    uses = [OwnedName(kind="objects", name=name, queue=queue) for name, queue in queues.items()]
    with closing(Ledger.open(f"sqlite:///.penstock/{LEDGER_FILE}")) as ledger:
        ledger.owners.register(app, is_named=True, uses=uses)


def is_refused(said: Said) -> bool:
    return said.exit_code == 78 and "belong to the app 'depot'" in said.err


@pytest.mark.parametrize("command", ON_OBJECTS.values(), ids=ON_OBJECTS)
def test_the_objects_of_another_app_are_left_alone(penstock: Call, clerk: Scene, command: tuple[str, ...]) -> None:
    register("depot", clicks="clicks-files", bills="bills")
    said = penstock(*command)
    assert is_refused(said), said
    assert said.err.count("\n") == 1, "one sentence"


@pytest.mark.parametrize("command", ON_OBJECTS.values(), ids=ON_OBJECTS)
def test_unregistered_names_and_own_names_are_free(penstock: Call, clerk: Scene, command: tuple[str, ...]) -> None:
    unregistered = penstock(*command)
    register("shop", clicks="clicks-files", bills="bills")
    for said in (unregistered, penstock(*command)):
        assert said.exit_code in (0, 1, 3), said
        assert "belong to" not in said.err


def test_the_name_that_is_meant_decides(penstock: Call, clerk: Scene) -> None:
    register("depot", bills="bills")
    assert is_refused(penstock("objects", "retry", "--app", "clerk:app", "--yes"))
    assert penstock("objects", "retry", "--app", "clerk:app", "--pipeline", "clicks", "--yes").exit_code == 0
    assert not is_refused(penstock("admin", "cleanup", "clerk:app", "clicks"))


def test_nothing_is_written_where_names_are_looked_at(penstock: Call, clerk: Scene) -> None:
    assert penstock("objects", "retry", "--app", "clerk:app", "--yes").exit_code == 0
    register("depot", clicks="clicks-files")  # still free
