"""A proxy that delays every answer and counts requests.

It holds the bytes of an answer but not the requests after it, so a call takes the server's time plus the delay, with
any number of concurrent calls: like a network, and unlike a slow server. The counts do not depend on the contestants.
"""

import asyncio
import re
import threading
from collections import Counter
from typing import cast

OPERATION = re.compile(rb"AmazonSQS\.(\w+)")
PATIENCE_SECONDS = 10.0


class Way:
    """A proxy on a loopback port chosen by the system, with its own thread."""

    def __init__(self, server_port: int, *, delay_seconds: float = 0.0) -> None:
        self.calls: Counter[str] = Counter()  # by operation; written by the way's thread
        self.port = 0
        self._server_port = server_port
        self._delay_seconds = delay_seconds
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="way", daemon=True)
        self._thread.start()
        assert self._listening.wait(PATIENCE_SECONDS), "the way to the server does not open"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        listener = self._loop.run_until_complete(self._loop.create_server(self._client, "127.0.0.1", 0))
        self.port = listener.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        listener.close()
        self._loop.close()

    def _client(self) -> "Client":
        return Client(self._loop, self._server_port, self.calls, self._delay_seconds)


class Client(asyncio.Protocol):
    """One connection from a contestant."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server_port: int, calls: Counter[str], delay_seconds: float
    ) -> None:
        self._loop = loop
        self._server_port = server_port
        self._calls = calls
        self._delay_seconds = delay_seconds
        self._waiting: list[bytes] = []  # requests that came before the server's connection was there
        self._server: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._task = self._loop.create_task(self._connect(cast("asyncio.Transport", transport)))

    def data_received(self, data: bytes) -> None:
        if (operation := OPERATION.search(data)) is not None:
            self._calls[operation[1].decode()] += 1
        if self._server is None:
            self._waiting.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        if self._server is not None:
            self._server.close()

    async def _connect(self, client: asyncio.Transport) -> None:
        replies = Replies(self._loop, client, self._delay_seconds)
        server, _ = await self._loop.create_connection(lambda: replies, "127.0.0.1", self._server_port)
        self._server = server
        if client.is_closing():
            server.close()
        server.writelines(self._waiting)


class Replies(asyncio.Protocol):
    """The server's responses on one connection, delayed, in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: asyncio.Transport, delay_seconds: float) -> None:
        self._loop = loop
        self._client = client
        self._delay_seconds = delay_seconds
        self._held: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        if not self._delay_seconds:
            self._client.write(data)
            return
        self._held.append(data)
        self._loop.call_later(self._delay_seconds, self._pass_on)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._loop.call_later(self._delay_seconds, self._client.close)

    def _pass_on(self) -> None:
        self._client.write(self._held.pop(0))
