"""Replay, purge and move dead letters for the commands: queue by queue, in chunks, with an audit entry per queue.

A move lets the broker itself move all messages of a queue at once; only SQS can.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal, Protocol, runtime_checkable

from penstock.dead_letters.canary import Canary, CanaryResult, unwatched, watch
from penstock.dead_letters.filters import source_of
from penstock.dead_letters.operator import (
    ProgressCallback,
    ReplayedChunk,
    ReplayItem,
    ReplayRate,
    ReplaySender,
    Stopped,
    matching,
)
from penstock.dead_letters.reader import DeadLetteredMessage, DeadLetterReader, dead_letters_in
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.messaging.broker import listed_name, names_final_dlq
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.steps import Probe, no_probe
from penstock.operations.dead_letters.selection import (
    DeadLetterSelection,
    OriginQueues,
    QueueResult,
    audited,
    check_destination,
    dlqs_of,
    is_worth_reading,
    selected_queues,
)
from penstock.operations.inspection import ScopeView

CANARY_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a replay."""

    to: str | None = None  # None: each message to the queue it came from
    rate: float | None = None  # messages per second
    canaries: int = 0  # number of messages that are sent first and watched
    canary_seconds: float = CANARY_SECONDS

    @property
    def details(self) -> Mapping[str, object]:
        """The options for the audit log."""
        values = {"to": self.to, "rate": self.rate, "canary": self.canaries}
        return {name: value for name, value in values.items() if value}


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """The result of a replay."""

    sent: int = 0
    sent_before: int = 0  # sent by an interrupted replay: only deleted now
    without_origin: int = 0  # kept: their queue is unknown or does not exist
    refused: int = 0  # kept: their queues never accept them
    refusal: str | None = None  # the first reason
    by_queue: dict[str, int] = field(default_factory=dict)  # messages by destination
    canary_results: list[CanaryResult] = field(default_factory=list)  # results of the canaries
    ids_met: set[str] = field(default_factory=set)  # requested ids that were found
    outcome: Literal["done", "interrupted", "canary died", "canary unknown"] = "done"

    @property
    def found_none(self) -> bool:
        """True if no dead letters matched."""
        return self.outcome == "done" and not (self.sent or self.sent_before or self.without_origin or self.refused)

    @property
    def sent_none(self) -> bool:
        """True if dead letters matched but no origin queue is known for any of them."""
        return self.without_origin > 0 and not (self.sent or self.sent_before or self.refused)


@dataclass(slots=True, kw_only=True)
class PurgeReport:
    """The result of a purge."""

    dead_letters: int = 0
    ids_met: set[str] = field(default_factory=set)  # requested ids that were found


