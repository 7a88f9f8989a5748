"""Why is a queue slow: the reasons that follow from the figures of one queue, the strongest first.

`reasons_of` is a pure function of `QueueFigures`. Each reason is a sentence and what to do about it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.app.flows import UNKNOWN, QueueFlow
from penstock.app.held_messages import HeldMessage
from penstock.app.queues import QueueStatus
from penstock.app.registry import SERVING, WorkerRecord
from penstock.operations.queue_groups import GroupSample
from penstock.operations.status.sentences import Elapsed, Names, Sentence, counted_sentence, rate_text, sentence
from penstock.operations.workers.stuck import StuckSign, is_silent, stuck_signs

FLOOD_SHARE = 0.8  # of the sample in one group
FLOOD_MESSAGES_MIN = 20  # a smaller sample proves nothing
GROWTH_SHARE = 1.05  # arrivals above this multiple of what is settled
LONG_SECONDS = 3_600.0  # a time until the queue is empty that is worth a sentence
LONG_CALL_SECONDS = 60.0  # a call that took this long may hang


class ReasonKind(StrEnum):
    """The kinds of reasons that make a queue slow."""

    PAUSED = "paused"
    NO_WORKER = "no worker"
    BREAKER = "breaker"
    UNSERVED = "unserved"
    UNREAD = "unread"
    DRAINING = "draining"
    STUCK = "stuck"
    BUSY = "busy"
    GROWING = "growing"
    FLOOD = "flood"
    FAILING = "failing"
    DELAYED = "delayed"
    BACKLOG = "backlog"
    NONE = "none"


BAD, WARN, PLAIN, GOOD = "bad", "warn", "plain", "good"
_LEVELS: Mapping[ReasonKind, str] = {
    ReasonKind.DRAINING: WARN,
    ReasonKind.BUSY: WARN,
    ReasonKind.GROWING: WARN,
    ReasonKind.FLOOD: WARN,
    ReasonKind.FAILING: WARN,
    ReasonKind.DELAYED: PLAIN,
    ReasonKind.BACKLOG: PLAIN,
    ReasonKind.NONE: GOOD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason, and what to do about it, if anything."""

    kind: ReasonKind
    sentence: Sentence
    advice: Sentence | None = None
    worker: str | None = None  # the worker that it is about

    @property
    def level(self) -> str:
        """Return how bad it is: bad, warn, plain or good."""
        return _LEVELS.get(self.kind, BAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """The figures of one queue at one time."""

    queue: QueueStatus
    at: float  # epoch seconds
    flow: QueueFlow = UNKNOWN
    records: Sequence[WorkerRecord] = ()  # of the workers that serve it
    workers_seen: bool = True  # every worker that may receive is among the records
    lagging_after_seconds: float = 300.0
    groups: GroupSample | None = None
    dead_letters_before: float | None = None  # an hour ago
    timeouts: Mapping[str, float] = field(default_factory=dict)  # of handlers in seconds, by queue
    concurrency: int | None = None  # of the queue's handler in each worker; None: the worker's slots, or not known

    @property
    def waits(self) -> bool:
        return self.queue.visible > 0

    @property
    def age_seconds(self) -> float:
        return self.queue.oldest_visible_message_age_seconds or 0.0

    @property
    def is_lagging(self) -> bool:
        return self.age_seconds > self.lagging_after_seconds


def reasons_of(figures: QueueFigures) -> Sequence[Reason]:
    """Return the reasons why messages wait, the strongest first; never empty."""
    found = [
        *_stopped(figures),
        *_workers(figures),
        *_throughput(figures),
        *_messages(figures),
    ]
    return found or [_nothing(figures)]


def _stopped(figures: QueueFigures) -> Iterator[Reason]:
    """Yield what keeps all messages of the queue from being delivered."""
    queue = figures.queue
    if queue.paused:
        yield _reason(
            ReasonKind.PAUSED,
            sentence("The queue is paused: no worker gets a message until it is resumed."),
            "Resume it when the cause of the pause is repaired. The audit log names who paused it.",
        )
    if not figures.records:
        yield from _without_workers(figures)
    if queue.breaker is not None:
        yield _reason(
            ReasonKind.BREAKER,
            sentence(
                "A worker paused the queue by its circuit breaker, since all calls failed: {error}", error=queue.breaker
            ),
            "It tries single messages, and goes on at the first success. Repair the service that the handler calls.",
        )
    if queue.unserved is not None:
        yield _reason(
            ReasonKind.UNSERVED,
            sentence("A worker does not serve the queue at the moment: {why}", why=queue.unserved),
            "Its messages wait and keep their attempts. Repair the service; then the worker goes on, unless it halted.",
        )
    if queue.unread is not None:
        yield _reason(ReasonKind.UNREAD, sentence("{text}", text=queue.unread))


def _without_workers(figures: QueueFigures) -> Iterator[Reason]:
    queue = figures.queue
    advice = "Start one with `penstock worker`, and check that the setting worker.queues does not leave the queue out."
    if figures.workers_seen:
        yield _reason(ReasonKind.NO_WORKER, sentence("No worker serves this queue."), advice)
    elif figures.waits and not queue.in_flight:
        yield _reason(
            ReasonKind.NO_WORKER,
            sentence(
                "No worker of this host serves this queue, and no message is in flight, so no other host seems to."
            ),
            advice,
        )


def _workers(figures: QueueFigures) -> Iterator[Reason]:
    """Yield what is wrong with the workers of the queue."""
    for record in figures.records:
        yield from _stuck(figures, record)
    draining = [record for record in figures.records if record.state != SERVING]
    if draining and len(draining) == len(figures.records):
        yield _reason(
            ReasonKind.DRAINING,
            counted_sentence(
                len(draining),
                "The only worker of the queue drains: it finishes its messages and fetches no more.",
                "All {count} workers of the queue drain: they finish their messages and fetch no more.",
            ),
            "This is normal for a moment during a deploy. If it lasts, the new workers did not start.",
        )
    elif draining and figures.waits:
        yield _reason(
            ReasonKind.DRAINING,
            sentence(
                "{count} of {total} workers drain, and fetch no more messages.",
                count=len(draining),
                total=len(figures.records),
            ),
            "This is normal for a moment during a deploy.",
        )
    if figures.waits:
        serving = [
            record for record in figures.records if record.state == SERVING and not is_silent(record, now=figures.at)
        ]
        yield from _handler_busy(figures, serving) or _busy(figures, serving)


def _stuck(figures: QueueFigures, record: WorkerRecord) -> Iterator[Reason]:
    for sign in stuck_signs(record, now=figures.at, timeouts=figures.timeouts):
        forms = {
            StuckSign.HANGING: "A thread of the worker {worker} hangs: {detail}",
            StuckSign.SILENT: "The worker {worker} has had no heartbeat for {age}.",
            StuckSign.BLOCKED: "The worker {worker} is blocked: its timers run {age} late.",
            StuckSign.HOLDING: "The worker {worker} has held a message of this queue for {age}.",
        }
        if sign.sign is StuckSign.HOLDING and sign.queue != figures.queue.queue:
            continue
        yield Reason(
            kind=ReasonKind.STUCK,
            sentence=sentence(forms[sign.sign], worker=record.worker, age=Elapsed(sign.seconds), detail=sign.detail),
            advice=sentence("Its page shows what it holds, and how to end it if it does not go on."),
            worker=record.worker,
        )


def _handler_busy(figures: QueueFigures, serving: Sequence[WorkerRecord]) -> Sequence[Reason]:
    """Return the reason if every worker has as many calls as the handler's concurrency allows; else nothing.

    The workers may have free slots then.
    """
    calls = [_own(figures, record) for record in serving]
    if figures.concurrency is None or not calls or any(len(own) < figures.concurrency for own in calls):
        return ()
    oldest = min((one for own in calls for one in own), key=lambda one: one.since)
    text = counted_sentence(
        sum(len(own) for own in calls),
        "The only slot of the handler is busy, for {age}: its concurrency is {concurrency}.",
        "All {count} slots of the handler are busy, the longest for {age}: its concurrency is {concurrency}.",
        age=Elapsed(max(figures.at - oldest.since, 0.0)),
        concurrency=figures.concurrency,
    )
    advice = "If the handler waits for others, raise its concurrency; if it computes, start more workers."
    return [_busy_reason(figures, serving, text, advice)]


def _own(figures: QueueFigures, record: WorkerRecord) -> Sequence[HeldMessage]:
    return [one for one in record.held if one.queue == figures.queue.queue]


def _busy_reason(figures: QueueFigures, serving: Sequence[WorkerRecord], text: Sentence, advice: str) -> Reason:
    """Return the reason with this advice, or with that for a hanging call if the longest one takes too long."""
    holder = min(
        (record for record in serving if _own(figures, record)),
        key=lambda record: min(one.since for one in _own(figures, record)),
        default=None,
    )
    if holder is None or figures.at - min(one.since for one in _own(figures, holder)) < LONG_CALL_SECONDS:
        return _reason(ReasonKind.BUSY, text, advice)
    return Reason(
        kind=ReasonKind.BUSY,
        sentence=text,
        advice=sentence(
            "If a call should not take that long, it hangs, for example in a request without a timeout: the worker's "
            "page shows how to find the place, and how to end it. A timeout of the handler ends such calls "
            "automatically."
        ),
        worker=holder.worker,
    )


def _busy(figures: QueueFigures, serving: Sequence[WorkerRecord]) -> Iterator[Reason]:
    slots = sum(record.concurrency or 0 for record in serving)
    full = [record for record in serving if record.concurrency is not None and record.in_flight >= record.concurrency]
    if not serving or len(full) < len(serving):
        return
    held = [one for record in serving for one in record.held]
    own = [one for record in serving for one in _own(figures, record)]
    others = list(dict.fromkeys(one.queue for one in held if one.queue != figures.queue.queue))
    if others and len(own) * 2 < len(held):
        yield _reason(
            ReasonKind.BUSY,
            sentence(
                "All {slots} slots of its workers are busy, most of them with messages of {queues}.",
                slots=slots,
                queues=Names(others),
            ),
            "Give the queue more weight in worker.queues, or workers of its own.",
        )
        return
    longest = max((figures.at - one.since for one in own), default=0.0)
    yield _busy_reason(
        figures,
        serving,
        sentence(
            "All {slots} slots of its workers are busy, the longest for {age}.",
            slots=slots,
            age=Elapsed(max(longest, 0.0)),
        ),
        "If the handler waits for others, raise worker.concurrency; if it computes, start more workers.",
    )


def _throughput(figures: QueueFigures) -> Iterator[Reason]:
    flow = figures.flow
    if not figures.waits:
        return
    arrived, settled = flow.in_per_second, flow.out_per_second
    if arrived is not None and settled is not None:
        if arrived > settled * GROWTH_SHARE and arrived > 0:
            yield _reason(
                ReasonKind.GROWING,
                sentence(
                    "{arrived} messages arrive per second, and {settled} are settled: the queue grows.",
                    arrived=rate_text(arrived),
                    settled=rate_text(settled),
                ),
                "Start more workers, or raise worker.concurrency, or send less.",
            )
            return
    elif flow.net_per_second is not None and flow.net_per_second > 0:
        yield _reason(
            ReasonKind.GROWING,
            sentence("The queue grows by {rate} messages per second.", rate=rate_text(flow.net_per_second)),
            "Start more workers, or raise worker.concurrency, or send less.",
        )
        return
    drained = flow.drained_in_seconds
    if drained is not None and (figures.is_lagging or drained > LONG_SECONDS):
        yield _reason(
            ReasonKind.BACKLOG,
            sentence("The workers catch up: at this rate the queue is empty in {time}.", time=Elapsed(drained)),
        )


def _messages(figures: QueueFigures) -> Iterator[Reason]:
    """Yield what is special about the messages."""
    queue, groups = figures.queue, figures.groups
    if groups is not None and groups.group is not None and figures.waits and _is_flood(groups):
        yield _reason(
            ReasonKind.FLOOD,
            sentence(
                "The group {group} has {share}% of the {count} messages that have waited longest.",
                group=groups.group,
                share=round(100 * groups.share),
                count=groups.messages,
            ),
            "Groups take turns, so messages of other groups do not wait behind them. More slots or workers shorten its "
            "own wait.",
        )
    before = figures.dead_letters_before
    if before is not None and queue.dead_letters > before:
        yield _reason(
            ReasonKind.FAILING,
            counted_sentence(
                int(queue.dead_letters - before),
                "{count} message became a dead letter within the last hour.",
                "{count} messages became dead letters within the last hour.",
            ),
            "Each was tried several times, which takes slots. Its dead letters are grouped by error.",
        )
    if queue.delayed and not queue.visible:
        yield _reason(
            ReasonKind.DELAYED,
            counted_sentence(
                queue.delayed,
                "{count} message is delayed: sent with a delay, or waiting for its next attempt.",
                "{count} messages are delayed: sent with a delay, or waiting for their next attempt.",
            ),
        )


def _is_flood(groups: GroupSample) -> bool:
    return groups.messages >= FLOOD_MESSAGES_MIN and groups.share >= FLOOD_SHARE


def _nothing(figures: QueueFigures) -> Reason:
    held = [
        figures.at - one.since for record in figures.records for one in record.held if one.queue == figures.queue.queue
    ]
    if not figures.waits and held:
        return _reason(
            ReasonKind.NONE,
            counted_sentence(
                len(held),
                "No message waits. {count} is in flight, for {age}.",
                "No message waits. {count} are in flight, the longest for {age}.",
                age=Elapsed(max(*held, 0.0)),
            ),
            "If that is longer than the handler should take, it may hang: SIGUSR1 makes its worker log the stacks of "
            "all threads.",
        )
    if not figures.waits:
        text = sentence("No message waits.")
    elif figures.is_lagging:
        text = sentence(
            "The oldest visible message has waited for {age}, and the figures do not show why.",
            age=Elapsed(figures.age_seconds),
        )
        return _reason(ReasonKind.BACKLOG, text, "See how long the handler takes, in the metrics or the log.")
    else:
        text = sentence(
            "Nothing delays it: the oldest visible message has waited for {age}, and up to {limit} is normal.",
            age=Elapsed(figures.age_seconds),
            limit=Elapsed(figures.lagging_after_seconds),
        )
    return _reason(ReasonKind.NONE, text)


def _reason(kind: ReasonKind, text: Sentence, advice: str | None = None) -> Reason:
    return Reason(kind=kind, sentence=text, advice=None if advice is None else sentence(advice))
