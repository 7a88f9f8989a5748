"""The relay: from the outbox to the broker, at least once, a stream's rows in their order.

A row is sent, and then deleted: a relay that dies in between leaves it to be sent again, under the same ids. Where a
broker takes a part of a call, as SQS does, only the rows that it did not take stay. A broker that is away costs
nothing but time. A row that the broker refuses steps aside with its reason and is tried again now and then. Where a
whole queue seems to be refused, this relay lets it rest for a moment, and the rows keep their order.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import InboxForgotten, Listener, OutboxRefused, OutboxSent, RelayFailed
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.broker import PARTIAL_CHUNK, Broker, TriesEach
from penstock.messaging.clock import Clock
from penstock.transactions.outbox import ID_BYTES
from penstock.transactions.store import ClaimedRow, TransactionStore

FAILED_BASE_SECONDS, FAILED_CAP_SECONDS = 0.5, 30.0  # of the relay, where broker or database are away
REFUSED_BASE_SECONDS, REFUSED_CAP_SECONDS = 10.0, 600.0  # of a row that the broker refused
QUEUE_REST_SECONDS = 3.0  # of a queue that seems to be refused: less, so that its other rows come without them
REFUSED_IN_A_ROW_MAX = 3  # then the queue is thought to be refused, not a message
LEASE_SHARE = 0.5  # of the claim: later than that nothing more is begun under it
FORGET_EVERY_SECONDS = 3_600.0
FORGET_CALLS_MAX = 40  # before rows are sent again


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. ``inbox_seconds``: how long the inbox remembers; None: for ever."""

    every_seconds: float = 1.0  # between two looks of an idle one, about
    lease_seconds: float = 30.0
    inbox_seconds: float | None = 14 * 86_400.0
    rows_max: int = 100
    bytes_max: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayResult:
    """What a look at the outbox came to."""

    held: int = 0
    sent: int = 0
    refused: int = 0

    def __add__(self, other: "RelayResult") -> "RelayResult":
        return RelayResult(
            held=self.held + other.held, sent=self.sent + other.sent, refused=self.refused + other.refused
        )


class Relay:
    """Of one database. `run` is for a thread of its own; the rest is for any."""

    def __init__(
        self,
        store: TransactionStore,
        *,
        broker: Callable[[], Broker],
        settings: RelaySettings,
        clock: Clock,
        random: Random,
        tell: Listener,
    ) -> None:
        self._store = store
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._random = random
        self._tell = tell
        self._woken = threading.Event()
        self._ended = False  # written by whoever ends it
        self._failures = 0  # in a row; this and the next two: of the thread that runs
        self._resting: dict[str, float] = {}  # queues, each until this monotonic time
        self._forget_at = clock.monotonic()

    def run(self) -> None:
        """Send what is there and wait for more, until the end. Whatever fails is told and tried again."""
        while not self._ended:
            self._woken.clear()
            try:
                seconds = self._seconds_after(self.step())
                self._failures = 0
            except Exception as error:  # whatever it is: rows wait for this thread
                seconds = self._failed(error)
            if seconds and not self._ended:
                self._clock.wait(self._woken, seconds)

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    def end(self) -> None:
        """Begin nothing more; what is being sent is brought to its end."""
        self._ended = True
        self._woken.set()

    def once(self) -> RelayResult:
        """Send what is there now, refused rows too. Raises `PenstockError` where broker or database are away."""
        self._store.hasten()
        total = step = self.step(in_a_row_max=None)
        while step.held and not self._ended:
            step = self.step(in_a_row_max=None)
            total += step
        return total

    def step(self, *, in_a_row_max: int | None = REFUSED_IN_A_ROW_MAX) -> RelayResult:
        """Claim some rows, send them, delete them. What could not be sent is free again. Raises as `once`.

        ``in_a_row_max``: after so many refusals their queue rests for a moment; None: each row is tried.
        """
        self._forget()
        claim_id = secrets.token_bytes(ID_BYTES)
        claimed_at = self._clock.monotonic()
        held = self._store.claim(
            claim_id,
            lease_seconds=self._settings.lease_seconds,
            rows_max=self._settings.rows_max,
            bytes_max=self._settings.bytes_max,
            resting=self._still_resting(claimed_at),
        )
        if not held:
            return RelayResult()
        until = claimed_at + self._settings.lease_seconds * LEASE_SHARE
        shift = _ClaimedRows(self._store, self._broker(), claim_id, over=lambda: self._over(until), random=self._random)
        try:
            for queue, rows in _by_queue(held).items():
                shift.send(queue, rows, in_a_row_max=in_a_row_max)
        finally:
            for event in shift.events:
                self._tell(event)
            self._resting |= dict.fromkeys(shift.refusing, self._clock.monotonic() + QUEUE_REST_SECONDS)
            if shift.left(held):
                self._store.release(claim_id)
        return RelayResult(held=len(held), sent=shift.sent, refused=shift.refused)

    def _still_resting(self, now: float) -> Collection[str]:
        self._resting = {queue: until for queue, until in self._resting.items() if until > now}
        return self._resting.keys()

    def _over(self, until: float) -> bool:
        return self._ended or self._clock.monotonic() > until

    def _seconds_after(self, step: RelayResult) -> float:
        """A look that found something is followed by the next at once."""
        return 0.0 if step.held else self._settings.every_seconds * (0.5 + self._random())

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        seconds = FAILED_BASE_SECONDS / 2 + backoff_seconds(
            attempt=self._failures,
            base_seconds=FAILED_BASE_SECONDS,
            cap_seconds=FAILED_CAP_SECONDS,
            random=self._random,
        )
        self._tell(RelayFailed(database=self._store.place, error=_told(error), delay_seconds=seconds))
        return seconds

    def _forget(self) -> None:
        """Now and then; and before anything is claimed, so that no lease waits for it."""
        older_than = self._settings.inbox_seconds
        if older_than is None or self._clock.monotonic() < self._forget_at:
            return
        self._forget_at = self._clock.monotonic() + FORGET_EVERY_SECONDS * (0.5 + self._random())
        count = forget(self._store, older_than, calls_max=FORGET_CALLS_MAX)
        if count:
            self._tell(InboxForgotten(database=self._store.place, count=count))


