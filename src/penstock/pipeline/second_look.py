"""Read again on the driver what executors on other hosts of a cluster could not read.

A missing mount, missing permissions or a broken network of one host are no fault of the objects. The driver repeats the
read that failed there; if it succeeds, the attempt does not count.
"""

from collections.abc import Mapping
from dataclasses import replace
from socket import gethostname

from penstock.errors import ObjectError, TemporaryError
from penstock.objects.ahead import ahead
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.objects.stores import store_at
from penstock.pipeline.source.api import REFUSALS, FailureKind, ObjectFailure, ReadPlan, Summary
from penstock.storage.address import is_s3

_MISSING = frozenset({FailureKind.GONE, FailureKind.SUPERSEDED})


def look_again(summary: Summary, plan: ReadPlan) -> Summary:
    """Return the summary with `FailureKind.HOST` for each failed read that succeeds on this host.

    Raises `TemporaryError` if an executor reports a file as deleted or replaced that this host finds unchanged: that
    host does not see the source as it is, so its report must not end the object.
    """
    doubted = REFUSALS if is_s3(plan.source) else REFUSALS | _MISSING  # deleted from S3: so for all hosts
    refs = {
        index: plan.objects[index]
        for index, failure in {**summary.failures, **summary.exclude}.items()
        if failure.kind in doubted
    }
    if not refs:
        return summary
    with ahead(store_at(plan.source, plan.aws, remembers=False), list(refs.values())) as store:

        def judged(failures: Mapping[int, ObjectFailure]) -> dict[int, ObjectFailure]:
            return {
                index: _judged(store, refs[index], failure, plan.source) if index in refs else failure
                for index, failure in failures.items()
            }

        return replace(summary, failures=judged(summary.failures), exclude=judged(summary.exclude))


def _judged(store: ObjectStore, ref: ObjectRef, failure: ObjectFailure, source: str) -> ObjectFailure:
    try:
        with store.open(ref) as reader:
            reader.pread(failure.offset, failure.length_bytes)
    except ObjectError:
        return failure
    if failure.kind in _MISSING:
        raise TemporaryError(
            f"The host {failure.host} does not see a file of the source as it is ({failure.reason}), and the driver "
            f"does: all hosts of the Spark cluster must share the folder {source}."
        )
    return replace(
        failure,
        kind=FailureKind.HOST,
        reason=f"{failure.reason}, on the host {failure.host}; this host ({gethostname()}) can read it: look at mounts "
        f"and rights on {failure.host}",
    )
