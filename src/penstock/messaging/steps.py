"""The protocol's steps, each a place where a process may die.

Rooms announce a step by calling the `Probe` they were given. Production gives `no_probe`; the kill tests give one that
ends the process at a named step; the simulation gives one that crashes, stalls or expires. A step that nobody kills at
does not exist: the tests run over every member of `Step`.
"""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """Where we are, in the order of a message's way. Each is reached *after* what its name says."""

    ANNOUNCED = "announced"  # notifications are in the queue
    RECEIVED = "received"  # deliveries are leased
    OBJECTS_REGISTERED = "objects_registered"  # objects never heard of have rows, and are claimed; committed
    ATTEMPT_OPENED = "attempt_opened"  # the attempt row and the CAS on its objects are committed
    PLANNED = "planned"  # the read plan is on disk
    WRITTEN = "written"  # Spark has written the files
    MANIFESTED = "manifested"  # files listed, reports read, nothing committed yet
    RECORDED = "recorded"  # the batch is written down beside its table
    COMMITTING = "committing"  # every statement of the ledger commit is sent, COMMIT is not
    COMMITTED = "committed"  # COMMIT returned
    PUBLISHING = "publishing"  # table handle loaded and checked, nothing written
    ROWS_PUBLISHED = "rows_published"  # the rows table shows the batch
    QUARANTINE_PUBLISHED = "quarantine_published"  # the quarantine table shows it too
    SETTLING = "settling"  # settlements decided, none applied
    SETTLED = "settled"  # the broker applied them
    ABANDONED = "abandoned"  # an attempt is marked abandoned, durably
    DELETING = "deleting"  # gc is about to delete the files of one abandoned attempt
    DELETED = "deleted"  # gc deleted them
    COMPACTED = "compacted"  # merged files are written, and no version of the table names them
    COMPACTION_COMMITTED = "compaction_committed"  # the table's log names them
    LEFTOVER_MARKED = "leftover_marked"  # gc has given up an old compaction; none of its files is deleted yet
    CLEANING = "cleaning"  # a published object of the source is about to be tagged, moved or deleted
    SET_ASIDE = "set_aside"  # such an object is in both places, or a file has left its name and is still there
    CLEANED = "cleaned"  # it is done; nothing says so in the ledger
    ARCHIVE_WRITTEN = "archive_written"  # a file of the archive is durable, and nothing in the ledger names it
    ARCHIVING = "archiving"  # every statement that makes it count is sent, COMMIT is not
    ARCHIVED = "archived"  # COMMIT returned
    REPLAY_INTENDED = "replay_intended"  # replays are on record, none is sent
    REPLAY_SENT = "replay_sent"  # they are in their queues, and nothing says so
    REPLAY_MARKED = "replay_marked"  # the record says so, and their letters are still there
    LETTERS_WRITTEN = "letters_written"  # an archive or an export of dead letters is written, and no file of its name
    LETTERS_KEPT = "letters_kept"  # the file is durable, and all of its letters are in their queues
    LETTERS_REMOVED = "letters_removed"  # some of them are deleted from there, and nothing says so
    REPAIRING = "repairing"  # every statement of a repair is sent, COMMIT is not
    REPAIRED = "repaired"  # COMMIT returned


Probe = Callable[[Step], None]


def no_probe(step: Step) -> None:
    """Production: nothing happens at a step."""
