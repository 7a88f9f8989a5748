"""Retry failed, deleted, superseded and retracted objects by sending new notifications.

For objects without a dead letter to replay, and for objects recorded as deleted or replaced that do exist. Like a
replay, a retry only sends messages. Each carries a replay id for the object's end, which reopens the object once,
inside the claim of the worker that receives it, however often the message is sent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from ulid import ULID

from penstock.app.queues import messages_in
from penstock.dead_letters.operator import ProgressCallback, ReplayRate, Stopped
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import UNREAD, ObjectRow, ObjectState
from penstock.ledger.rules import retry_id
from penstock.messaging.broker import names_dead_letters
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.replay import REPLAY_ID_ATTRIBUTE
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef, decode_key
from penstock.objects.replays import is_replay
from penstock.operations.dead_letters.selection import audited, check_destination, dlqs_of
from penstock.operations.inspection import PAGE, ScopeView

RETRIED = frozenset({ObjectState.DEAD, ObjectState.RETRACTED}) | UNREAD
"""The ends that `penstock objects retry` opens again: all but processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySelection:
    """The selected objects: named ones, all in one state, or those whose address contains a text."""

    uris: Sequence[str] = ()
    state: ObjectState = ObjectState.DEAD  # used if none are named
    uri_contains: str | None = None
    queue: str | None = None  # for the notifications; None: each pipeline's own
    limit: int | None = None
    rate: float | None = None  # objects per second

    def details(self, pipeline: str) -> Mapping[str, object]:
        """Return the options for the audit log."""
        selection: Mapping[str, object] = {
            "pipeline": pipeline,
            "objects": list(self.uris),
            "state": None if self.uris or self.state is ObjectState.DEAD else self.state.value,
            "filter": self.uri_contains,
            "limit": self.limit,
            "rate": self.rate,
        }
        return {name: value for name, value in selection.items() if value}


@dataclass(slots=True, kw_only=True)
class RetryPlan:
    """The objects that a retry would enqueue, and those it would skip."""

    queues: Mapping[str, str] = field(default_factory=dict)  # queue by pipeline, of those selected
    objects: Counter[str] = field(default_factory=Counter)  # to be enqueued, by pipeline
    # By DLQ of these queues; some may be of these objects.
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    replaced: int = 0  # skipped: a later version was processed
    others: Sequence[str] = ()  # pipelines of the ledger that the app lacks
    not_dead: list[tuple[str, ObjectState]] = field(default_factory=list)  # named objects that need no retry
    unknown: list[str] = field(default_factory=list)

    @property
    def by_queue(self) -> Mapping[str, int]:
        """The number of objects by queue."""
        return {queue: self.objects[pipeline] for pipeline, queue in self.queues.items() if self.objects[pipeline]}


def plan(
    seen: ScopeView,
    selection: RetrySelection,
    *,
    stopped: Stopped = lambda: False,
    on_progress: ProgressCallback = lambda _: None,
) -> RetryPlan:
    """Inspect and count the selected objects, until ``stopped`` returns True.

    Raises `UsageError` if a pipeline's queue is unknown, or for an invalid destination.
    """
    queues = queues_of(seen, selection.queue)
    found = RetryPlan(queues=queues, others=sorted(set(seen.pipelines()) - queues.keys()))
    for uri in dict.fromkeys(selection.uris):
        _judge(seen, uri, found)
    for pipeline in queues:
        left = None if selection.limit is None else selection.limit - found.objects.total()
        for _ in islice(_dead(seen, pipeline, selection, found=found), left):
            if stopped():
                return found
            found.objects[pipeline] += 1
            on_progress(1)
    dlqs = [name for queue in found.by_queue for name in dlqs_of(seen.broker, queue)]
    found.dead_letters = {name: count for name in dlqs if (count := messages_in(seen.broker, name))}
    return found


def retry(
    seen: ScopeView,
    selection: RetrySelection,
    planned: RetryPlan,
    *,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
    clock: Clock | None = None,
    probe: Probe = no_probe,
    who: str | None = None,
) -> Counter[str]:
    """Enqueue the planned number of objects, with an audit entry per pipeline; return the number sent by queue.

    An interrupted retry can be repeated. Objects are looked up chunk by chunk, just before each chunk is sent: one that
    was reopened meanwhile is skipped. ``who`` acts, for the audit; None: the user of this process.
    """
    sent: Counter[str] = Counter()
    pace = ReplayRate(selection.rate, clock=clock or SystemClock(), stopped=stopped)
    for pipeline, queue in planned.queues.items():
        rows = islice(_dead(seen, pipeline, selection, page=pace.chunk), planned.objects[pipeline])
        if stopped() or not (chunk := list(islice(rows, pace.chunk))):
            continue
        details = selection.details(pipeline)
        with audited(ledger, "retry", queue=queue, details=details, stopped=stopped, who=who) as done:
            while chunk:
                seen.broker.send(queue, [announced_anew(pipeline, row) for row in chunk])
                probe(Step.ANNOUNCED)
                done.messages += len(chunk)
                sent[queue] += len(chunk)
                on_progress(len(chunk))
                if sent.total() == planned.objects.total():
                    break
                pace.wait(len(chunk))
                chunk = [] if stopped() else list(islice(rows, pace.chunk))
    return sent


