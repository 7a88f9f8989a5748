"""What a worker says of its settings before it serves."""

from contextlib import closing

import pytest

from penstock import App
from penstock.app.serving import unshared_ledger
from penstock.brokers.memory import MemoryBroker
from penstock.config import Settings
from penstock.events import LedgerUnshared

LEDGER = "sqlite:///state/ledger.db"
REDIS = "redis://localhost"


@pytest.mark.parametrize(
    ("broker", "handlers"),
    [(REDIS, ("once", "each")), ("sqlite:///queue.db", None), ("memory://", None)],
)
def test_a_ledger_of_this_host_beside_a_broker_of_all_is_warned_of(
    broker: str, handlers: tuple[str, ...] | None
) -> None:
    app = App(settings=Settings(broker=broker, ledger=LEDGER))
    app.handler("plain", name="plain")(print)
    app.handler("keyed", name="once", idempotency=str)(print)
    app.object_handler("files", name="each", source="folder")(print)
    expected = None if handlers is None else LedgerUnshared(ledger=LEDGER, handlers=handlers)
    assert unshared_ledger(app.settings, app.services) == expected


def test_functions_without_a_key_may_be_on_all_hosts() -> None:
    app = App(settings=Settings(broker=REDIS, ledger=LEDGER))
    app.handler("plain")(print)
    assert unshared_ledger(app.settings, app.services) is None


def test_a_worker_knows_its_brokers_address_unless_it_was_given_a_broker() -> None:
    settings = Settings(broker="redis://shop:hunter2@localhost/1")
    assert App(settings=settings).address == "redis://shop:***@localhost/1"
    with closing(MemoryBroker()) as broker:
        assert App(settings=settings, broker=broker).address is None
