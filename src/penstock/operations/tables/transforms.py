"""Change the name of the transform that a ledger remembers for a pipeline."""

from contextlib import closing
from dataclasses import dataclass

from penstock.app.backends import ledger_exists
from penstock.app.scope import Scope, scope_ledger
from penstock.errors import UsageError
from penstock.operations.dead_letters.selection import audited
from penstock.operations.inspection import view

SET = "schema transform"  # the action's name in the audit log


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTransform:
    """The name before and after a change. Empty: none; ``before`` None: unknown."""

    pipeline: str
    before: str | None
    after: str


def change_transform(scope: Scope, name: str) -> ChangedTransform:
    """Record that the next batches of a pipeline are made by this transform; empty: by none. Rows stay as they are.

    Raises `UsageError` if the pipeline is not unique or has no ledger yet, or if another process changed the name
    meanwhile.
    """
    with view(scope) as seen:
        pipelines = seen.pipelines()
    if len(pipelines) > 1:
        raise UsageError(f"Which pipeline? Give --pipeline; there are {', '.join(pipelines)}.")
    if not pipelines or not ledger_exists(scope.settings):
        raise UsageError(f"There is no pipeline in the ledger {scope.name}: its first batch records its transform.")
    with closing(scope_ledger(scope)) as ledger:
        row = ledger.ensure_pipeline(pipelines[0])
        if row.transform != name:
            details = {"pipeline": row.id, "before": row.transform, "after": name}
            with audited(ledger, SET, queue="", details=details, stopped=lambda: False):
                if not ledger.replace_transform(row, name):
                    raise UsageError(
                        f"The transform of {row.id} was changed by another process meanwhile; look at it (penstock "
                        "admin schema show) and try again."
                    )
    return ChangedTransform(pipeline=row.id, before=row.transform, after=name)
