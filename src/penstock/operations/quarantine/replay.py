"""Replay quarantined lines by sending notifications for their replays, and dismiss lines.

Like a retry of objects, a replay only sends messages: the pipeline that receives them reads the lines again, once for
each attempt, however often they are sent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath

from penstock.dead_letters.operator import Stopped
from penstock.errors import ObjectGone, ObjectSuperseded, PenstockError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState, QuarantineState
from penstock.messaging.broker import SEND_CHUNK
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.replays import replay_of
from penstock.objects.stores import ahead, store_at
from penstock.operations.dead_letters.selection import audited
from penstock.operations.inspection import ScopeView
from penstock.operations.objects.retry import announced_anew, queues_of
from penstock.operations.quarantine.selection import REPLAY_ENDED, Quarantined, QuarantineSelection, select
from penstock.pipeline.quarantined import replay_sources
from penstock.storage.address import S3
from penstock.storage.aws import Aws

DISMISS_CHUNK = 1_000


@dataclass(slots=True, kw_only=True)
class QuarantinePlan:
    """The objects that a command would act on, and those it leaves alone."""

    objects: list[Quarantined] = field(default_factory=list)
    queues: Mapping[str, str] = field(default_factory=dict)  # queue by pipeline
    replayed: int = 0  # left alone: their lines were replayed before
    running: int = 0  # left alone: their replay was begun
    dismissed: int = 0  # left alone: they were dismissed before
    missing: list[tuple[str, str]] = field(default_factory=list)  # left alone: address, and why it cannot be read
    unknown: list[str] = field(default_factory=list)  # named objects without bad lines

    @property
    def lines(self) -> int:
        """The number of bad lines of the objects."""
        return sum(one.row.bad.lines_quarantined for one in self.objects)

    @property
    def by_queue(self) -> Mapping[str, int]:
        """The number of objects by queue."""
        return Counter(self.queues[one.row.pipeline] for one in self.objects)


def plan_replay(seen: ScopeView, selection: QuarantineSelection, *, queue: str | None) -> QuarantinePlan:
    """Find the selected objects whose lines can be replayed.

    Raises `UsageError` if a pipeline's queue is unknown, or for an invalid destination.
    """
    planned = QuarantinePlan(queues=queues_of(seen, queue))
    open_ones: list[Quarantined] = []
    for one in _selected(seen, selection, planned):
        if one.row.state is QuarantineState.REPLAYED:
            planned.replayed += 1
        elif one.replay is ObjectState.PROCESSING:
            planned.running += 1
        elif one.row.pipeline in planned.queues:
            open_ones.append(one)
    sources = _sources(seen, open_ones)
    gone = _gone(list(sources.values()), seen.scope.aws)
    for one in open_ones:
        reason = gone.get(sources[one.row.bad.replay_id].object_id)
        if reason is None:
            planned.objects.append(one)
        else:
            planned.missing.append((one.row.bad.uri, reason))
    return planned


def plan_dismissal(seen: ScopeView, selection: QuarantineSelection) -> QuarantinePlan:
    """Find the selected objects whose lines are open."""
    planned = QuarantinePlan()
    for one in _selected(seen, selection, planned):
        if one.row.state is QuarantineState.OPEN:
            planned.objects.append(one)
        else:
            planned.replayed += one.row.state is QuarantineState.REPLAYED
            planned.dismissed += one.row.state is QuarantineState.DISMISSED
    return planned


def replay(
    seen: ScopeView,
    selection: QuarantineSelection,
    planned: QuarantinePlan,
    *,
    ledger: Ledger,
    stopped: Stopped,
    probe: Probe = no_probe,
) -> Counter[str]:
    """Send a notification for each planned replay, with an audit entry per pipeline; return the number by queue."""
    sent: Counter[str] = Counter()
    for pipeline, found in _by_pipeline(planned).items():
        queue = planned.queues[pipeline]
        with audited(ledger, "replay lines", queue=queue, details=selection.details(pipeline), stopped=stopped) as done:
            rest = iter(found)
            while not stopped() and (chunk := list(islice(rest, SEND_CHUNK))):
                seen.broker.send(queue, [_announced(one) for one in chunk])
                probe(Step.ANNOUNCED)
                done.messages += len(chunk)
                sent[queue] += len(chunk)
    return sent


def dismiss(
    selection: QuarantineSelection, planned: QuarantinePlan, *, ledger: Ledger, stopped: Stopped
) -> tuple[int, int]:
    """Close the planned objects, with an audit entry per pipeline; return the number of objects and lines."""
    objects = lines = 0
    for pipeline, found in _by_pipeline(planned).items():
        with audited(ledger, "dismiss lines", queue="", details=selection.details(pipeline), stopped=stopped) as done:
            rest = iter(found)
            while not stopped() and (chunk := list(islice(rest, DISMISS_CHUNK))):
                dismissed = ledger.quarantines.dismiss(pipeline, [one.row.bad.object_id for one in chunk])
                done.messages += dismissed
                objects += dismissed
                lines += sum(one.row.bad.lines_quarantined for one in chunk)
    return objects, lines


def _selected(seen: ScopeView, selection: QuarantineSelection, planned: QuarantinePlan) -> Iterator[Quarantined]:
    """Yield the selected objects; note named ones without bad lines in the plan."""
    met: set[str] = set()
    for one in select(seen, selection):
        met.add(one.row.bad.uri)
        yield one
    planned.unknown += [uri for uri in dict.fromkeys(selection.uris) if uri not in met]


def _by_pipeline(planned: QuarantinePlan) -> Mapping[str, Sequence[Quarantined]]:
    found: defaultdict[str, list[Quarantined]] = defaultdict(list)
    for one in planned.objects:
        found[one.row.pipeline].append(one)
    return found


def _announced(one: Quarantined) -> Outgoing:
    """Return the notification of a replay. One that ended without reading the lines is opened again."""
    if one.replay in REPLAY_ENDED and one.replay_row is not None:
        return announced_anew(one.row.pipeline, one.replay_row)
    return Outgoing(body=announce(replay_of(one.ref, one.row.attempt_id)))


def _sources(seen: ScopeView, found: Sequence[Quarantined]) -> Mapping[bytes, ObjectRef]:
    """Return the versions from which the lines would be read, by the id of the replay."""
    by_pipeline: defaultdict[str, list[ObjectRef]] = defaultdict(list)
    for one in found:
        by_pipeline[one.row.pipeline].append(replay_of(one.ref, one.row.attempt_id))
    sources: dict[bytes, ObjectRef] = {}
    for pipeline, replays in by_pipeline.items():
        sources |= replay_sources(seen.ledger, pipeline, replays)
    return sources


def _gone(refs: Sequence[ObjectRef], aws: Aws) -> Mapping[bytes, str]:
    """Return why versions can no longer be read, by the object id of the version; in doubt a version is left out."""
    found: dict[bytes, str] = {}
    by_store: defaultdict[str, list[ObjectRef]] = defaultdict(list)
    for ref in refs:
        by_store[_store_address(ref)].append(ref)
    for address, versions in by_store.items():
        with ahead(store_at(address, aws, remembers=False), versions) as store:
            for ref in versions:
                try:
                    store.open(ref).close()
                except (ObjectGone, ObjectSuperseded) as error:
                    found[ref.object_id] = str(error)
                except PenstockError:  # this host may lack access; the pipeline decides
                    continue
    return found


def _store_address(ref: ObjectRef) -> str:
    return str(PurePosixPath(ref.key).parent) if ref.bucket == LOCAL_BUCKET else f"{S3}{ref.bucket}/"
