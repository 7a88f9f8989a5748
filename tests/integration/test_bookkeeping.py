"""Async idempotent handlers record their work while other code fills asyncio's default executor."""

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.events import Event, MessageFailed
from penstock.ledger import Ledger
from penstock.messaging.message import Message
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
TIMEOUT_SECONDS = 3.0
FILLERS = 40  # more than the default executor has threads


class Scene:
    """A worker over two async handlers: one fills the default executor, the other is idempotent."""

    def __init__(self, folder: Path, *, fills_while_called: bool) -> None:
        self.failures: list[Event] = []
        self.calls: Counter[str] = Counter()
        self.acked_while_full = False
        self.full, self.go_on = threading.Event(), threading.Event()
        self.broker = MemoryBroker()
        self.app = App(
            broker=self.broker,
            ledger=Ledger.open(f"sqlite:///{folder}/ledger.db"),
            settings=Settings.model_construct(data_dir=str(folder)),
            listeners=[self.listen],
        )

        @self.app.handler("fills", concurrency=FILLERS)
        async def fills(message: Message) -> None:
            await asyncio.to_thread(self.block)

        @self.app.handler("quick", timeout=TIMEOUT_SECONDS, idempotency=lambda message: message.id)
        async def quick(message: Message) -> None:
            self.calls[message.id] += 1
            if fills_while_called:
                self.fill()
                while not self.full.is_set():
                    await asyncio.sleep(0.001)

    def fill(self) -> None:
        for number in range(FILLERS):
            self.app.send("fills", {"n": number})

    def listen(self, event: Event) -> None:
        if isinstance(event, MessageFailed):
            self.failures.append(event)

    def block(self) -> None:
        self.full.set()
        assert self.go_on.wait(DEADLINE_SECONDS)

    def serve(self) -> None:
        """Serve until the quick message is acked, or something failed."""
        stop = StopSignal()
        serving = threading.Thread(target=serve, args=(self.app,), kwargs={"stop": stop, "resident": False})
        serving.start()
        ends_at, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
        while not self.failures and time.monotonic() < ends_at:
            if self.calls and not self.broker.stats("quick").messages:
                self.acked_while_full = True
                break
            tick.wait(0.01)
        self.go_on.set()
        stop.request()
        serving.join(DEADLINE_SECONDS)
        assert not serving.is_alive()


@pytest.mark.parametrize("fills_while_called", [False, True], ids=["before the call", "before the return"])
def test_a_full_default_executor_does_not_delay_bookkeeping(tmp_path: Path, fills_while_called: bool) -> None:
    scene = Scene(tmp_path, fills_while_called=fills_while_called)
    if fills_while_called:
        scene.app.send("quick", {})
    else:
        scene.fill()

        def send_when_full() -> None:
            assert scene.full.wait(DEADLINE_SECONDS)
            scene.app.send("quick", {})

        threading.Thread(target=send_when_full, daemon=True).start()
    scene.serve()
    assert scene.failures == []
    assert list(scene.calls.values()) == [1]
    assert scene.acked_while_full
