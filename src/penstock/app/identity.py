"""Who this process is, for brokers, ledgers and logs."""

import os
import socket

from ulid import ULID


def worker_id() -> str:
    """A name no other process ever has: host, process id, and when."""
    return f"{socket.gethostname()}-{os.getpid()}-{ULID()}"


def own_version() -> str:
    """Of Penstock."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("penstock")
    except PackageNotFoundError:
        return "source"
