"""Retract objects: take their rows out of the table, and never read them again unless they are retried.

The record of the batch is written beside the table first, as for every batch. Then one transaction of the ledger
commits the batch and ends the objects. After that the rows leave the table with the next publish, of this process or
of any other, so a retraction that was interrupted needs no second one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ulid import ULID

from penstock.app.naming import worker_id
from penstock.errors import TableError, TemporaryError, UsageError
from penstock.ledger.merges import check_not_merged
from penstock.ledger.records import ObjectState
from penstock.ledger.retractions import Retraction
from penstock.ledger.returns import ReturningObject
from penstock.messaging.steps import Step
from penstock.operations.archived_objects import find_archived
from penstock.operations.dead_letters.selection import audited, current_user
from penstock.operations.tables.upkeep import MaintainedPipeline
from penstock.pipeline.batch_record import RecordedBatch, forget, save
from penstock.pipeline.replacing import OBJECT, RowsOfObject, count_rows, has_addresses
from penstock.sinks.sink import RemovalCheck
from penstock.storage.aws import Aws


@dataclass(slots=True, kw_only=True)
class RetractPlan:
    """The objects that a retraction would end, and those that it would leave alone."""

    pipeline: MaintainedPipeline
    versions: dict[str, int] = field(default_factory=dict)  # processed ones, by address
    archived: list[ReturningObject] = field(default_factory=list)
    rows: Mapping[str, RowsOfObject] = field(default_factory=dict)  # in the table, by address
    left_alone: list[tuple[str, str]] = field(default_factory=list)  # addresses and states of those not processed
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractResult:
    """A committed retraction. ``unpublished``: why its rows are still in the table; None if they left it."""

    seq: int
    versions: int
    unpublished: str | None = None


def plan(pipelines: Mapping[str, MaintainedPipeline], uris: Sequence[str], aws: Aws) -> RetractPlan:
    """Inspect the objects, and count their rows in the table.

    Raises:
        UsageError: Several pipelines know the objects, or the table cannot tell the rows of an object.
        TableError: A setting of the table forbids to take rows out.
        TemporaryError: An object is being processed.
    """
    named = list(dict.fromkeys(uris))
    plans = [_plan_in(pipeline, named, aws) for pipeline in pipelines.values()]
    knowing = [one for one in plans if len(one.unknown) < len(named)]
    if len(knowing) > 1:
        names = ", ".join(sorted(one.pipeline.pipeline for one in knowing))
        raise UsageError(f"Several pipelines know these objects ({names}): select one with --pipeline.")
    found = (knowing or plans)[0]
    if found.versions:
        found.rows = _rows_in_table(found)
    return found


def retract(planned: RetractPlan, *, reason: str | None) -> RetractResult:
    """Commit the retraction, with an audit entry, then publish.

    Raises `TemporaryError` if an object is being processed by now; nothing is changed then.
    """
    pipeline, uris = planned.pipeline, sorted(planned.versions)
    why = f"retracted by {current_user()}" + (f": {reason}" if reason else "")
    details = {"pipeline": pipeline.pipeline, "objects": uris, **({"reason": reason} if reason else {})}
    with audited(pipeline.ledger, "retract", queue="", details=details, stopped=lambda: False) as done:
        retraction = Retraction(
            pipeline=pipeline.pipeline,
            attempt_id=str(ULID()),
            worker=worker_id(),
            addresses=uris,
            reason=why,
            archived=planned.archived,
        )
        committed = _committed(pipeline, retraction)
        done.messages = committed.versions
    try:
        pipeline.publish()
    except TemporaryError as error:
        return RetractResult(seq=committed.seq, versions=committed.versions, unpublished=str(error))
    return committed


def _plan_in(pipeline: MaintainedPipeline, uris: Sequence[str], aws: Aws) -> RetractPlan:
    found, ledger = RetractPlan(pipeline=pipeline), pipeline.ledger
    ledger.abandon_expired(pipeline.pipeline)
    busy: list[str] = []
    for uri in uris:
        states = [row.state for whose, row in ledger.find(uri) if whose == pipeline.pipeline]
        archived = [one for one in find_archived(ledger, uri, aws) if one.pipeline == pipeline.pipeline]
        for one in archived:
            if one.retired is not None:
                found.archived.append(ReturningObject(archive_id=one.archive.id, retired=one.retired))
            elif not one.imported:
                raise UsageError(f"{uri} is archived, and cannot be retracted without its record: {one.problem}.")
        versions = states.count(ObjectState.PROCESSED) + sum(one.retired is not None for one in archived)
        if ObjectState.PROCESSING in states:
            busy.append(uri)
        elif versions:
            found.versions[uri] = versions
        elif states:
            found.left_alone.append((uri, states[-1].value))
        elif archived:
            found.left_alone.append((uri, "imported as processed"))
        else:
            found.unknown.append(uri)
    _refuse(busy)
    if found.versions:
        check_not_merged(ledger.ensure_pipeline(pipeline.pipeline), "Retracting objects")
    return found


def _rows_in_table(planned: RetractPlan) -> Mapping[str, RowsOfObject]:
    sink, _ = planned.pipeline.sinks
    table = None if sink.history is None else sink.history.load()
    if table is None:
        return {}
    if not has_addresses(table.schema):
        raise UsageError(
            f"The table {sink.uri} has no column {OBJECT} with the addresses of objects, so it does not say which rows "
            f"are of which object. Delete them by a column of your own (DELETE FROM, with Spark or another engine). "
            f"For objects read from now on, keep {OBJECT} in the pipeline's columns: a transform must not drop it, nor "
            f"change it."
        )
    if isinstance(table, RemovalCheck):
        table.check_removal()
    return count_rows(sink, table, planned.versions)


def _committed(pipeline: MaintainedPipeline, retraction: Retraction) -> RetractResult:
    """Write the record, then commit. A record left by a failure belongs to no batch; a repair gives it up."""
    table, ledger = pipeline.paths.table, pipeline.ledger
    columns = ledger.ensure_pipeline(pipeline.pipeline).table_schema or json.dumps({"type": "struct", "fields": []})
    recorded = RecordedBatch(
        pipeline=pipeline.pipeline,
        attempt_id=retraction.attempt_id,
        objects=(),
        columns=columns,
        record=retraction.record,
    )
    try:
        save(table, recorded)
    except OSError as error:
        raise TableError(f"The record of the retraction cannot be written into {table}: {error}") from error
    pipeline.probe(Step.RECORDED)
    done = ledger.retractions.retract(retraction)
    if done.seq is None:
        forget(table, [retraction.attempt_id])
        _refuse(done.busy)
        raise AssertionError("a retraction without a batch names busy objects")
    return RetractResult(seq=done.seq, versions=done.versions)


def _refuse(busy: Sequence[str]) -> None:
    if busy:
        them = f"{busy[0]} is" if len(busy) == 1 else f"{busy[0]} and {len(busy) - 1:,} more objects are"
        raise TemporaryError(f"{them} being processed: retract again once that has ended. Nothing was changed.")
