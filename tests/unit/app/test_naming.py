"""The name of an app in its ledger: the same in every process of the app."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import App
from penstock.app.naming import register_pipeline
from penstock.app.serving import serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError, UsageError
from penstock.ledger import Ledger
from penstock.worker.shutdown import StopSignal

SHOP = """
from penstock import App
app = App()
print(app.name)
"""


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["shop.py"], "shop"),
        (["-m", "shop"], "shop"),
        (["-c", "import shop"], "shop"),
        (["-m", "store"], "store"),
        (["-m", "store.main"], "store.main"),
        (["-c", "import store.main"], "store.main"),
        (["-c", "from penstock.app.loading import load_app; load_app('store.main:app')"], "store.main"),
    ],
)
def test_an_app_has_one_name_however_its_module_is_started(tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text("")
    (tmp_path / "store" / "__main__.py").write_text(SHOP)
    (tmp_path / "store" / "main.py").write_text(SHOP.replace("App()", "App.from_config()"))
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [name]


def test_a_given_name_overrides_the_setting_and_the_setting_overrides_the_module() -> None:
    setting = Settings.model_construct(app_name="from the setting")
    assert (App(name="given", settings=setting).name, App(settings=setting).name) == ("given", "from the setting")
    assert App().name == __name__
    assert [App(name="given").is_named, App(settings=setting).is_named, App().is_named] == [True, True, False]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201])
def test_a_name_that_a_ledger_cannot_store_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="printable characters"):
        App(name=name)


def serve_one(url: str, queue: str, declare: Callable[[App, str], None], name: str | None = None) -> None:
    """Serve one queue with a new app and a new connection to the ledger, as another process would."""
    broker = MemoryBroker()
    ledger = Ledger.open(url)
    app = App(broker=broker, ledger=ledger, name=name)
    declare(app, queue)
    try:
        serve(app, stop=StopSignal(), until=lambda: not broker.stats(queue).messages, resident=False)
    finally:
        ledger.close()


def test_apps_that_share_a_ledger_may_have_handlers_of_the_same_name(tmp_path: Path) -> None:
    called: list[str] = []

    def declare(app: App, queue: str) -> None:
        @app.handler(queue, idempotency=lambda message: message.body.decode())
        def handle(message: object) -> None:
            called.append(queue)

        app.send(queue, b"42")
        app.send(queue, b"42")

    for queue in ("orders", "refunds"):
        serve_one(f"sqlite:///{tmp_path}/ledger.db", queue, declare)
    assert called == ["orders", "refunds"]


def test_apps_that_share_a_ledger_cannot_have_object_handlers_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")
    called: list[str] = []

    def declare(app: App, queue: str) -> None:
        @app.object_handler(queue, source=str(tmp_path / "in"))
        def load(obj: object) -> None:
            called.append(queue)

        app.announce(queue, str(tmp_path / "in"))

    url = f"sqlite:///{tmp_path}/ledger.db"
    serve_one(url, "thumbnails", declare)
    with pytest.raises(ConfigurationError, match="give the object handler or pipeline a name of its own"):
        serve_one(url, "index", declare)
    with pytest.raises(ConfigurationError, match="belong to the app") as refused:
        serve_one(url, "index", declare, name="index")
    assert refused.value.exit_code == 78
    assert called == ["thumbnails"]


def test_a_pipeline_that_runs_alone_is_registered_too(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    register_pipeline(App(ledger=ledger, name="first"), "clicks", queue="clicks")
    with pytest.raises(ConfigurationError, match="belong to the app 'first'"):
        register_pipeline(App(ledger=ledger, name="second"), "clicks", queue="clicks")
    ledger.close()
