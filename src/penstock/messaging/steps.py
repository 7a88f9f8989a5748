"""The steps of the protocol: the points at which a process may die.

Packages report a step by calling the `Probe` that they were given. Production uses `no_probe`; the kill tests use
one that ends the process at a named step; the simulation uses one that crashes, stalls or expires leases. The tests
run over every member of `Step`.
"""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """A point in the data flow, in order. Each is reached *after* the action in its name."""

    ANNOUNCED = "announced"  # notifications were sent to the queue
    RECEIVED = "received"  # deliveries are leased
    OBJECTS_REGISTERED = "objects_registered"  # unknown objects have rows and are claimed; committed
    ATTEMPT_OPENED = "attempt_opened"  # the attempt row and the CAS on its objects are committed
    PLANNED = "planned"  # the read plan is on disk
    WRITTEN = "written"  # Spark has written the files
    COLUMNS_FOUND = "columns_found"  # a run met new fields; the objects are about to be read again with their columns
    DELETES_WRITTEN = "deletes_written"  # the deletes of a run that is merged have a file of their own
    MANIFESTED = "manifested"  # files are listed and reports read; nothing is committed yet
    RECORDED = "recorded"  # the batch is recorded beside its table
    COMMITTING = "committing"  # all statements of the ledger commit are sent, COMMIT is not
    COMMITTED = "committed"  # COMMIT returned
    PUBLISHING = "publishing"  # the table handle is loaded and checked, nothing is written
    REWRITTEN = "rewritten"  # what is left of files with replaced rows is written, but no version of the table names it
    ROWS_PUBLISHED = "rows_published"  # the rows table contains the batch
    QUARANTINE_PUBLISHED = "quarantine_published"  # the quarantine table contains it too
    NO_BAD_LINES_RECORDED = "no_bad_lines_recorded"  # the ledger records up to which batch there are no bad lines
    CHECKPOINTING = "checkpointing"  # a commit calls for a checkpoint or a version hint, which is not written yet
    CHECKPOINTED = "checkpointed"  # it is durable; commits and metadata past the log's retention still exist
    REPUBLISHING = "republishing"  # files of overwritten commits are found, nothing is written
    REPUBLISHED = "republished"  # the table contains them again, which the ledger does not remember yet
    SETTLING = "settling"  # settlements are decided, none is applied
    SETTLED = "settled"  # the broker applied them
    ABANDONED = "abandoned"  # an attempt is marked abandoned, durably
    DELETING = "deleting"  # garbage collection is about to delete the files of one abandoned attempt
    DELETED = "deleted"  # garbage collection has deleted them
    COMPACTED = "compacted"  # merged files are written, but no version of the table names them
    COMPACTION_COMMITTED = "compaction_committed"  # the table's log names them
    DELETES_FOLDED = "deletes_folded"  # deletes of several batches are in one more file, which nothing names yet
    LEFTOVER_MARKED = "leftover_marked"  # garbage collection gave up an old compaction; its files still exist
    CLEANING = "cleaning"  # a published object of the source is about to be tagged, moved or deleted
    SET_ASIDE = "set_aside"  # such an object exists in both places, or its file was renamed and still exists
    CLEANED = "cleaned"  # the cleanup is done but not recorded in the ledger
    ARCHIVE_WRITTEN = "archive_written"  # a file of the archive is durable, but the ledger does not name it
    ARCHIVING = "archiving"  # all statements that make it valid are sent, COMMIT is not
    ARCHIVED = "archived"  # COMMIT returned
    REPLAY_INTENDED = "replay_intended"  # replays are recorded, none is sent
    REPLAY_SENT = "replay_sent"  # they are in their queues, which is not recorded yet
    REPLAY_MARKED = "replay_marked"  # that is recorded, and their dead letters still exist
    DEAD_LETTERS_WRITTEN = "dead_letters_written"  # an archive or export is written, but not under its final name
    DEAD_LETTERS_KEPT = "dead_letters_kept"  # the file is durable; all of its dead letters are still in their queues
    DEAD_LETTERS_REMOVED = "dead_letters_removed"  # some are deleted from their queues; that is not recorded yet
    REOPENED = "reopened"  # processed objects are to be read again, which no message says yet
    REPAIRING = "repairing"  # all statements of a repair are sent, COMMIT is not
    REPAIRED = "repaired"  # COMMIT returned


Probe = Callable[[Step], None]


def no_probe(step: Step) -> None:
    """Do nothing. Used in production."""
