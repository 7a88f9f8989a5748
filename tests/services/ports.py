"""Ports for servers that have to be told theirs."""

import socket


def free_port(*, besides: int = 0) -> int:
    """A loopback port that nobody listens on now; nor on the one so much higher, if that is wanted."""
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
