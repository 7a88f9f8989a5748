"""What is logged of dead letters that come back by themselves."""

from collections.abc import Mapping

from penstock import events
from penstock.monitoring.rows import Cases, Level, Row, Rows, Source, same, with_error

_LETTER = same("queue", "letter_queue", "message_id", "replay_id", "count")
_WAIT: Mapping[str, Source] = {**_LETTER, "due_at": "due_at"}


def _replayed(msg: str) -> Row:
    return Row(
        name="dead.replayed",
        level="info",
        msg=msg,
        fields={**_WAIT, "result": "result", "new_message_id": "new_message_id"},
    )


def _left(name: str, level: Level, msg: str) -> Row:
    return Row(name=name, level=level, msg=msg, fields={**_LETTER, "reason": "reason"})


REPLAY_ROWS: Rows = {
    events.DeadReplayed: Cases(
        by=lambda event: event.result,
        rows={
            "sent": _replayed("The dead letter is a message of its queue again."),
            "already_sent": _replayed("The dead letter was sent before, and only had to be deleted."),
            "held": Row(name="dead.held", level="debug", msg="The dead letter's wait is not over.", fields=_WAIT),
            "put_back": _left("dead.put_back", "warning", "The dead letter could not be sent now; it is tried again."),
        },
        otherwise=_left("dead.set_aside", "warning", "The dead letter goes to the second tier, for people."),
    ),
    events.ReplaysUnmarked: Row(
        name="replay.unmarked",
        level="warning",
        msg="Messages are in their queues again, and the ledger could not be told.",
        fields={"count": lambda event: len(event.replay_ids), "ids": "replay_ids", **with_error()},
    ),
    events.DeadLettersAgeing: Row(
        name="dead.ageing",
        level="warning",
        msg="Dead letters wait, and the queue deletes them at the end of its retention.",
        fields={
            "queue": "queue",
            "count": "letters",
            "oldest_s": "oldest_age_seconds",
            "first_deleted_at": "first_deleted_at",
            "archived": "archived",
        },
    ),
    events.DeadLettersArchived: Row(
        name="dead.archived",
        level="warning",
        msg="Dead letters near the end of their retention left their queue for a file.",
        fields={"queue": "queue", "count": "letters", "file": "file"},
    ),
}
