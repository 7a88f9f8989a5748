"""The exceptions that Penstock raises on purpose.

::

    PenstockError
    ├── UserError                a person's mistake; the CLI prints it as one sentence and exits with .exit_code
    │   ├── UsageError           2   wrong arguments: unknown format, missing folder, invalid schema text
    │   ├── ConfigurationError   78  a setting, extra, Java or data directory that this process cannot use
    │   │   ├── SettingUnfit     78  invalid value of a setting in the environment, a secret or penstock.toml
    │   │   └── QueueMissing     78  no queue of that name exists, and its broker creates none
    │   ├── TableError           1   a table that we cannot write: other schema, unsupported features
    │   │   ├── TableNowhere     2   its location does not exist: no such bucket
    │   │   ├── TableDenied      78  missing credentials or permissions for its location
    │   │   └── TableFolderTaken 1   its folder is no table and holds other files
    │   ├── TransformError       1   the user's transform raised, or did not return a DataFrame
    │   └── FaultPersists        75  an infrastructure fault outlasted all retries (disk full): needs a person
    │       └── RestartNeeded    75  a part of this process ended for good (Spark's JVM): start a new process
    ├── TemporaryError           75  a fault that a retry may not meet: broker or database unavailable
    │   ├── PartAway             75  one part of a store is unavailable; the rest may be available
    │   └── UnknownOutcome       75  the connection broke during a request: it may have been executed
    ├── Reject                   raised by a handler: dead-letter the message with this reason
    ├── Retry                    raised by a handler: make another attempt, optionally after a given delay
    ├── InvalidMessage           the message can never be processed; it is dead-lettered with this reason
    ├── NewerMessage             its type or schema version needs a newer worker; it waits for one
    ├── ClaimLost                our attempt is no longer open: another worker took it over, stop working on it
    ├── SchemaMoved              the table's schema changed since the run was planned; plan it again
    ├── VersionsMoved            another version of an object was committed since the claim; claim it again
    ├── PublishConflict          the table changed since we loaded it; reload it and check
    ├── PublishHalted        1   publishing further would damage the table; needs a person
    └── ObjectError              one object could not be read; the other objects of its batch are unaffected
        ├── ObjectGone           it was deleted
        ├── ObjectSuperseded     another version has replaced it
        └── ObjectUnreadable     it exists but cannot be read: a line or a size above its limit
            ├── ObjectCorrupt    its compressed bytes are truncated or corrupt; another read returns the same bytes
            └── ObjectRefused    this host could not open or read it; another host may
                ├── ObjectDenied permission is missing: probably a wrong setting rather than a bad object
                └── DeviceFailed the disk or file system failed; the machine may be faulty

    Interrupted                  (a BaseException) raised by `checkpoint` when the work must end: do not catch it

Every message says what happened, to what, and what to do.
"""


class PenstockError(Exception):
    """The base class of all exceptions that Penstock raises on purpose."""

    exit_code = 1
    is_logged = False  # True once the log for machines has it: the command line does not print it again


class UserError(PenstockError):
    """A problem that a person can fix; the message says how."""


class UsageError(UserError):
    """Invalid arguments."""

    exit_code = 2


class ConfigurationError(UserError):
    """A setting, an extra, Java or the data directory cannot be used."""

    exit_code = 78


class SettingUnfit(ConfigurationError):
    """A setting cannot be read or has an invalid value, independent of the code that loads it."""


class QueueMissing(ConfigurationError):
    """No queue of that name exists. Callers that can do without the queue catch this."""


class TableError(UserError):
    """The target table cannot be written as requested."""


class TableNowhere(TableError):
    """The location of a table does not exist, and we may not create it."""

    exit_code = 2


class TableDenied(TableError):
    """Credentials or permissions for the table's location are missing."""

    exit_code = 78


class TableFolderTaken(TableError):
    """The folder of a table is no table and holds other files."""


class TransformError(UserError):
    """The user's transform failed before any data was processed."""


class FaultPersists(UserError):
    """A temporary fault that outlasted all retries."""

    exit_code = 75


class RestartNeeded(FaultPersists):
    """A part of this process has ended for good, such as Spark's JVM. Only a new process can start another."""


class TemporaryError(PenstockError):
    """A retry may succeed."""

    exit_code = 75


class PartAway(TemporaryError):
    """One part of a store is unavailable, which proves nothing about the rest."""


class UnknownOutcome(TemporaryError):
    """The connection broke before the response: the request may have been executed, and a retry may repeat it."""


class Reject(PenstockError):
    """Raised by a handler to dead-letter its message without further attempts. The text becomes the reason of death."""


class Retry(PenstockError):
    """Raised by a handler to request another attempt. Counts as an attempt.

    Args:
        reason: Recorded for the next attempt.
        delay_seconds: Wait before the next attempt; None: the retry policy chooses it.
    """

    def __init__(self, reason: str = "the handler requested another attempt", *, delay_seconds: float | None = None):
        super().__init__(reason)
        self.delay_seconds = delay_seconds


class InvalidMessage(PenstockError):
    """The message can never be processed. It is dead-lettered with this text as the reason."""


class NewerMessage(PenstockError):
    """The message's type or schema version is unknown here, but a newer worker may know it."""


class ClaimLost(PenstockError):
    """The attempt is no longer open: it expired and was taken over, or was released."""


class SchemaMoved(PenstockError):
    """The table's schema is not the one the run was planned with. Nothing was committed; the claim still holds."""


class VersionsMoved(PenstockError):
    """Another version of an object was committed since the claim, or is in the same batch. Nothing was committed; the
    claim still holds."""


class PublishConflict(PenstockError):
    """Another writer committed to the table since we loaded it, or the outcome of our commit is unknown."""


class PublishHalted(PenstockError):
    """Table and ledger disagree in a way that publishing would make worse."""


class ObjectError(PenstockError):
    """One object could not be read as notified."""


class ObjectGone(ObjectError):
    """The object was deleted."""


class ObjectSuperseded(ObjectError):
    """The object exists in another version than the notified one."""


class ObjectUnreadable(ObjectError):
    """The object exists in the right version but cannot be read."""


class ObjectCorrupt(ObjectUnreadable):
    """Its bytes were read in this version and cannot be inflated."""


class ObjectRefused(ObjectUnreadable):
    """This host could not open the object or read a range of it. Another host may be able to."""

    def __init__(self, message: str, *, offset: int = 0, length_bytes: int = 0) -> None:
        """``length_bytes`` is the length of the unreadable range; 0 if the object could not be opened."""
        super().__init__(message)
        self.offset = offset
        self.length_bytes = length_bytes


class ObjectDenied(ObjectRefused):
    """Permission to read the object is missing, often for many objects at once."""


class DeviceFailed(ObjectRefused):
    """The disk or the file system reported an error, for this object alone or for every read."""


class Interrupted(BaseException):
    """The work must end: it was released, timed out, or lost its claim. Raised by `checkpoint`; do not catch it."""
