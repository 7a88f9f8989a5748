"""What a worker says of its settings before it serves."""

from contextlib import closing

import pytest

from penstock import App
from penstock.app.backends import require_shared_ledger
from penstock.app.serving import serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.worker.shutdown import StopSignal

LEDGER = "sqlite:///state/ledger.db"
REDIS = "redis://localhost"


def serve_it(app: App) -> None:
    """Serve until the first look: there is nothing to do."""
    serve(app, stop=StopSignal(), until=lambda: True)


@pytest.mark.parametrize("broker", [REDIS, "sqs://eu-central-1"])
def test_a_ledger_of_this_host_beside_a_broker_of_all_refuses_to_start(broker: str) -> None:
    app = App(settings=Settings(broker=broker, ledger=LEDGER))
    app.handler("plain", name="plain")(print)
    app.handler("keyed", name="once", idempotency=str)(print)
    app.object_handler("files", name="each", source="folder")(print)
    with pytest.raises(ConfigurationError, match=r"once, each did once would be done once a host.*one_host = true"):
        serve_it(app)


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
def test_one_host_or_one_ledger_for_all_is_enough(settings: Settings) -> None:
    require_shared_ledger(settings, recorded=["once"])


def test_functions_without_a_key_may_be_on_all_hosts() -> None:
    require_shared_ledger(Settings(broker=REDIS, ledger=LEDGER), recorded=[])


def test_a_worker_knows_its_brokers_address_unless_it_was_given_a_broker() -> None:
    settings = Settings(broker="redis://shop:hunter2@localhost/1")
    assert App(settings=settings).address == "redis://shop:***@localhost/1"
    with closing(MemoryBroker()) as broker:
        assert App(settings=settings, broker=broker).address is None
