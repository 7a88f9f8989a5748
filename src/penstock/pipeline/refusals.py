"""Find the objects of an attempt that it does not read, because of other versions, other objects or a reopening.

- `OnChange.REFUSE`: objects fail if another version of them is processed.
- `OnChange.REPLACE` and `TAIL`: replays of bad lines wait for another version of their object in the attempt, and
  objects that share their address with others fail.
- Reopened objects replace their earlier rows under any rule. Where the rule is another one, they have an attempt of
  their own, and the objects beside them wait.

The commit checks the versions again, since another one may be committed meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, FailedObject, ObjectClaims, OnChange
from penstock.messaging.handler import ServiceWatch
from penstock.objects.reference import ObjectRef, is_escaped
from penstock.objects.replays import is_replay
from penstock.pipeline.reporting import ClaimedWork

CHANGED = (
    "another version of this object was processed before, and changed objects are refused (on_change): retry it "
    "under on_change add; if rows are not merged by key, also under replace, or once these rows are out of the table "
    "(`penstock objects retract`)"
)
SHARED = (
    "an earlier version of Penstock gave another object the same address, and the rows of both cannot be told apart: "
    "take them out of the table (`penstock objects retract`), then give both objects other names"
)
WAITS = "its bad lines are read again once the other version of this object in the batch is processed"
ALONE = "it is read in the next batch, without objects that were processed before and are read again"
OVERTAKEN = "another version of this object was processed since it was to be read again, and its rows stay"
OTHER_ADDRESSES = (
    "its new rows do not have its address in _object, by which its earlier rows are found, so they cannot replace "
    "them: let the transform return this column as it is and retry it, or withdraw that (`penstock objects reprocess "
    "--withdraw`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRefusals:
    """The objects that the attempts of one batch do not read. Used by the run thread."""

    pipeline: str
    on_change: OnChange
    has_table: bool  # as in `AttemptSettings`
    ledger: Ledger
    ledger_watch: ServiceWatch
    check_removal: Callable[[], None] | None = None  # raises `TableError` if no row may leave the table

    def refused(self, work: ClaimedWork) -> Sequence[FailedObject]:
        """Return the objects that this attempt does not read, each with its reason. Raises as `check_removal` does."""
        if not self.on_change.replaces and self.replaces_readings(work.claim):
            if self.check_removal is not None:
                self.check_removal()
            refused = self._refused_beside_reopened(work)
            left = work.refs.keys() - {one.object_id for one in refused}
            return [*refused, *self._of_several_objects({id: work.refs[id] for id in left})]
        if self.on_change is OnChange.ADD:
            return ()
        if self.on_change.replaces:
            return [*_waiting_replays(work.refs), *self._of_several_objects(work.refs)]
        with self.ledger_watch.watch_request():
            changed = self.ledger.changed(self.pipeline, list(work.refs))
        return [
            FailedObject(object_id=object_id, failure=AttemptFailure.DEAD, reason=CHANGED)
            for object_id in work.refs
            if object_id in changed
        ]

    def replaces_readings(self, claim: ObjectClaims) -> bool:
        """Return True if earlier rows of a claimed object are in the table, and the new ones must replace them.

        The table has the column with their address: a reopening is refused without it.
        """
        return self.has_table and any(claimed.is_reopened for claimed in claim.claimed.values())

    def _refused_beside_reopened(self, work: ClaimedWork) -> Sequence[FailedObject]:
        """Return the reopened objects that another version has overtaken, and all objects that are not reopened."""
        reopened = {id for id, claimed in work.claim.claimed.items() if claimed.is_reopened}
        with self.ledger_watch.watch_request():
            overtaken = self.ledger.overtaken(self.pipeline, sorted(reopened))
        return [
            FailedObject(object_id=object_id, failure=AttemptFailure.SUPERSEDED, reason=OVERTAKEN)
            if object_id in reopened
            else _next_batch(object_id)
            for object_id in work.refs
            if object_id in overtaken or object_id not in reopened
        ]

    def _of_several_objects(self, refs: Mapping[bytes, ObjectRef]) -> Sequence[FailedObject]:
        """Return the objects that share an address with another one: see `penstock.objects.reference.uri_of`."""
        escaped = [object_id for object_id, ref in refs.items() if is_escaped(ref.uri)]
        if not escaped:
            return ()
        with self.ledger_watch.watch_request():
            shared = self.ledger.of_several_objects(self.pipeline, escaped)
        return [
            FailedObject(object_id=object_id, failure=AttemptFailure.DEAD, reason=SHARED)
            for object_id in escaped
            if object_id in shared and not is_replay(refs[object_id].version_id, refs[object_id].etag)
        ]


def failed_reopened(claim: ObjectClaims) -> Sequence[FailedObject]:
    """Return the failures of an attempt whose rows cannot replace the earlier ones, as is known once Spark has run.

    The reopened objects fail, and the others are run again.
    """
    return [
        FailedObject(object_id=object_id, failure=AttemptFailure.DEAD, reason=OTHER_ADDRESSES)
        if claimed.is_reopened
        else _next_batch(object_id)
        for object_id, claimed in claim.claimed.items()
    ]


def _next_batch(object_id: bytes) -> FailedObject:
    return FailedObject(object_id=object_id, failure=AttemptFailure.RETRY, reason=ALONE, uncounted=True)


def _waiting_replays(refs: Mapping[bytes, ObjectRef]) -> Sequence[FailedObject]:
    """Return the replays of bad lines beside another version of their object.

    That version may replace the rows that they would add to. The commit would refuse both, each time that they share an
    attempt.
    """
    replays = {id: ref for id, ref in refs.items() if is_replay(ref.version_id, ref.etag)}
    versions = {ref.uri for id, ref in refs.items() if id not in replays} if replays else set()
    return [
        FailedObject(object_id=object_id, failure=AttemptFailure.RETRY, reason=WAITS, uncounted=True)
        for object_id, ref in replays.items()
        if ref.uri in versions
    ]
