"""Log rows for messages (received, processed, settled, held) and for the automatic replay of dead letters."""

from collections.abc import Mapping

from penstock import events
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.monitoring.logs.rows import ERROR, IDS, Level, LogRow, LogRowCases, Rows, Source, same, with_error

_DELIVERY = same("queue", "message_id", "attempt")
_MESSAGE = same("queue", "handler", "message_id", "attempt")
_WORKED: Mapping[str, Source] = {**_MESSAGE, "enqueued_at": "enqueued_at"}
_FAILED: Mapping[str, Source] = {
    **_WORKED,
    "duration_s": "duration_seconds",
    **ERROR,
    "exception": "traceback",
    "final": "final",
    "delay_s": "delay_seconds",
}
_QUEUE_ERROR = with_error("queue")


def _failed(level: Level, msg: str) -> LogRow:
    return LogRow(name="message.failed", level=level, msg=msg, fields=_FAILED)


MESSAGE_ROWS: Rows = {
    events.MessagesReceived: LogRow(
        name="message.received",
        level="info",
        msg="The worker holds the message.",
        fields=same("queue"),
        each="message_ids",
    ),
    events.MessageTakenOver: LogRow(
        name="message.taken_over",
        level="warning",
        msg="The worker that held the message before let its lease run out: it died, or hung.",
        fields={**_DELIVERY, **same("from_worker", "from_attempt", "reason")},
    ),
    events.MessagesVanished: LogRow(
        name="message.vanished",
        level="error",
        msg="Somebody deleted from the queue's stream what was handed over; it cannot be put back.",
        fields={"queue": "queue", "count": lambda event: len(event.entries), "ids": "entries"},
    ),
    events.MessageStarted: LogRow(name="message.started", level="info", msg="The handler is called.", fields=_WORKED),
    events.MessageFinished: LogRow(
        name="message.finished",
        level="info",
        msg="The handler returned.",
        fields={**_WORKED, "duration_s": "duration_seconds"},
    ),
    events.MessageFailed: LogRowCases(
        by=lambda event: (event.final, event.error_type == "Reject"),
        rows={
            (True, False): _failed("error", "The handler failed, and the message is given up on."),
            (True, True): _failed("warning", "The handler gave the message up."),
        },
        otherwise=_failed("warning", "The handler failed; another attempt follows."),
    ),
    events.MessageRetrying: LogRow(
        name="message.retrying",
        level="warning",
        msg="A call inside the handler failed and is tried again there.",
        fields={**_MESSAGE, "tries": "tries", "delay_s": "delay_seconds", **ERROR},
    ),
    events.MessageSkipped: LogRow(
        name="message.skipped",
        level="info",
        msg="The handler was not called.",
        fields={**_MESSAGE, **same("reason", "key")},
    ),
    events.MessageInvalid: LogRow(
        name="message.invalid",
        level="error",
        msg="Nobody can ever work on the message.",
        fields={**_MESSAGE, **same("reason")},
    ),
    events.MessageGivenBack: LogRow(
        name="message.given_back",
        level="info",
        msg="A stop broke the handler off; another worker goes on.",
        fields={**_MESSAGE, "duration_s": "duration_seconds"},
    ),
    events.DeliverySettled: LogRowCases(
        by=lambda event: type(event.settlement),
        rows={
            Ack: LogRow(
                name="message.acked",
                level="info",
                msg="The message left the queue.",
                fields={**_DELIVERY, "reason": "settlement.reason", "objects": "settlement.objects"},
            ),
            DeadLetter: LogRow(
                name="message.dead_lettered",
                level="warning",
                msg="The message is a dead letter now.",
                fields={**_DELIVERY, "reason": "settlement.reason", "error.message": "settlement.exception"},
            ),
        },
        otherwise=LogRow(
            name="message.released",
            level="info",
            msg="The message is back in its queue.",
            fields={**_DELIVERY, "reason": "settlement.reason", "delay_s": "settlement.delay_seconds"},
        ),
    ),
    events.SettleFailed: LogRow(
        name="settle.failed",
        level="warning",
        msg="The broker did not take the settlement; it is tried again, unless the lease is lost.",
        fields=same("queue", "message_id", "attempt", "operation", "reason", "lost"),
    ),
    events.SettlementMissing: LogRow(
        name="settlement.missing",
        level="error",
        msg="The handler answered nothing for the message; it goes back.",
        fields=same("queue", "message_id"),
    ),
    events.LeasesExtended: LogRow(
        name="lease.extended", level="debug", msg="A heartbeat extended the leases.", fields={"queue": "queue", **IDS}
    ),
    events.LeaseLost: LogRow(
        name="lease.lost",
        level="warning",
        msg="The lease is not ours any more: it ended, or the broker no longer knows the delivery.",
        fields=same("queue", "message_id", "attempt"),
    ),
    events.LeasesEndangered: LogRow(
        name="lease.endangered",
        level="warning",
        msg="What the worker holds was not extended in time and will be lost soon, unless it is extended before.",
        fields=same("queue", "held", "count", "seconds_left"),
    ),
    events.HeartbeatFailed: LogRow(
        name="heartbeat.failed",
        level="warning",
        msg="A heartbeat could not be sent; it is tried again.",
        fields=_QUEUE_ERROR,
    ),
    events.ReceiveFailed: LogRow(
        name="receive.failed",
        level="warning",
        msg="The broker could not be asked for messages; it is tried again.",
        fields=_QUEUE_ERROR,
    ),
}


_LETTER = same("queue", "letter_queue", "message_id", "replay_id", "count")
_WAIT: Mapping[str, Source] = {**_LETTER, "due_at": "due_at"}


def _replayed(msg: str) -> LogRow:
    return LogRow(
        name="dead.replayed",
        level="info",
        msg=msg,
        fields={**_WAIT, "result": "result", "new_message_id": "new_message_id"},
    )


def _left(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields={**_LETTER, "reason": "reason"})


REPLAY_ROWS: Rows = {
    events.DeadReplayed: LogRowCases(
        by=lambda event: event.result,
        rows={
            "sent": _replayed("The dead letter is a message of its queue again."),
            "already_sent": _replayed("The dead letter was sent before, and only had to be deleted."),
            "held": LogRow(name="dead.held", level="debug", msg="The dead letter's wait is not over.", fields=_WAIT),
            "put_back": _left("dead.put_back", "warning", "The dead letter could not be sent now; it is tried again."),
        },
        otherwise=_left("dead.set_aside", "warning", "The dead letter goes to the second tier, for people."),
    ),
    events.ReplaysUnmarked: LogRow(
        name="replay.unmarked",
        level="warning",
        msg="Messages are in their queues again, and the ledger could not be told.",
        fields={"count": lambda event: len(event.replay_ids), "ids": "replay_ids", **with_error()},
    ),
    events.DeadLettersAgeing: LogRow(
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
    events.DeadLettersArchived: LogRow(
        name="dead.archived",
        level="warning",
        msg="Dead letters near the end of their retention left their queue for a file.",
        fields={"queue": "queue", "count": "letters", "file": "file"},
    ),
}