def forget(store: TransactionStore, older_than_seconds: float, *, calls_max: int | None = None) -> int:
    """Delete what the inbox has held for longer, in short transactions; return the number of messages."""
    count = calls = 0
    while calls_max is None or calls < calls_max:
        forgotten = store.forget(older_than_seconds)
        count, calls = count + forgotten.messages, calls + 1
        if forgotten.is_all:
            break
    return count


class _ClaimedRows:
    """The rows of one claim on their way."""

    def __init__(
        self, store: TransactionStore, broker: Broker, claim_id: bytes, *, over: Callable[[], bool], random: Random
    ) -> None:
        self._store = store
        self._broker = broker
        self._claim_id = claim_id
        self._over = over
        self._random = random
        self._settled: set[int] = set()  # rows that are deleted, or wait with a reason
        self.sent = 0
        self.refused = 0
        self.refusing: set[str] = set()  # queues that seem to be refused as a whole
        self.events: list[OutboxSent | OutboxRefused] = []

    def left(self, held: Sequence[ClaimedRow]) -> bool:
        """Whether rows of the claim are held still."""
        return not self._settled.issuperset(row.id for row in held)

    def send(self, queue: str, rows: Sequence[ClaimedRow], *, in_a_row_max: int | None) -> None:
        """Send the rows of one queue, in their order. What the broker took is deleted before more is sent.

        Raises the first error of a row that is to be tried again.
        """
        if isinstance(self._broker, TriesEach):
            self._send_parts(self._broker, queue, rows, in_a_row_max)
        else:
            self._send_whole(queue, rows, in_a_row_max)

    def _send_parts(self, broker: TriesEach, queue: str, rows: Sequence[ClaimedRow], in_a_row_max: int | None) -> None:
        """The broker may take some messages of a call and not others, and reports which."""
        in_a_row = 0
        for start in range(0, len(rows), PARTIAL_CHUNK):
            if self._over() or queue in self.refusing:
                return
            some = rows[start : start + PARTIAL_CHUNK]
            answers: Sequence[str | PenstockError]
            try:
                answers = broker.try_send(queue, [row.outgoing for row in some])
            except ConfigurationError as error:  # of the queue: it took none of them
                answers = [error] * len(some)
            outcomes = list(zip(some, answers, strict=True))
            self._sent(queue, [(row, answer) for row, answer in outcomes if isinstance(answer, str)])
            for row, answer in outcomes:
                if isinstance(answer, str):
                    in_a_row = 0
                elif isinstance(answer, ConfigurationError) and queue not in self.refusing:
                    self._refuse(row, answer)
                    in_a_row += 1
                    if in_a_row == in_a_row_max:
                        self.refusing.add(queue)
            failed = [answer for answer in answers if isinstance(answer, TemporaryError)]
            if failed:
                raise failed[0]

    def _send_whole(self, queue: str, rows: Sequence[ClaimedRow], in_a_row_max: int | None) -> None:
        """All in one call, which the broker takes as a whole or not at all; if it refuses that, each alone."""
        if self._over():
            return
        try:
            self._send(queue, rows)
        except ConfigurationError as error:
            if len(rows) == 1:
                self._refuse(rows[0], error)
            else:
                self._send_each(queue, rows, in_a_row_max)

    def _send_each(self, queue: str, rows: Sequence[ClaimedRow], in_a_row_max: int | None) -> None:
        in_a_row = 0
        for row in rows:
            if self._over():
                return
            try:
                self._send(queue, [row])
                in_a_row = 0
            except ConfigurationError as error:
                self._refuse(row, error)
                in_a_row += 1
            if in_a_row == in_a_row_max:
                self.refusing.add(queue)
                return

    def _send(self, queue: str, rows: Sequence[ClaimedRow]) -> None:
        ids = self._broker.send(queue, [row.outgoing for row in rows])
        self._sent(queue, list(zip(rows, ids, strict=True)))

    def _sent(self, queue: str, taken: Sequence[tuple[ClaimedRow, str]]) -> None:
        """The broker has these rows, under these ids."""
        if not taken:
            return
        self._store.delete(self._claim_id, [row.id for row, _ in taken])
        self._settled.update(row.id for row, _ in taken)
        self.sent += len(taken)
        self.events.append(OutboxSent(queue=queue, message_ids=tuple(id for _, id in taken)))

    def _refuse(self, row: ClaimedRow, error: ConfigurationError) -> None:
        seconds = min(REFUSED_CAP_SECONDS, REFUSED_BASE_SECONDS * 2.0 ** min(row.tries, 20)) * (0.5 + self._random())
        reason = _told(error)
        self._store.refuse(self._claim_id, row.id, reason=reason, wait_seconds=seconds)
        self._settled.add(row.id)
        self.refused += 1
        self.events.append(
            OutboxRefused(
                queue=row.queue, outbox_id=row.outbox_id, tries=row.tries + 1, reason=reason, delay_seconds=seconds
            )
        )


def _by_queue(rows: Iterable[ClaimedRow]) -> Mapping[str, Sequence[ClaimedRow]]:
    """Each queue's, in their order; sorting keeps it."""
    in_order = sorted(rows, key=lambda row: row.queue)
    return {queue: list(of_queue) for queue, of_queue in groupby(in_order, key=lambda row: row.queue)}


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
