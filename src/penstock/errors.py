"""The exceptions Penstock raises on purpose.

::

    PenstockError
    ├── UserError                what a person did wrong; the CLI prints it as one sentence and exits with .exit_code
    │   ├── UsageError           2   wrong arguments: unknown format, missing folder, bad schema text
    │   ├── ConfigurationError   78  a setting, extra, Java or state file that this process cannot work with
    │   │   └── SettingUnfit     78  what the environment, a secret or penstock.toml says of a setting
    │   ├── TableError           1   the table is not one we can write: other schema, unsupported features
    │   │   ├── TableNowhere     2   the place that was named for it is none: no such bucket
    │   │   └── TableDenied      78  we are not let in there: credentials or permissions
    │   ├── TransformError       1   the user's transform raised, or returned something that is no DataFrame
    │   └── FaultPersists        75  the machinery failed again and again (disk full): a person should look into it
    │       └── RestartNeeded    75  what this process needs has ended (Spark's JVM): only a new process can get another
    ├── TemporaryError           75  a fault that another try may not meet: broker or database away
    │   └── UnknownOutcome       75  the same in the middle of a send: nobody knows whether the messages were taken
    ├── Reject                   a handler gives its message up; it becomes a dead letter with this reason
    ├── Retry                    a handler asks for another attempt, perhaps after a delay of its own choice
    ├── InvalidMessage           a message nobody can work on; it becomes a dead letter with this reason
    ├── NewerMessage             its type or schema version is for a newer worker; it waits for one
    ├── ClaimLost                our attempt is no longer open: somebody took it over, stop working on it
    ├── SchemaMoved              the table's schema changed since the run was planned; plan it again
    ├── PublishConflict          the table moved under our handle; load it again and look
    ├── PublishHalted        1   publishing further would damage the table; a person has to look
    └── ObjectError              one object could not be read; its siblings are not touched
        ├── ObjectGone           it is no longer there
        ├── ObjectSuperseded     what is there now is another version
        └── ObjectUnreadable     it is there and cannot be read: truncated, corrupt, too large
            └── ObjectRefused    this host could not open or read it; another one may
                ├── ObjectDenied we are not permitted to: rather a fault of the settings than of the object
                └── DeviceFailed the disk or file system fails there: perhaps a fault of the machine

    Interrupted                  (a BaseException) what `checkpoint` raises when the work is no longer ours: let it pass

Every message says what happened, to what, and what to do.
"""


class PenstockError(Exception):
    """The root: everything Penstock raises on purpose."""

    exit_code = 1


class UserError(PenstockError):
    """A person can mend this; the message says how."""


class UsageError(UserError):
    """The arguments do not make sense."""

    exit_code = 2


class ConfigurationError(UserError):
    """A setting, an extra, Java or a state file does not fit."""

    exit_code = 78


class SettingUnfit(ConfigurationError):
    """A setting cannot be read, or not be what it is said to be, whoever loads it."""


class TableError(UserError):
    """The table at the end cannot be written as asked."""


class TableNowhere(TableError):
    """The place that a table was to have is not there, and not ours to make."""

    exit_code = 2


class TableDenied(TableError):
    """Credentials or permissions do not suffice for the table's place."""

    exit_code = 78


class TransformError(UserError):
    """The user's transform failed before any data flowed."""


class FaultPersists(UserError):
    """A temporary fault that would not go away within the tries it was given."""

    exit_code = 75


class RestartNeeded(FaultPersists):
    """Something that this process needs has ended for good, such as Spark's JVM. A new process can get another."""


class TemporaryError(PenstockError):
    """Another try may succeed."""

    exit_code = 75


class PartAway(TemporaryError):
    """A part of a store is away, which says nothing of the rest of it."""


class UnknownOutcome(TemporaryError):
    """The connection broke before the answer came: what was asked may have been done. Asking again may do it twice."""


class Reject(PenstockError):
    """Raised by a handler: this message will never work, give it up now. The text is the dead letter's reason."""


class Retry(PenstockError):
    """Raised by a handler: try again later. Counts as an attempt; without a delay the retry policy chooses one."""

    def __init__(self, reason: str = "the handler asked for another attempt", *, delay_seconds: float | None = None):
        super().__init__(reason)
        self.delay_seconds = delay_seconds


class InvalidMessage(PenstockError):
    """The message can never be worked on. Its text is the dead letter's reason."""


class NewerMessage(PenstockError):
    """The message's type or schema version is unknown here, and a newer worker may know it."""


class ClaimLost(PenstockError):
    """The attempt is not open any more: expired and taken over, or given back."""


class SchemaMoved(PenstockError):
    """The table's schema is not the one the run was planned with. Nothing was committed; the claim still holds."""


class PublishConflict(PenstockError):
    """Somebody else committed to the table since our handle was loaded, or the outcome is unknown."""


class PublishHalted(PenstockError):
    """Table and ledger disagree in a way that publishing would make worse."""


class ObjectError(PenstockError):
    """One object could not be read as announced."""


class ObjectGone(ObjectError):
    """The object does not exist any more."""


class ObjectSuperseded(ObjectError):
    """The object exists in another version than the one announced."""


class ObjectUnreadable(ObjectError):
    """The object exists in the right version and cannot be read."""


class ObjectRefused(ObjectUnreadable):
    """This host could not open the object, or not read a range of it. Another host may be able to."""

    def __init__(self, message: str, *, offset: int = 0, length_bytes: int = 0) -> None:
        """``length_bytes``: the length of the range that could not be read; 0 if the object could not be opened."""
        super().__init__(message)
        self.offset = offset
        self.length_bytes = length_bytes


class ObjectDenied(ObjectRefused):
    """Permission to read the object is missing; often that of many objects at once."""


class DeviceFailed(ObjectRefused):
    """The disk or the file system answers with an error: where it is the object's alone, or wherever one reads."""


class Interrupted(BaseException):
    """The work is no longer ours: given back, past its timeout, or its claim was lost."""
