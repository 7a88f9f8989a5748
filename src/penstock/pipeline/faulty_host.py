"""Name the host of a fault that struck on another one than the driver's."""

from collections.abc import Iterator
from contextlib import contextmanager
from socket import gethostname

from penstock.errors import ConfigurationError, TableError, TemporaryError

FAULTS = (TemporaryError, TableError, ConfigurationError)  # of a machine or its settings, and not of the data


@contextmanager
def naming_host(driver_host: str) -> Iterator[None]:
    """Raise such a fault with the name of this host, if it is not the driver's."""
    try:
        yield
    except FAULTS as fault:
        if gethostname() == driver_host:
            raise
        raise type(fault)(f"on the host {gethostname()}, {fault}") from fault
