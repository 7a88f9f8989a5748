"""From the addresses in the settings to a broker and a ledger."""

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.messaging.broker import Broker
from penstock.messaging.steps import Probe, no_probe

if TYPE_CHECKING:
    from penstock.ledger import Ledger

SQLITE = "sqlite:///"
MEMORY = "memory://"


def open_broker(settings: Settings, *, holder: str) -> Broker:
    """The broker at ``settings.broker``. Raises `ConfigurationError` for an address that is none."""
    if settings.broker.startswith(SQLITE):
        from penstock.brokers.sqlite import SqliteBroker

        return SqliteBroker(_made(settings.broker.removeprefix(SQLITE), "broker"), holder=holder)
    if settings.broker == MEMORY:
        from penstock.brokers.memory import MemoryBroker

        return MemoryBroker()
    raise ConfigurationError(
        f"The broker {settings.broker!r} is not known: write sqlite:///FILE, or memory:// for a queue that ends with "
        "the process."
    )


def open_ledger(settings: Settings, *, probe: Probe = no_probe) -> "Ledger":
    """The ledger at ``settings.ledger``, its tables brought up to date."""
    from penstock.ledger import Ledger

    if settings.ledger.startswith(SQLITE):
        _made(settings.ledger.removeprefix(SQLITE), "ledger")
    return Ledger.open(settings.ledger, probe=probe)


def _made(file: str, what: str) -> Path:
    """The file's path, its folder made if need be."""
    if not file:
        raise ConfigurationError(f"The {what}'s address names no file: write {SQLITE}FILE.")
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"The {what}'s folder {path.parent} cannot be made: {error.strerror}.") from error
    return path
