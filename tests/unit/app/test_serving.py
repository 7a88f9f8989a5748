"""The checks of a worker's settings before it serves."""

from contextlib import closing
from pathlib import Path

import pytest

from penstock import App
from penstock.app.backends import require_shared_ledger
from penstock.app.serving import can_monitor, serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.worker.shutdown import StopSignal

LEDGER = "sqlite:///state/ledger.db"
REDIS = "redis://localhost"


def serve_until_first_poll(app: App) -> None:
    """Serve until the first poll; there is no message."""
    serve(app, stop=StopSignal(), until=lambda: True)


@pytest.mark.parametrize("broker", [REDIS, "sqs://eu-central-1"])
def test_a_local_ledger_with_a_broker_of_several_hosts_is_refused_at_the_start(broker: str) -> None:
    app = App(settings=Settings(broker=broker, ledger=LEDGER))
    app.handler("plain", name="plain")(print)
    app.handler("keyed", name="once", idempotency=str)(print)
    app.object_handler("files", name="each", source="folder")(print)
    with pytest.raises(ConfigurationError, match=r"once, each would be done once per host.*one_host = true"):
        serve_until_first_poll(app)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(broker=REDIS, ledger=LEDGER, one_host=True),
        Settings(broker=REDIS, ledger="postgresql://ledger.example/penstock"),
        Settings(broker=REDIS, ledger="mysql://ledger.example/penstock"),
        Settings(broker="sqlite:///queue.db", ledger=LEDGER),
        Settings(broker="memory://", ledger=LEDGER),
    ],
)
def test_a_single_host_or_a_shared_ledger_is_accepted(settings: Settings) -> None:
    require_shared_ledger(settings, recorded=["once"])


def test_functions_without_a_key_need_no_shared_ledger() -> None:
    settings = Settings(broker=REDIS, ledger=LEDGER)
    require_shared_ledger(settings, recorded=[])
    with pytest.raises(ConfigurationError, match="the work of once would be done once per host"):
        require_shared_ledger(settings, recorded=["once"])


def test_an_app_has_the_address_of_its_broker_unless_it_was_given_a_broker() -> None:
    settings = Settings(broker="redis://shop:hunter2@localhost/1")
    assert App(settings=settings).address == "redis://shop:***@localhost/1"
    with closing(MemoryBroker()) as broker:
        assert App(settings=settings, broker=broker).address is None


SERVER = "postgresql://ledger.example/penstock"


@pytest.mark.parametrize(
    ("settings", "keyed", "replays", "expected"),
    [
        pytest.param(Settings(broker="sqs://eu-central-1", ledger=SERVER), True, False, True, id="sqs"),
        pytest.param(Settings(broker=REDIS, ledger=SERVER), True, False, True, id="redis"),
        pytest.param(Settings(broker="sqs://eu-central-1", ledger=SERVER), False, False, True, id="a ledger server"),
        pytest.param(Settings(broker="sqs://eu-central-1", ledger=LEDGER), False, False, False, id="no shared ledger"),
        pytest.param(Settings(broker=REDIS, ledger=LEDGER), False, True, False, id="a ledger per host"),
        pytest.param(Settings(broker=REDIS, ledger=LEDGER, one_host=True), False, True, True, id="replay on one host"),
        pytest.param(Settings(broker="sqlite:///queue.db", ledger=LEDGER), False, False, False, id="no ledger used"),
        pytest.param(Settings(broker="memory://", ledger=SERVER), True, False, False, id="in one process"),
    ],
)
def test_workers_that_share_a_ledger_elect_a_monitor(
    settings: Settings, keyed: bool, replays: bool, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App(settings=settings)
    app.handler("orders", idempotency=str if keyed else None)(print)
    assert can_monitor(app, app.services, replays=replays) is expected
    app.close()
