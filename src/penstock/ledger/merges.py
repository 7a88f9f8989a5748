"""Remember how the rows of a pipeline are merged by key, and refuse batches that are merged differently.

The declaration is recorded by the first batch and never changes: rows that a later one replaced are gone, so no other
declaration can be applied to them.
"""

import json
import shlex

from sqlalchemy import Connection, bindparam, select

from penstock.errors import UsageError
from penstock.ledger.records import BatchOutcome, PipelineRow
from penstock.ledger.rows import AnyRow
from penstock.ledger.schema import batches, pipelines

DELETES_BEFORE = (
    select(batches.c.attempt_id, batches.c.tombstones)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq < bindparam("before_seq"),
        batches.c.tombstones.is_not(None),
    )
    .order_by(batches.c.seq)
)
FIRST_MERGED = (
    select(batches.c.seq)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq <= bindparam("to_seq"),
        batches.c.merge.is_not(None),
    )
    .limit(1)
)
_MERGE = select(pipelines.c.merge, pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_REMEMBER = pipelines.update().values(merge=bindparam("own_merge")).where(pipelines.c.id == bindparam("in_pipeline"))


def check_not_merged(row: PipelineRow, action: str) -> None:
    """Raise `UsageError` if the pipeline merges rows by key. ``action``: the subject, as "Retracting objects"."""
    if row.merge is not None:
        raise UsageError(
            f"{action} is not possible for {row.id}, whose rows are merged by key: the earlier rows that theirs "
            "replaced are gone. Send later rows, or deletes, or load all objects into a new table."
        )


def check_merge(row: PipelineRow, merge: str | None, *, table: str, has: str) -> None:
    """Raise `UsageError` if the rows of a pipeline are merged in another way than ``merge``.

    ``has`` is the subject and verb of the run, such as "this ingest has".
    """
    if row.merge == merge or (row.merge is None and row.next_seq == 1):
        return
    if row.merge is None:
        raise UsageError(
            f"The rows of {table} were added as they are, and {has} a merge: load into a new table, or leave it out."
        )
    given = f"the merge {described(merge)}" if merge is not None else "no merge"
    raise UsageError(
        f"The rows of {table} are merged by key as in {described(row.merge)}, and {has} {given}: give the same one, or "
        "load into a new table."
    )


def remember_merge(connection: Connection, outcome: BatchOutcome) -> None:
    """Record the merge of the first batch, and refuse a batch of another one. The pipeline's row is locked."""
    binds = {"in_pipeline": outcome.pipeline}
    row: AnyRow = connection.execute(_MERGE, binds).one()
    own = outcome.record.merge
    if row.merge is None and row.next_seq == 1 and own is not None:
        connection.execute(_REMEMBER, {**binds, "own_merge": own})
    elif row.merge != own:
        raise UsageError(
            f"The rows of {outcome.pipeline} are {merged_by(row.merge)}, as another process recorded meanwhile, and "
            f"those of this one are {merged_by(own)}: run it again, and it says what to do."
        )


def merged_by(merge: str | None) -> str:
    """Return how rows are merged, as the end of a sentence."""
    return "added as they are" if merge is None else f"merged by key as in {described(merge)}"


def described(merge: str) -> str:
    """Return a merge as the options of `penstock ingest`, ready to paste."""
    stored = json.loads(merge)
    options = {
        "--merge-key": ",".join(stored.get("key", ())),
        "--order-by": ",".join(stored.get("order_by", ())),
        "--delete-when": stored.get("delete_when") or "",
        "--merge-drop": ",".join(stored.get("drop", ())),
    }
    return " ".join(f"{option} {_quoted(text)}" for option, text in options.items() if text)


def _quoted(text: str) -> str:
    """Return a text as one word of a shell, in double quotes if it has single ones and nothing that these expand."""
    if "'" in text and not set(text) & set('"$`\\!'):
        return f'"{text}"'
    return shlex.quote(text)