class ReplayOperation:
    """One replay of the selected messages."""

    def __init__(
        self,
        seen: ScopeView,
        selection: DeadLetterSelection,
        how: ReplayOptions,
        *,
        ledger: Ledger,
        stopped: Stopped,
        on_progress: ProgressCallback,
        clock: Clock | None = None,
        probe: Probe = no_probe,
        who: str | None = None,
    ) -> None:
        """``who`` acts, for the audit; None: the user of this process."""
        self._seen = seen
        self._selection = selection
        self._how = how
        self._ledger = ledger
        self._stopped = stopped
        self._on_progress = on_progress
        self._who = who
        self._clock = clock or SystemClock()
        self._sender = ReplaySender(seen.broker, ledger.replays, clock=self._clock, probe=probe)
        self._began_at = seen.broker.now()  # by the clock that dates the dead letters
        self._origins = OriginQueues(seen.broker)
        self._results: list[QueueResult] = []  # this replay's audit entries so far
        self._report = ReplayReport()

    @property
    def report(self) -> ReplayReport:
        """The result so far, also after an error."""
        return self._report

    def run(self, *, say: Callable[[str], None]) -> ReplayReport:
        """Run the replay. Raises `UsageError` for an invalid destination."""
        report, how = self._report, self._how
        if how.to is not None:
            check_destination(self._seen, how.to)
        if how.canaries:
            self._send_canaries(say)
        if report.outcome == "done" and not self._stopped():
            with ExitStack() as entries:
                for _ in self._send(self._left, entries):
                    pass
        if self._stopped():
            report.outcome = "interrupted"
        return report

    def _send_canaries(self, say: Callable[[str], None]) -> None:
        """Send the canaries and wait for their results, which become the outcome of their audit entries."""
        with ExitStack() as entries:
            canaries = self._canaries(entries)
            if canaries:
                queues = ", ".join(dict.fromkeys(canary.queue for canary in canaries))
                number = "one message is" if len(canaries) == 1 else f"{len(canaries)} messages are"
                say(f"{number} sent to {queues} and watched")
            for canary in canaries:
                self._report.canary_results.append(result := self._watch(canary))
                if result.status != "not watched":
                    say(f"the canary: {result.text}")
            if self._report.outcome != "done" and not self._stopped():
                for queue_result in self._results:
                    queue_result.outcome = self._report.outcome

    def _watch(self, canary: Canary) -> CanaryResult:
        if self._report.outcome != "done":
            return unwatched(canary)
        seconds = self._how.canary_seconds
        result = watch(canary, self._seen.broker, seconds=seconds, clock=self._clock, stopped=self._stopped)
        if result.status != "settled":
            self._report.outcome = "canary died" if result.status == "died" else "canary unknown"
        return result

    @property
    def _left(self) -> int | None:
        return None if self._selection.limit is None else max(0, self._selection.limit - self._report.sent)

    def _canaries(self, entries: ExitStack) -> Sequence[Canary]:
        """Send the canaries."""
        count = self._how.canaries if self._left is None else min(self._how.canaries, self._left)
        broker = self._seen.broker
        return [
            Canary(
                queue=item.queue,
                message_id=id,
                replay_id=item.replay.replay_id,
                dead_letter_queues=list(dlqs_of(broker, item.queue)),
            )
            for sent in self._send(count, entries)
            for item, id in zip(sent.items, sent.ids, strict=True)
        ]

    def _send(self, limit: int | None, entries: ExitStack) -> Iterator[ReplayedChunk]:
        """Send up to ``limit`` messages, chunk by chunk.

        Messages that an earlier replay already sent do not count. ``entries`` closes the audit entries.
        """
        sent_max = None if limit is None else self._report.sent + limit
        self._report.without_origin = self._report.refused = 0  # recounted at each pass
        rate = ReplayRate(self._how.rate, clock=self._clock, stopped=self._stopped)
        for queue in selected_queues(self._seen, self._selection):
            if self._stopped() or not is_worth_reading(self._seen.broker, queue):
                continue
            with dead_letters_in(self._seen.broker, queue, clock=self._clock) as dead_letters:
                pages = self._items(dead_letters)
                if sent_max == self._report.sent or (first := next(pages, None)) is None:
                    continue
                details = {**self._selection.details, **self._how.details}
                entry = audited(
                    self._ledger, "replay", queue=queue, details=details, stopped=self._stopped, who=self._who
                )
                self._results.append(result := entries.enter_context(entry))
                for page in chain([first], pages):
                    yield from self._send_pages(dead_letters, page, rate, result, sent_max)
                    if sent_max == self._report.sent:
                        break

    def _send_pages(
        self,
        dead_letters: DeadLetterReader,
        page: Sequence[ReplayItem],
        rate: ReplayRate,
        result: QueueResult,
        sent_max: int | None,
    ) -> Iterator[ReplayedChunk]:
        """Send a whole page before requesting the next: a FIFO queue returns no more of a group before."""
        report = self._report
        remaining = iter(page)
        while not self._stopped():
            size = rate.chunk if sent_max is None else min(rate.chunk, sent_max - report.sent)
            if not (chunk := list(islice(remaining, size))):
                return
            sent = self._sender.send(dead_letters, chunk)
            result.messages += len(sent.items)
            report.sent += len(sent.items)
            report.sent_before += sent.sent_before
            for item in sent.items:
                report.by_queue[item.queue] = report.by_queue.get(item.queue, 0) + 1
            report.refused += len(sent.refused)
            if sent.refused and report.refusal is None:
                report.refusal = str(sent.refused[0][1])
            self._on_progress(len(chunk))
            yield sent
            if sent.failed is not None:
                raise sent.failed
            rate.wait(len(sent.items))

    def _items(self, dead_letters: DeadLetterReader) -> Iterator[Sequence[ReplayItem]]:
        """Yield the messages to send, page by page."""
        pages = matching(
            dead_letters, self._selection.wanted, clock=self._clock, stopped=self._stopped, until=self._began_at
        )
        for page in pages:
            self._report.ids_met.update(*map(self._selection.wanted.ids_met, page))
            items = [
                ReplayItem(dead_letter=dead_letter, queue=queue)
                for dead_letter in page
                if (queue := self._queue_of(dead_letter))
            ]
            self._report.without_origin += len(page) - len(items)
            if items:
                yield items

    def _queue_of(self, dead_letter: DeadLetteredMessage) -> str | None:
        return self._how.to or self._origins.of(dead_letter)