def announced_anew(pipeline: str, dead: ObjectRow) -> Outgoing:
    """Return the notification that reopens an ended object.

    Its deduplication id is new, whatever was sent before: an earlier message may have been purged.
    """
    ref = ObjectRef(
        bucket=dead.bucket,
        key=decode_key(dead.key),
        size_bytes=dead.size_bytes,
        version_id=dead.version_id,
        etag=dead.etag,
    )
    replay_id = retry_id(pipeline, dead.object_id, dead.ended_at)
    attributes = MappingProxyType({REPLAY_ID_ATTRIBUTE: replay_id})
    return Outgoing(body=announce(ref), attributes=attributes, deduplication_id=str(ULID()))


def _dead(
    seen: ScopeView, pipeline: str, selection: RetrySelection, *, found: RetryPlan | None = None, page: int = PAGE
) -> Iterator[ObjectRow]:
    """Yield the selected objects. Replaced ones are included only if named; otherwise the plan counts them."""
    if selection.uris:
        for uri in dict.fromkeys(selection.uris):
            for whose, row in seen.ledger.find(uri):
                if whose == pipeline and _may_be_retried(row):
                    yield row
        return
    for one in seen.failed_objects(pipeline, state=selection.state, uri_contains=selection.uri_contains, page=page):
        if not _may_be_retried(one.row):
            continue
        if not one.replaced:
            yield one.row
        elif found is not None:
            found.replaced += 1


def _judge(seen: ScopeView, uri: str, found: RetryPlan) -> None:
    """Record why a named object needs no retry, unless one of its versions does."""
    rows = [row for pipeline, row in seen.ledger.find(uri) if pipeline in found.queues]
    if any(map(_may_be_retried, rows)):
        return
    states = [row.state for row in rows]
    if states:
        found.not_dead.append((uri, states[-1]))
    elif _is_archived(seen, uri, found):
        found.not_dead.append((uri, ObjectState.PROCESSED))
    else:
        found.unknown.append(uri)


def _may_be_retried(row: ObjectRow) -> bool:
    """Return True unless the object needs no retry. A retracted replay needs none: its source is read whole again."""
    is_covered = row.state is ObjectState.RETRACTED and is_replay(row.version_id, row.etag)
    return row.state in RETRIED and not is_covered


def _is_archived(seen: ScopeView, uri: str, found: RetryPlan) -> bool:
    return any(archived.archive.pipeline in found.queues for archived in seen.ledger.archives.find(uri))


def queues_of(seen: ScopeView, given: str | None) -> Mapping[str, str]:
    """Return the queue of each selected pipeline of the app. Raises `UsageError` if it is unknown."""
    scope, meant = seen.scope, seen.pipelines()
    if scope.served:
        if given is not None:
            raise UsageError(
                "With --app, each pipeline's queue is known from the app's code: leave out --queue, or --app."
            )
        if scope.pipeline is not None and scope.pipeline not in scope.served:
            raise UsageError(f"The app has no pipeline {scope.pipeline}; it has: {', '.join(sorted(scope.served))}.")
        return {pipeline: scope.served[pipeline] for pipeline in meant if pipeline in scope.served}
    if scope.table is not None:
        given = given or _queue_of_table(seen)
    if given is None:
        raise UsageError(
            "The queue of a pipeline is known only from the app's code: give --app, such as --app shop:app; or "
            "--pipeline and --queue."
        )
    if len(meant) > 1:
        raise UsageError(f"A queue belongs to one pipeline; select it with --pipeline: {', '.join(meant)}.")
    check_destination(seen, given, option="--queue")
    return dict.fromkeys(meant, given)


def _queue_of_table(seen: ScopeView) -> str:
    names = [name for name in seen.broker.queue_names() if not names_dead_letters(name)]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"The table has several sources, each with its own queue ({', '.join(names)}): give --queue.")
    raise UsageError(
        "There is no queue in the table's state: run its `penstock ingest`. One that is fed from a queue elsewhere "
        "(`ingest --queue`) is named as a pipeline: --pipeline with the table's address, --queue, and the settings "
        "broker and ledger."
    )
