"""A sender that sends without pause while the broker fails, and records what was accepted."""

import json
import threading
from collections.abc import Callable, Sequence

from tests.integration.fleet import wait_for

from penstock.app.brokers import open_broker
from penstock.config import Settings
from penstock.errors import TemporaryError
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing

PLAIN = "plain"  # a queue of the fleet's
TRIES_MAX = 1_000
PAUSE_SECONDS = 0.02
AGAIN_SECONDS = 0.05

Load = Callable[[int], tuple[str, Sequence[Outgoing]]]  # from a number that counts up: a queue, and what to send to it


class Sender:
    """Sends in a thread, one group after the other, each until it is accepted: deduplication ids make that safe."""

    def __init__(self, way: str | Broker, load: Load) -> None:
        """``way``: a broker's address, or a view of one that is closed with this."""
        self.accepted: list[Outgoing] = []  # written by the thread only
        self._load = load
        self._stopping = threading.Event()
        self._broker = open_broker(Settings(broker=way), holder="sender") if isinstance(way, str) else way
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> Sequence[Outgoing]:
        """Ends when what was begun is accepted; answers everything that was."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the sender still waits for an answer"
        self._broker.close()
        return self.accepted

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            queue, messages = self._load(number)
            self._send(queue, messages)
            self.accepted += messages
            self._stopping.wait(PAUSE_SECONDS)
            number += 1

    def _send(self, queue: str, messages: Sequence[Outgoing]) -> None:
        for _ in range(TRIES_MAX):
            try:
                self._broker.send(queue, messages)
                return
            except TemporaryError:
                self._stopping.wait(AGAIN_SECONDS)
        raise AssertionError("the server stayed away")


def send_until_accepted(broker: Broker, messages: Sequence[Outgoing]) -> None:
    """To the queue plain, by a test whose server may still be coming back."""

    def accepts() -> bool:
        try:
            return bool(broker.send(PLAIN, messages))
        except TemporaryError:
            return False

    wait_for(accepts, "the server takes messages again")


def three_plain(number: int) -> tuple[str, Sequence[Outgoing]]:
    """A `Load` of three quick messages at a time."""
    return PLAIN, [outgoing(f"m{number}-{n}") for n in range(3)]


def outgoing(id: str, *, seconds: float = 0.01, delay_seconds: float = 0.0, copy: int = 0) -> Outgoing:
    """A message for the handlers of the fleet; ``copy`` tells apart those of one id."""
    body = json.dumps({"id": id, "seconds": seconds}).encode()
    return Outgoing(body=body, deduplication_id=f"{id} {copy}", delay_seconds=delay_seconds)


def ids(messages: Sequence[Outgoing]) -> set[str]:
    return {json.loads(message.body)["id"] for message in messages}
