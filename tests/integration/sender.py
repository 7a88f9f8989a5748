"""A sender that sends without pause while the broker fails, and records the accepted messages."""

import json
import threading
from collections.abc import Callable, Sequence

from tests.integration.fleet import wait_for

from penstock.app.brokers import open_broker
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing

PLAIN = "plain"  # a queue of the fleet
TRIES_MAX = 1_000
PAUSE_SECONDS = 0.02
AGAIN_SECONDS = 0.05

# from a number that counts up: a queue, and the messages to send to it
Load = Callable[[int], tuple[str, Sequence[Outgoing]]]


class Sender:
    """Sends in a thread, one group after the other, each until it is accepted: deduplication ids make that safe."""

    def __init__(self, way: str | Broker, load: Load, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Start the sender. ``way`` is a broker's address, or a view of one that is closed with the sender."""
        self.accepted: list[Outgoing] = []  # written by the thread only
        self._load = load
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._broker = open_broker(Settings(broker=way), holder="sender") if isinstance(way, str) else way
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> Sequence[Outgoing]:
        """Stop once the current group is accepted; return all accepted messages."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the sender still waits for a response"
        self._broker.close()
        return self.accepted

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            queue, messages = self._load(number)
            self._send(queue, messages)
            self.accepted += messages
            self._stopping.wait(self._pause_seconds)
            number += 1

    def _send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        for _ in range(TRIES_MAX):
            try:
                self._broker.send(queue, messages)
                return
            except TemporaryError:
                self._stopping.wait(AGAIN_SECONDS)
        raise AssertionError("the server stayed unavailable")


def send_until_accepted(broker: Broker, messages: Sequence[Outgoing]) -> None:
    """Send to the queue plain while its server may still be starting."""

    def accepts() -> bool:
        try:
            return bool(broker.send(PLAIN, messages))
        except TemporaryError:
            return False

    wait_for(accepts, "the server takes messages again")


def three_plain(number: int) -> tuple[str, Sequence[Outgoing]]:
    """Return a `Load` of three quick messages at a time."""
    return PLAIN, [outgoing(f"m{number}-{n}") for n in range(3)]


def outgoing(id: str, *, seconds: float = 0.01, delay_seconds: float = 0.0, copy: int = 0) -> Outgoing:
    """Return a message for the handlers of the fleet; ``copy`` distinguishes messages of one id."""
    body = json.dumps({"id": id, "seconds": seconds}).encode()
    return Outgoing(body=body, deduplication_id=f"{id} {copy}", delay_seconds=delay_seconds)


def ids(messages: Sequence[Outgoing]) -> set[str]:
    return {json.loads(message.body)["id"] for message in messages}