def purge(
    seen: ScopeView,
    selection: DeadLetterSelection,
    *,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
    who: str | None = None,
) -> PurgeReport:
    """Delete the selected messages that were dead letters when the purge began.

    ``who`` acts, for the audit; None: the user of this process.
    """
    clock = SystemClock()
    began_at = seen.broker.now()
    left = selection.limit
    purged = PurgeReport()
    for queue in selected_queues(seen, selection):
        if stopped() or left == 0 or not is_worth_reading(seen.broker, queue):
            continue
        with dead_letters_in(seen.broker, queue, clock=clock) as dead_letters:
            pages = matching(dead_letters, selection.wanted, clock=clock, stopped=stopped, until=began_at)
            if (first := next(pages, None)) is None:
                continue
            details = selection.details
            with audited(ledger, "purge", queue=queue, details=details, stopped=stopped, who=who) as result:
                for page in chain([first], pages):
                    purged.ids_met.update(*map(selection.wanted.ids_met, page))
                    result.messages += dead_letters.remove([dead_letter.id for dead_letter in page[:left]])
                    on_progress(len(page[:left]))
                    left = None if left is None else left - len(page[:left])
                    if left == 0:
                        break
            purged.dead_letters += result.messages
    return purged


class MoveTaskProgress(Protocol):
    """The progress of a move task."""

    @property
    def moved(self) -> int: ...


class MoveTask(Iterator[MoveTaskProgress], AbstractContextManager["MoveTask"], Protocol):
    """A move task: it moves while it is iterated over, and leaving the block early cancels it."""


@runtime_checkable
class QueueMover(Protocol):
    """A broker that can move whole queues itself."""

    def move_all(self, source: str, destination: str | None = None, *, per_second: int | None = None) -> MoveTask:
        """Start a move. Without a destination: to the one queue whose DLQ this is."""
        ...


def check_movable(seen: ScopeView, selection: DeadLetterSelection, *, to: str | None) -> QueueMover:
    """Return the broker if it can do this move.

    Raises `UsageError` for a broker that cannot move, for filters, which a move does not support, and for an invalid
    destination.
    """
    if not isinstance(seen.broker, QueueMover):
        raise UsageError("--move is for SQS, which has tasks for it; leave it out here.")
    if selection.queue is None or not selection.wanted.is_empty or selection.limit is not None:
        raise UsageError("--move takes whole queues: give --queue, and --tier if need be, and no other filter.")
    if to is not None:
        check_destination(seen, to)
    return seen.broker


def move(
    seen: ScopeView,
    selection: DeadLetterSelection,
    *,
    to: str | None,
    rate: float | None,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
) -> int:
    """Move all messages of the selected queues; return the approximate number moved.

    Raises `UsageError` as `check_movable` does.
    """
    mover = check_movable(seen, selection, to=to)
    moved = 0
    for queue in selected_queues(seen, selection):
        if stopped() or not is_worth_reading(seen.broker, queue):
            continue
        details = {**selection.details, "to": to, "rate": rate}
        with audited(ledger, "move", queue=queue, details=details, stopped=stopped) as result:
            per_second = None if rate is None else max(1, int(rate))
            with mover.move_all(queue, to or _destination(queue), per_second=per_second) as task:
                for progress in task:
                    on_progress(progress.moved - result.messages)
                    result.messages = progress.moved
                    if stopped():
                        break
        moved += result.messages
    return moved


def _destination(queue: str) -> str | None:
    """Return the source queue of a final DLQ, since SQS would move its messages to the DLQ; None otherwise."""
    return source_of(listed_name(queue)) if names_final_dlq(listed_name(queue)) else None
