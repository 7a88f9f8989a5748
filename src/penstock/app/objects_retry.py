"""Dead objects, announced anew: for objects whose dead letter is gone, or is not looked for.

Like a replay this only sends messages. Each carries the id of one replay of that death, so that however often it is
sent, the object lives again once: inside the claim of the worker that receives it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from types import MappingProxyType

from penstock.app.dead_letters import audited
from penstock.app.dead_places import check_destination, tiers_of
from penstock.app.inspect import View
from penstock.app.queues import messages_in
from penstock.app.scope import Scope
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.messaging.broker import names_dead_letters
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.replays import REPLAY_ID_ATTRIBUTE
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.announcement import announce
from penstock.objects.reference import ObjectRef, decode_key
from penstock.replay.operator import Pace, Stopped, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which dead objects a command line means: these, or all, or those whose address contains a text."""

    uris: Sequence[str] = ()
    uri_contains: str | None = None
    queue: str | None = None  # that announces them; None: the one that each pipeline is fed from
    limit: int | None = None

    @property
    def details(self) -> Mapping[str, object]:
        """For the audit."""
        given = {"objects": list(self.uris), "filter": self.uri_contains, "limit": self.limit}
        return {name: value for name, value in given.items() if value}


@dataclass(slots=True, kw_only=True)
class Plan:
    """What would be announced, and what of that which was asked for would not."""

    by_queue: Counter[str] = field(default_factory=Counter)  # objects
    replaced: int = 0  # left alone: a later version was processed
    not_dead: list[tuple[str, ObjectState]] = field(default_factory=list)  # those named that need nothing
    unknown: list[str] = field(default_factory=list)

    @property
    def objects(self) -> int:
        return self.by_queue.total()


@dataclass(slots=True, kw_only=True)
class Report:
    """What was announced."""

    sent: Counter[str] = field(default_factory=Counter)  # messages, one an object, by queue
    letters: Counter[str] = field(default_factory=Counter)  # which lie in these queues' tiers, some perhaps of these


def plan(seen: View, asked: Asked) -> Plan:
    """Look at all that are meant, and count. Raises `UsageError` for a queue that nobody knows, or that nothing can be
    sent to."""
    found = Plan()
    for queue, _ in _meant(seen, asked, found):
        found.by_queue[queue] += 1
    return found


def retry(
    seen: View,
    asked: Asked,
    *,
    rate: float | None,
    ledger: Ledger,
    stopped: Stopped,
    told: Told,
    clock: Clock | None = None,
    probe: Probe = no_probe,
) -> Report:
    """Announce them, each queue on record, at most so many a second. To be run again where it was stopped: what is
    announced twice lives again once. Raises as `plan` does."""
    report = Report()
    pace = Pace(rate, clock=clock or SystemClock(), stopped=stopped)
    for queue, together in groupby(_meant(seen, asked, Plan()), key=itemgetter(0)):
        if stopped():
            break
        report.letters.update({name: messages_in(seen.broker, name) for name in tiers_of(seen.broker, queue)})
        with audited(ledger, "retry", queue=queue, details=asked.details, stopped=stopped) as done:
            while not stopped() and (chunk := [outgoing for _, outgoing in islice(together, pace.chunk)]):
                seen.broker.send(queue, chunk)
                probe(Step.ANNOUNCED)
                done.messages += len(chunk)
                report.sent[queue] += len(chunk)
                told(len(chunk))
                pace.wait(len(chunk))
    return report


def announced_anew(pipeline: str, dead: ObjectRow) -> Outgoing:
    """The announcement that lets a dead object live again. Without a deduplication id: where the first one was purged,
    a second has to arrive."""
    ref = ObjectRef(
        bucket=dead.bucket,
        key=decode_key(dead.key),
        size_bytes=dead.size_bytes,
        version_id=dead.version_id,
        etag=dead.etag,
    )
    death = f"retry\0{pipeline}\0{dead.object_id.hex()}\0{dead.ended_at or 0.0:.6f}"
    replay_id = hashlib.sha256(death.encode()).hexdigest()[:32]
    return Outgoing(body=announce(ref), attributes=MappingProxyType({REPLAY_ID_ATTRIBUTE: replay_id}))


class _Queues:
    """Which queue each pipeline is fed from."""

    def __init__(self, seen: View, given: str | None) -> None:
        self._seen = seen
        self._given = given
        self._known: dict[str, str] = {}

    def of(self, pipeline: str) -> str:
        """Raises `UsageError` for one that nobody knows, or that nothing can be sent to."""
        if pipeline not in self._known:
            queue = self._given or self._found(self._seen.scope, pipeline)
            check_destination(self._seen, queue)
            self._known[pipeline] = queue
        return self._known[pipeline]

    def _found(self, scope: Scope, pipeline: str) -> str:
        if scope.table is None:
            if pipeline in scope.served:
                return scope.served[pipeline]
            raise UsageError(
                f"Which queue {pipeline} is fed from stands in the app's code: give --app, such as --app shop:app, or "
                "--queue."
            )
        names = [name for name in self._seen.broker.queue_names() if not names_dead_letters(name)]
        if len(names) == 1:
            return names[0]
        raise UsageError(
            f"The table is fed from several sources, each with a queue of its own ({', '.join(names)}): give --queue; "
            "`penstock dead list` tells where letters lie."
            if names
            else "Nothing was ever announced to this table, so there is no queue: run its `penstock ingest`."
        )


def _meant(seen: View, asked: Asked, found: Plan) -> Iterator[tuple[str, Outgoing]]:
    """Their announcements, each with its queue, those of one queue in a row; what is left out goes into the plan."""
    queues = _Queues(seen, asked.queue)
    if asked.uris:
        rows: Iterable[tuple[str, ObjectRow]] = sorted(_named(seen, asked.uris, found), key=lambda one: one[0])
    else:
        rows = _all(seen, asked.uri_contains, found)
    for pipeline, row in islice(rows, asked.limit):
        yield queues.of(pipeline), announced_anew(pipeline, row)


def _named(seen: View, uris: Sequence[str], found: Plan) -> Iterator[tuple[str, ObjectRow]]:
    """The dead versions of these, replaced ones too; what else there is to them goes into the plan."""
    meant = set(seen.pipelines())
    for uri in dict.fromkeys(uris):
        versions = [(pipeline, row) for pipeline, row in seen.ledger.find(uri) if pipeline in meant]
        dead = [(pipeline, row) for pipeline, row in versions if row.state is ObjectState.DEAD]
        yield from dead
        if not versions:
            found.unknown.append(uri)
        elif not dead:
            found.not_dead.append((uri, versions[-1][1].state))


def _all(seen: View, uri_contains: str | None, found: Plan) -> Iterator[tuple[str, ObjectRow]]:
    for pipeline in seen.pipelines():
        for one in seen.dead_objects(pipeline):
            if uri_contains is not None and uri_contains.lower() not in one.row.uri.lower():
                continue
            if one.replaced:
                found.replaced += 1
            else:
                yield pipeline, one.row
