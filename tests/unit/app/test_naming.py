"""What an app is called in its ledger: the same in every process of it."""

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
def test_a_module_has_one_name_however_it_is_started(tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text("")
    (tmp_path / "store" / "__main__.py").write_text(SHOP)
    (tmp_path / "store" / "main.py").write_text(SHOP.replace("App()", "App.from_config()"))
    ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [name]


def test_a_name_that_is_given_goes_before_the_setting_and_that_before_the_module() -> None:
    setting = Settings.model_construct(app_name="of the setting")
    assert (App(name="given", settings=setting).name, App(settings=setting).name) == ("given", "of the setting")
    assert App().name == __name__
    assert [App(name="given").is_named, App(settings=setting).is_named, App().is_named] == [True, True, False]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 201])
def test_a_name_that_no_ledger_can_keep_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="printable characters"):
        App(name=name)


def served(url: str, queue: str, declare: Callable[[App, str], None], name: str | None = None) -> None:
    """Serve one message of an app of its own, as a process would."""
    broker = MemoryBroker()
    ledger = Ledger.open(url)
    app = App(broker=broker, ledger=ledger, name=name)
    declare(app, queue)
    try:
        serve(app, stop=StopSignal(), until=lambda: not broker.stats(queue).messages, resident=False)
    finally:
        ledger.close()


def test_two_apps_with_like_named_handlers_on_one_ledger_both_do_their_work(tmp_path: Path) -> None:
    called: list[str] = []

    def declare(app: App, queue: str) -> None:
        @app.handler(queue, idempotency=lambda message: message.body.decode())
        def handle(message: object) -> None:
            called.append(queue)

        app.send(queue, b"42")
        app.send(queue, b"42")

    for queue in ("orders", "refunds"):
        served(f"sqlite:///{tmp_path}/ledger.db", queue, declare)
    assert called == ["orders", "refunds"]


def test_two_object_handlers_of_one_name_on_one_ledger_are_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")
    called: list[str] = []

    def declare(app: App, queue: str) -> None:
        @app.object_handler(queue, source=str(tmp_path / "in"))
        def load(each: object) -> None:
            called.append(queue)

        app.announce(queue, str(tmp_path / "in"))

    url = f"sqlite:///{tmp_path}/ledger.db"
    served(url, "thumbnails", declare)
    with pytest.raises(ConfigurationError, match="give the object handler or pipeline a name of its own"):
        served(url, "index", declare)
    with pytest.raises(ConfigurationError, match="belong to the app") as refused:
        served(url, "index", declare, name="index")
    assert refused.value.exit_code == 78
    assert called == ["thumbnails"]


def test_a_pipeline_that_is_run_alone_is_registered_too(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    register_pipeline(App(ledger=ledger, name="first"), "clicks", queue="clicks")
    with pytest.raises(ConfigurationError, match="belong to the app 'first'"):
        register_pipeline(App(ledger=ledger, name="second"), "clicks", queue="clicks")
    ledger.close()
