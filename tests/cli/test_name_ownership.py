"""Commands that act on objects by the name of a pipeline or object handler: never on those of another app."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call, CommandResult
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

# A command of each family, and for each way in which they open the ledger.
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
    "dead export": ("dead", "export", "--app", "clerk:app", "--to", "dead.jsonl"),
}


@pytest.fixture
def shop_scene(app_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Create an app `shop` with a pipeline and an object handler, on a ledger that another app may share."""
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
    """Register the names as a worker of that app does at its start."""
    uses = [OwnedName(kind="objects", name=name, queue=queue) for name, queue in queues.items()]
    with closing(Ledger.open(f"sqlite:///.penstock/{LEDGER_FILE}")) as ledger:
        ledger.owners.register(app, is_named=True, uses=uses)


def is_refused(result: CommandResult) -> bool:
    return result.exit_code == 78 and "belong to the app 'depot'" in result.err


@pytest.mark.parametrize("command", ON_OBJECTS.values(), ids=ON_OBJECTS)
def test_commands_refuse_objects_of_another_app(penstock: Call, shop_scene: Scene, command: tuple[str, ...]) -> None:
    register("depot", clicks="clicks-files", bills="bills")
    result = penstock(*command)
    assert is_refused(result), result
    assert result.err.count("\n") == 1, "one sentence"


@pytest.mark.parametrize("command", ON_OBJECTS.values(), ids=ON_OBJECTS)
def test_commands_accept_unregistered_names_and_own_names(
    penstock: Call, shop_scene: Scene, command: tuple[str, ...]
) -> None:
    unregistered = penstock(*command)
    register("shop", clicks="clicks-files", bills="bills")
    for result in (unregistered, penstock(*command)):
        assert result.exit_code in (0, 1, 3), result
        assert "belong to" not in result.err


def test_only_the_selected_names_are_checked(penstock: Call, shop_scene: Scene) -> None:
    register("depot", bills="bills")
    assert is_refused(penstock("objects", "retry", "--app", "clerk:app", "--yes"))
    assert penstock("objects", "retry", "--app", "clerk:app", "--pipeline", "clicks", "--yes").exit_code == 0
    assert not is_refused(penstock("admin", "cleanup", "clerk:app", "clicks"))


def test_checking_names_registers_nothing(penstock: Call, shop_scene: Scene) -> None:
    assert penstock("objects", "retry", "--app", "clerk:app", "--yes").exit_code == 0
    register("depot", clicks="clicks-files")  # still unregistered
