"""Add the host to the text of a fault that occurred on another host than the driver's."""

from collections.abc import Iterator
from contextlib import contextmanager
from socket import gethostname

from penstock.errors import ConfigurationError, TableError, TemporaryError

FAULTS = (TemporaryError, TableError, ConfigurationError)  # of a machine or its settings, not of the data


@contextmanager
def naming_host(driver_host: str) -> Iterator[None]:
    """Raise faults from the block with the name of this host, unless it is the driver's."""
    try:
        yield
    except FAULTS as fault:
        if gethostname() == driver_host:
            raise
        raise type(fault)(f"on the host {gethostname()}, {fault}") from fault
