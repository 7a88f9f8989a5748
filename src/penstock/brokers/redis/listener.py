"""Arrival listener: a thread that waits for the wake-up token that senders leave."""

import threading
from collections.abc import Callable, Mapping, Set
from typing import Any

from penstock.brokers.redis.server import Server
from penstock.errors import PenstockError
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock

WAIT_SECONDS = 1.0  # per wait; redis-py's connections do not survive a cancelled one, so it is short
BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS = 0.2, 5.0


class RedisArrivalListener:
    """One worker's `penstock.messaging.broker.Listening`. At most one token exists: an arrival wakes one worker.

    A token that arrives when this worker no longer wants it is put back for another.
    """

    def __init__(
        self,
        server: Server,
        wake_keys: Mapping[str, str],
        on_arrival: Callable[[], None],
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        """Start the thread. ``wake_keys`` are the keys of the token lists, by queue."""
        self._server = server
        self._known = frozenset(wake_keys)
        self._queues = {key.encode(): queue for queue, key in wake_keys.items()}
        self._on_arrival = on_arrival
        self._clock = clock
        self._random = random
        self._wanted: Set[str] = frozenset()  # queues; written by the worker's thread, as is `_listens`
        self._listens = threading.Event()  # also cleared by the listener's thread after calling `on_arrival`
        self._closed = threading.Event()
        self._client = server.blocking()
        self._thread = threading.Thread(target=self._run, name="penstock-listening", daemon=True)
        self._thread.start()

    def want(self, queues: Set[str]) -> None:
        self._wanted = self._known & queues
        if not self._wanted:
            self._listens.clear()
        elif not self._listens.is_set():
            self._listens.set()

    def close(self) -> None:
        """Return at once. The thread ends after its current wait and puts back a token it receives."""
        self._closed.set()
        self._listens.set()

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._listens.wait()
            try:
                if not self._closed.is_set():
                    self._listen()
                failures = 0
            except PenstockError:  # the worker meets the same error when it polls
                failures += 1
                # Perhaps to a replica: the address may lead to another server now
                self._client.connection_pool.disconnect()
                self._clock.wait(self._closed, self._pause_seconds(failures))
        self._client.close()

    def _listen(self) -> None:
        with self._server.translated():
            keys = [key for key, queue in self._queues.items() if queue in self._wanted]
            token: Any = self._client.blpop(keys, timeout=WAIT_SECONDS) if keys else None
            if token is None:
                return
            key, value = token
            if self._listens.is_set() and self._queues[key] in self._wanted and not self._closed.is_set():
                self._listens.clear()
                self._on_arrival()
            else:
                self._client.rpush(key, value)

    def _pause_seconds(self, failures: int) -> float:
        return backoff_seconds(
            attempt=failures, base_seconds=BACKOFF_BASE_SECONDS, cap_seconds=BACKOFF_CAP_SECONDS, random=self._random
        )


class NoArrivalListener:
    """A `penstock.messaging.broker.Listening` that reports nothing: the worker polls at intervals."""

    def want(self, queues: Set[str]) -> None:
        pass

    def close(self) -> None:
        pass
