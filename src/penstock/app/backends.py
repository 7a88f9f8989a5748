"""Open the ledger of the settings, and check that it is shared if workers of several hosts may use the broker."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.brokers import file_in_folder, has_workers_elsewhere
from penstock.config import Settings, shown
from penstock.errors import ConfigurationError
from penstock.messaging.steps import Probe, no_probe

if TYPE_CHECKING:
    from penstock.ledger import Ledger

_SQLITE = "sqlite:///"


def open_ledger(settings: Settings, *, probe: Probe = no_probe) -> "Ledger":
    """Open the ledger at ``settings.ledger`` and migrate its tables to the current version."""
    from penstock.ledger import Ledger

    if settings.ledger.startswith(_SQLITE):
        file_in_folder(settings.ledger.removeprefix(_SQLITE), "ledger")
    return Ledger.open(settings.ledger, probe=probe)


def has_ledger_apart(settings: Settings) -> bool:
    """Return True if the ledger is local to this host although other hosts may serve the same queues."""
    return has_local_ledger(settings) and has_workers_elsewhere(settings)


def has_local_ledger(settings: Settings) -> bool:
    """Return True if the ledger is a file on this host."""
    return settings.ledger.startswith(_SQLITE)


def ledger_exists(settings: Settings) -> bool:
    """Return True if the ledger's file exists. A server counts as existing: only a connection can check it."""
    return not has_local_ledger(settings) or Path(settings.ledger.removeprefix(_SQLITE)).is_file()


def file_ledger(path: Path) -> str:
    """Return the address of a ledger in this file."""
    return f"{_SQLITE}{path}"


def require_shared_ledger(settings: Settings, *, recorded: Sequence[str]) -> None:
    """Raise `ConfigurationError` if each host would have its own record of these handlers and pipelines.

    That is the case if the ledger is a file on this host, the broker may be shared, and the setting one_host is off.
    """
    if not recorded or not has_ledger_apart(settings):
        return
    raise ConfigurationError(
        f"Other hosts may serve the queues of the broker {shown('broker', settings.broker)}, and the ledger "
        f"{shown('ledger', settings.ledger)} is a file on this host: the work of {', '.join(recorded)} would be done "
        "once per host, not once overall. Set a ledger that all hosts share (mysql://... or postgresql://...); or, if "
        "every worker runs on this host, set one_host = true (PENSTOCK_ONE_HOST=true)."
    )
