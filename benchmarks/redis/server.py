"""A private Redis server, and queries about a contestant's queue."""

import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

START_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The keys in which a contestant keeps unfinished messages. If all are empty, nothing is left."""

    lists: tuple[str, ...] = ()
    sorted_sets: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()  # whose entries are deleted when they are done
    groups: tuple[str, ...] = ()  # streams that keep them: unacknowledged entries of their groups count

    def count(self, redis: Any) -> int:
        """Count in one round trip; a message in two keys is counted twice."""
        pipe = redis.pipeline(transaction=False)
        for keys, length in (
            (self.lists, pipe.llen),
            (self.sorted_sets, pipe.zcard),
            (self.hashes, pipe.hlen),
            (self.streams, pipe.xlen),
            (self.groups, pipe.xinfo_groups),
        ):
            for key in keys:
                length(key)
        return sum(_size(answer) for answer in pipe.execute(raise_on_error=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    pid: int
    address: str
    port: int
    redis: Any  # a connection for queries


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Start a server on a free port, without persistence, and stop it in the end."""
    port = _free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL, start_new_session=True)
    redis = Redis(host="127.0.0.1", port=port)
    try:
        _await_ready(redis)
        yield Server(pid=process.pid, address=f"redis://127.0.0.1:{port}/0", port=port, redis=redis)
    finally:
        redis.close()
        process.terminate()
        process.wait(10)


class Listening:
    """Count the clients' commands by MONITOR, without the commands that scripts call.

    MONITOR costs the server time, so nothing is timed while it listens.
    """

    def __init__(self, of: Server) -> None:
        self.commands: Counter[str] = Counter()  # written by the thread, read after close()
        self._socket = socket.create_connection(("127.0.0.1", of.port))
        self._own = f" 127.0.0.1:{_port_of(of.redis)}] ".encode()
        self._socket.sendall(b"MONITOR\r\n")
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # +OK
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> Counter[str]:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._lines.close()
        self._socket.close()
        return self.commands

    def _listen(self) -> None:
        # +1700000000.123456 [0 127.0.0.1:5000] "XREADGROUP" "GROUP" ... or [0 lua] for what a script calls
        for line in self._lines:
            head, quote, rest = line.partition(b'"')
            if quote and b" lua] " not in head and self._own not in head:
                self.commands[rest.partition(b'"')[0].decode().upper()] += 1


def _size(answer: Any) -> int:
    if isinstance(answer, Exception):
        return 0  # no such stream: nothing was ever sent
    if isinstance(answer, list):
        return sum(group["pending"] + (group["lag"] or 0) for group in answer)
    return int(answer)


def _port_of(redis: Any) -> int:
    """Return the client port of our connection, by which MONITOR identifies it."""
    address: str = redis.client_info()["addr"]
    return int(address.rpartition(":")[2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_ready(redis: Any) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            redis.ping()
            return
        except RedisError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
