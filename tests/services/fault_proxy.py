"""A proxy for a server that causes network faults on command of a test.

It parses nothing: it forwards bytes, holds them, drops them, or ends connections.
"""

import select
import socket
import struct
import threading
from dataclasses import dataclass, field
from enum import Enum

CHUNK_BYTES = 64 * 1024
PATIENCE_SECONDS = 60.0  # a bound; on an idle machine, waits end at once
LOOK_UP_SECONDS = 0.05
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST

Address = str | tuple[str, int]  # a unix socket's path, or host and port


class Way(Enum):
    """The direction of bytes, seen from the client."""

    REQUESTS = "to the server"
    REPLIES = "to the client"


class Afterwards(Enum):
    """The state of a connection after its reply was swallowed."""

    CUT = "it is reset"
    HOLD = "it stays open, and no more bytes arrive"


@dataclass(slots=True, eq=False)
class Trap:
    """A wait for one request that contains the marker.

    ``sprung`` is set when its reply was swallowed or, without ``afterwards``, when the request is held.
    """

    marker: bytes
    afterwards: Afterwards | None
    sprung: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        assert self.sprung.wait(PATIENCE_SECONDS), f"{self.marker!r} did not come within {PATIENCE_SECONDS} s"


class Link:
    """A client's connection and its connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.deaf = False  # bytes are dropped. Written under the proxy's lock
        self.gap = False  # never unset: bytes were dropped, so it stays deaf. Under the proxy's lock
        self.held = False  # under the proxy's lock: requests wait
        self.ending = False  # never unset, written by any thread
        self.trap: Trap | None = None  # written by the thread of the requests before it passes them on
        self.over = threading.Event()
        self._left = 2  # threads; under the lock
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Reset both sides. The threads wake, and the last one to leave closes."""
        self.ending = True
        for side in (self.client, self.server):
            try:
                if side.family != socket.AF_UNIX:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                side.shutdown(socket.SHUT_RD)
            except OSError:  # closed already
                continue

    def leave(self) -> bool:
        """Note the end of one of the two threads. Return True if it was the last."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self.client.close()
            self.server.close()
        return last


class FaultProxy:
    """A proxy on a loopback port chosen by the system. Faults apply to all connections at once."""

    def __init__(self, server: Address) -> None:
        self.server = server
        self.port = 0  # the system's choice; kept
        self._changed = threading.Condition()
        self._stalled: frozenset[Way] = frozenset()  # these four under the condition's lock
        self._deaf = False
        self._traps: list[Trap] = []
        self._links: set[Link] = set()
        self._listen()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        with self._changed:
            return len(self._links)

    # --- faults

    def stall(self, *ways: Way) -> None:
        """Hold bytes in these directions, by default in both, until `heal` forwards them."""
        with self._changed:
            self._stalled = frozenset(ways or Way)

    def half_open(self) -> None:
        """Silently drop all bytes of every connection, new ones included, until `heal`.

        Connections that lost bytes stay dead: bytes after a gap would make no sense. Idle ones live on, as otherwise
        the fault would outlast `heal` for as long as a client keeps them in its pool.
        """
        with self._changed:
            self._deaf = True
            for link in self._links:
                link.deaf = True

    def cut(self) -> None:
        """Reset every connection and return when both sides have noticed. New connections are accepted."""
        with self._changed:
            links = tuple(self._links)
            for link in links:
                link.cut()
            self._changed.notify_all()
        for link in links:
            assert link.over.wait(PATIENCE_SECONDS), "a connection did not end"

    def swallow(self, marker: bytes = b"", *, afterwards: Afterwards = Afterwards.CUT) -> Trap:
        """Forward the next request that contains these bytes, and drop its reply."""
        trap = Trap(marker, afterwards)
        with self._changed:
            self._traps.append(trap)
        return trap

    def hold(self, marker: bytes) -> Trap:
        """Forward the next request that contains these bytes only after `heal`, even if its client has left.

        This simulates packets that a network loses for a while: they are sent again and arrive late.
        """
        trap = Trap(marker, None)
        with self._changed:
            self._traps.append(trap)
        return trap

    def leave(self) -> None:
        """Reset every connection and refuse new ones, until `come_back`."""
        self._stop_listening()
        self.cut()

    def come_back(self) -> None:
        """Listen again, at the same port."""
        self._listen()

    def heal(self) -> None:
        """Forward everything from now on, and remove all traps."""
        with self._changed:
            self._stalled = frozenset()
            self._deaf = False
            self._traps.clear()
            for link in self._links:
                link.held = False
                link.deaf = link.gap
            self._changed.notify_all()

    def close(self) -> None:
        self._stop_listening()
        self.heal()
        self.cut()

    # --- forwarding

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True, name="fault-proxy")
        self._accepting.start()

    def _stop_listening(self) -> None:
        """Stop listening, if it has not stopped already."""
        end(self._listener)  # wakes the thread that accepts
        self._accepting.join(PATIENCE_SECONDS)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener was closed
                return
            try:
                link = Link(client, connect(self.server))
            except OSError:  # the server is unavailable: as if it had refused the client
                client.close()
                continue
            with self._changed:
                link.deaf = self._deaf
                self._links.add(link)
            for way in (self._pass_requests, self._pass_replies):
                threading.Thread(target=way, args=(link,), daemon=True, name="fault-proxy-link").start()

    def _pass_requests(self, link: Link) -> None:
        before = b""  # the end of earlier bytes: a marker may arrive in two pieces
        while data := received(link.client):
            before = self._look_for_markers(link, before + data)
            if self._may_go_on(link, Way.REQUESTS) and not self._drops(link) and not sent(link, link.server, data):
                break
        if link.deaf:
            link.cut()
        elif not link.ending:
            end(link.server)
        self._leave(link)

    def _pass_replies(self, link: Link) -> None:
        while data := received(link.server):
            if not self._may_go_on(link, Way.REPLIES) or self._drops(link):
                continue
            if link.trap is not None:
                self._spring(link, link.trap)
            elif not sent(link, link.client, data):
                break
        if not (self._drops(link) or link.ending):
            end(link.client)
        self._leave(link)

    def _look_for_markers(self, link: Link, seen: bytes) -> bytes:
        with self._changed:
            for trap in self._traps:
                if link.trap is None and trap.marker in seen:
                    self._traps.remove(trap)
                    if trap.afterwards is None:
                        link.held = True
                        trap.sprung.set()
                    else:
                        link.trap = trap
                    break
            kept = max((len(trap.marker) - 1 for trap in self._traps), default=0)
        return seen[-kept:] if kept > 0 else b""

    def _may_go_on(self, link: Link, way: Way) -> bool:
        """Wait while this direction is stalled. Return False if the connection is to end."""
        with self._changed:
            self._changed.wait_for(lambda: link.ending or not self._waits(link, way))
        return not link.ending

    def _waits(self, link: Link, way: Way) -> bool:
        return way in self._stalled or (link.held and way is Way.REQUESTS)

    def _spring(self, link: Link, trap: Trap) -> None:
        if trap.afterwards is Afterwards.CUT:
            link.cut()
        else:
            self._deafen(link)
        trap.sprung.set()

    def _deafen(self, link: Link) -> None:
        """Drop all further bytes of a connection, for good."""
        with self._changed:
            link.deaf = link.gap = True

    def _drops(self, link: Link) -> bool:
        """Return True if the bytes that just came, or the end of the connection, are dropped."""
        with self._changed:
            link.gap |= link.deaf
            return link.deaf

    def _leave(self, link: Link) -> None:
        if link.leave():
            with self._changed:
                self._links.discard(link)
            link.over.set()


def connect(address: Address) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout=None)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(address)
    except OSError:
        made.close()
        raise
    return made


def received(side: socket.socket) -> bytes:
    """Return the next bytes; empty if the connection has ended."""
    try:
        return side.recv(CHUNK_BYTES)
    except OSError:
        return b""


def sent(link: Link, side: socket.socket, data: bytes) -> bool:
    """Send bytes. Return True if all were sent before the connection ended.

    A cut cannot wake a thread that sends to a side that does not read, so the thread checks for it regularly.
    """
    rest = memoryview(data)
    try:
        while rest and not link.ending:
            if select.select([], [side], [], LOOK_UP_SECONDS)[1]:
                rest = rest[side.send(rest, socket.MSG_DONTWAIT) :]
    except BlockingIOError:
        return sent(link, side, bytes(rest))
    except (OSError, ValueError):  # closed, the descriptor too
        return False
    return not rest


def end(side: socket.socket) -> None:
    """Shut down both directions of a socket, which wakes the thread that reads from it."""
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
