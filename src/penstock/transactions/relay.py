"""The relay: send rows of the outbox to the broker, at least once, each stream in order.

The relay sends a row, then deletes it. If it dies in between, the row is sent again with the same ids. If a broker
accepts only part of a call, as SQS may, only the rejected rows stay. While a broker is unavailable, rows wait and
nothing is lost. A row that the broker rejects is put aside with the reason and retried at intervals. If the broker
seems to reject a whole queue, the relay skips that queue for a moment, so that its rows keep their order.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import InboxCleaned, Listener, OutboxRejected, OutboxSent, RelayFailed
from penstock.messaging.backoff import Random, backoff_seconds, ceiling_seconds
from penstock.messaging.broker import PARTIAL_CHUNK, Broker, TriesEach
from penstock.messaging.clock import Clock
from penstock.transactions.outbox import ID_BYTES
from penstock.transactions.store import ClaimedRow, TransactionStore

FAILED_BASE_SECONDS, FAILED_CAP_SECONDS = 0.5, 30.0  # when broker or database are unavailable
REFUSED_BASE_SECONDS, REFUSED_CAP_SECONDS = 10.0, 600.0  # for a row that the broker rejected
QUEUE_PAUSE_SECONDS = 3.0  # for a rejected queue; shorter than for a row, so its other rows are tried first
REFUSED_IN_A_ROW_MAX = 3  # after this many, the queue rather than a message counts as rejected
LEASE_SHARE = 0.5  # no send starts after this share of the claim's lease
FORGET_EVERY_SECONDS = 3_600.0
FORGET_PASSES_MAX = 40  # per run, before the relay sends again


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """The settings of a relay. ``inbox_seconds`` is the retention of the inbox; None: for ever."""

    every_seconds: float = 1.0  # approximate time between polls of an idle relay
    lease_seconds: float = 30.0
    inbox_seconds: float | None = 14 * 86_400.0
    rows_max: int = 100
    bytes_max: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayResult:
    """Row counts of one poll, or of several added up."""

    claimed: int = 0
    sent: int = 0
    refused: int = 0

    def __add__(self, other: "RelayResult") -> "RelayResult":
        return RelayResult(
            claimed=self.claimed + other.claimed, sent=self.sent + other.sent, refused=self.refused + other.refused
        )


class Relay:
    """The relay of one database. Its own thread calls `run`; any thread may call the other methods."""

    def __init__(
        self,
        store: TransactionStore,
        *,
        broker: Callable[[], Broker],
        settings: RelaySettings,
        clock: Clock,
        random: Random,
        emit: Listener,
    ) -> None:
        self._store = store
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._random = random
        self._emit = emit
        self._woken = threading.Event()
        self._ended = False  # set once, by the thread that calls `end`
        self._failures = 0  # in a row; this and the next two fields: written by the thread that runs
        self._paused: dict[str, float] = {}  # queues to skip until this monotonic time
        self._forget_at = clock.monotonic()

    def run(self) -> None:
        """Send rows and wait for more, until `end`. Every error is emitted and retried."""
        while not self._ended:
            self._woken.clear()
            try:
                seconds = self._seconds_after(self.step())
                self._failures = 0
            except Exception as error:  # any error: the rows depend on this thread
                seconds = self._record_failure(error)
            if seconds and not self._ended:
                self._clock.wait(self._woken, seconds)

    def wake(self) -> None:
        """Poll at once instead of waiting."""
        self._woken.set()

    def end(self) -> None:
        """Start no further send; the current one is completed."""
        self._ended = True
        self._woken.set()

    def once(self) -> RelayResult:
        """Send all rows, including rejected ones. Raises `PenstockError` if broker or database are unavailable."""
        self._store.hasten()
        total = step = self.step(in_a_row_max=None)
        while step.claimed and not self._ended:
            step = self.step(in_a_row_max=None)
            total += step
        return total

    def step(self, *, in_a_row_max: int | None = REFUSED_IN_A_ROW_MAX) -> RelayResult:
        """Claim some rows, send them and delete them. Rows that could not be sent are released. Raises like `once`.

        ``in_a_row_max`` is the number of rejections after which the queue is skipped for a moment; None: try every
        row.
        """
        self._forget()
        claim_id = secrets.token_bytes(ID_BYTES)
        claimed_at = self._clock.monotonic()
        claimed = self._store.claim(
            claim_id,
            lease_seconds=self._settings.lease_seconds,
            rows_max=self._settings.rows_max,
            bytes_max=self._settings.bytes_max,
            paused=self._update_paused(claimed_at),
        )
        if not claimed:
            return RelayResult()
        until = claimed_at + self._settings.lease_seconds * LEASE_SHARE
        claim = _ClaimedRows(
            self._store, self._broker(), claim_id, is_over=lambda: self._is_over(until), random=self._random
        )
        try:
            for queue, rows in _by_queue(claimed).items():
                claim.send(queue, rows, in_a_row_max=in_a_row_max)
        finally:
            for event in claim.events:
                self._emit(event)
            self._paused |= dict.fromkeys(claim.refusing, self._clock.monotonic() + QUEUE_PAUSE_SECONDS)
            if claim.left(claimed):
                self._store.release(claim_id)
        return RelayResult(claimed=len(claimed), sent=claim.sent, refused=claim.refused)

    def _update_paused(self, now: float) -> Collection[str]:
        self._paused = {queue: until for queue, until in self._paused.items() if until > now}
        return self._paused.keys()

    def _is_over(self, until: float) -> bool:
        return self._ended or self._clock.monotonic() > until

    def _seconds_after(self, step: RelayResult) -> float:
        """Return 0 after a poll that found rows, otherwise the idle wait."""
        return 0.0 if step.claimed else self._settings.every_seconds * (0.5 + self._random())

    def _record_failure(self, error: Exception) -> float:
        self._failures += 1
        seconds = FAILED_BASE_SECONDS / 2 + backoff_seconds(
            attempt=self._failures,
            base_seconds=FAILED_BASE_SECONDS,
            cap_seconds=FAILED_CAP_SECONDS,
            random=self._random,
        )
        self._emit(RelayFailed(database=self._store.address, error=_error_text(error), delay_seconds=seconds))
        return seconds

    def _forget(self) -> None:
        """Delete expired rows of the inbox at intervals, before claiming rows, so that no lease runs meanwhile."""
        older_than = self._settings.inbox_seconds
        if older_than is None or self._clock.monotonic() < self._forget_at:
            return
        self._forget_at = self._clock.monotonic() + FORGET_EVERY_SECONDS * (0.5 + self._random())
        count = forget(self._store, older_than, passes_max=FORGET_PASSES_MAX)
        if count:
            self._emit(InboxCleaned(database=self._store.address, count=count))


def forget(store: TransactionStore, older_than_seconds: float, *, passes_max: int | None = None) -> int:
    """Delete expired rows of the inbox, in short transactions; return the number of messages."""
    count = passes = 0
    while passes_max is None or passes < passes_max:
        forgotten = store.forget(older_than_seconds)
        count, passes = count + forgotten.messages, passes + 1
        if forgotten.is_all:
            break
    return count


class _ClaimedRows:
    """The rows of one claim while they are sent. Created by `Relay.step`, and used by its thread."""

    def __init__(
        self, store: TransactionStore, broker: Broker, claim_id: bytes, *, is_over: Callable[[], bool], random: Random
    ) -> None:
        self._store = store
        self._broker = broker
        self._claim_id = claim_id
        self._is_over = is_over
        self._random = random
        self._settled: set[int] = set()  # rows that were deleted, or put aside with a reason
        self.sent = 0
        self.refused = 0
        self.refusing: set[str] = set()  # queues that seem to be rejected as a whole
        self.events: list[OutboxSent | OutboxRejected] = []

    def left(self, claimed: Sequence[ClaimedRow]) -> bool:
        """Return True if the claim still holds any of these rows."""
        return not self._settled.issuperset(row.id for row in claimed)

    def send(self, queue: str, rows: Sequence[ClaimedRow], *, in_a_row_max: int | None) -> None:
        """Send the rows of one queue in order. Rows that the broker accepted are deleted before more are sent.

        Raises the first temporary error of a row.
        """
        if isinstance(self._broker, TriesEach):
            self._send_chunks(self._broker, queue, rows, in_a_row_max)
        else:
            self._send_whole(queue, rows, in_a_row_max)

    def _send_chunks(self, broker: TriesEach, queue: str, rows: Sequence[ClaimedRow], in_a_row_max: int | None) -> None:
        """Send to a broker that may accept only some messages of a call, and reports which."""
        in_a_row = 0
        for start in range(0, len(rows), PARTIAL_CHUNK):
            if self._is_over() or queue in self.refusing:
                return
            chunk = rows[start : start + PARTIAL_CHUNK]
            results: Sequence[str | PenstockError]
            try:
                results = broker.try_send(queue, [row.outgoing for row in chunk])
            except ConfigurationError as error:  # an error of the queue: it accepted no row
                results = [error] * len(chunk)
            outcomes = list(zip(chunk, results, strict=True))
            self._delete_sent(queue, [(row, result) for row, result in outcomes if isinstance(result, str)])
            for row, result in outcomes:
                if isinstance(result, str):
                    in_a_row = 0
                elif isinstance(result, ConfigurationError) and queue not in self.refusing:
                    self._refuse(row, result)
                    in_a_row += 1
                    if in_a_row == in_a_row_max:
                        self.refusing.add(queue)
            failed = [result for result in results if isinstance(result, TemporaryError)]
            if failed:
                raise failed[0]

    def _send_whole(self, queue: str, rows: Sequence[ClaimedRow], in_a_row_max: int | None) -> None:
        """Send all rows in one call, accepted or rejected as a whole; if rejected, send them one by one."""
        if self._is_over():
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
            if self._is_over():
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
        self._delete_sent(queue, list(zip(rows, ids, strict=True)))

    def _delete_sent(self, queue: str, accepted: Sequence[tuple[ClaimedRow, str]]) -> None:
        """Delete rows that the broker accepted under these ids."""
        if not accepted:
            return
        self._store.delete(self._claim_id, [row.id for row, _ in accepted])
        self._settled.update(row.id for row, _ in accepted)
        self.sent += len(accepted)
        self.events.append(OutboxSent(queue=queue, message_ids=tuple(id for _, id in accepted)))

    def _refuse(self, row: ClaimedRow, error: ConfigurationError) -> None:
        ceiling = ceiling_seconds(
            attempt=row.tries + 1, base_seconds=REFUSED_BASE_SECONDS, cap_seconds=REFUSED_CAP_SECONDS
        )
        seconds = ceiling * (0.5 + self._random())
        reason = _error_text(error)
        self._store.refuse(self._claim_id, row.id, reason=reason, wait_seconds=seconds)
        self._settled.add(row.id)
        self.refused += 1
        self.events.append(
            OutboxRejected(
                queue=row.queue, outbox_id=row.outbox_id, tries=row.tries + 1, reason=reason, delay_seconds=seconds
            )
        )


def _by_queue(rows: Iterable[ClaimedRow]) -> Mapping[str, Sequence[ClaimedRow]]:
    """Group the rows by queue; stable sorting keeps their order."""
    in_order = sorted(rows, key=lambda row: row.queue)
    return {queue: list(queue_rows) for queue, queue_rows in groupby(in_order, key=lambda row: row.queue)}


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
