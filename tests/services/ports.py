"""Free ports for servers that cannot choose one themselves."""

import socket


def free_port(*, besides: int = 0) -> int:
    """Return a free loopback port; with ``besides``, one for which the port that much higher is free, too."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            if not besides or is_free(port + besides):
                return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True
