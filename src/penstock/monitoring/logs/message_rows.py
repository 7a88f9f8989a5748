"""Log rows for messages (received, processed, settled, held) and for the automatic replay of dead letters."""

from collections.abc import Mapping

from penstock import events
from penstock.messaging.failure import from_users_code
from penstock.messaging.settlement import DeadLetter
from penstock.monitoring.logs.rows import ERROR, IDS, Level, LogRow, LogRowCases, Rows, Source, same, with_error

_DELIVERY = same("queue", "message_id", "attempt")
_MESSAGE = same("queue", "handler", "message_id", "attempt")
_WORKED: Mapping[str, Source] = {**_MESSAGE, "enqueued_at": "enqueued_at"}
_FAILED: Mapping[str, Source] = {
    **_WORKED,
    "duration_s": "duration_seconds",
    **ERROR,
    "exception": lambda event: None if event.traceback is None else from_users_code(event.traceback),
    "final": "final",
    "delay_s": "delay_seconds",
}
_QUEUE_ERROR = with_error("queue")


def _failed(level: Level, msg: str) -> LogRow:
    return LogRow(name="message.failed", level=level, msg=msg, fields=_FAILED)


MESSAGE_ROWS: Rows = {
    events.MessagesReceived: LogRow(
        name="message.received",
        level="debug",
        msg="The worker received the message.",
        fields=same("queue"),
        each="message_ids",
    ),
    events.MessageTakenOver: LogRow(
        name="message.taken_over",
        level="warning",
        msg="The lease of another worker expired: that worker died or hung, and this worker took over its message.",
        fields={**_DELIVERY, **same("from_worker", "from_attempt", "reason")},
    ),
    events.MessagesDeleted: LogRow(
        name="message.deleted",
        level="error",
        msg="Another program deleted messages of this worker from the queue's stream. They cannot be restored.",
        fields={"queue": "queue", "count": lambda event: len(event.entries), "ids": "entries"},
    ),
    events.MessageStarted: LogRow(name="message.started", level="debug", msg="The handler was called.", fields=_WORKED),
    events.MessageFinished: LogRow(
        name="message.finished",
        level="info",
        msg="The handler returned.",
        fields={**_WORKED, "duration_s": "duration_seconds"},
    ),
    events.MessageFailed: LogRowCases(
        by=lambda event: (event.final, event.error_type == "Reject"),
        rows={
            (True, False): _failed("error", "The handler failed. The message is dead-lettered."),
            (True, True): _failed("warning", "The handler rejected the message. It is dead-lettered."),
        },
        otherwise=_failed("warning", "The handler failed. The message will be retried."),
    ),
    events.MessageRetrying: LogRow(
        name="message.retrying",
        level="warning",
        msg="A call inside the handler failed and is retried there.",
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
        msg="The message is invalid and can never be processed. It is dead-lettered.",
        fields={**_MESSAGE, **same("reason")},
    ),
    events.MessageInterrupted: LogRow(
        name="message.interrupted",
        level="info",
        msg="A shutdown interrupted the handler. The message is released.",
        fields={**_MESSAGE, "duration_s": "duration_seconds"},
    ),
    events.DeliveryAcked: LogRow(
        name="message.acked",
        level="debug",
        msg="The message was acknowledged and deleted from the queue.",
        fields={**_DELIVERY, "reason": "settlement.reason", "objects": "settlement.objects"},
    ),
    events.DeliverySettled: LogRowCases(
        by=lambda event: type(event.settlement),
        rows={
            DeadLetter: LogRow(
                name="message.dead_lettered",
                level="warning",
                msg="The message was dead-lettered.",
                fields={**_DELIVERY, "reason": "settlement.reason", "error.message": "settlement.exception"},
            ),
        },
        otherwise=LogRow(
            name="message.released",
            level="debug",
            msg="The message was released to its queue.",
            fields={**_DELIVERY, "reason": "settlement.reason", "delay_s": "settlement.delay_seconds"},
        ),
    ),
    events.SettlementFailed: LogRow(
        name="settlement.failed",
        level="warning",
        msg="The broker did not accept the settlement. It is retried unless the lease is lost.",
        fields=same("queue", "message_id", "attempt", "operation", "reason", "lost"),
    ),
    events.SettlementMissing: LogRow(
        name="settlement.missing",
        level="error",
        msg="The handler returned no settlement for the message, which is a bug in it. The message is released.",
        fields=same("queue", "message_id"),
    ),
    events.LeasesExtended: LogRow(
        name="lease.extended", level="debug", msg="A heartbeat extended the leases.", fields={"queue": "queue", **IDS}
    ),
    events.LeaseLost: LogRow(
        name="lease.lost",
        level="warning",
        msg="The lease was lost: it expired, or the broker no longer knows the delivery.",
        fields=same("queue", "message_id", "attempt"),
    ),
    events.LeasesExpiring: LogRow(
        name="lease.expiring",
        level="warning",
        msg="Leases or claims were not extended in time and are about to expire.",
        fields=same("queue", "kind", "count", "seconds_left"),
    ),
    events.HeartbeatFailed: LogRow(
        name="heartbeat.failed",
        level="warning",
        msg="A heartbeat failed. It is retried.",
        fields=_QUEUE_ERROR,
    ),
    events.ReceiveFailed: LogRow(
        name="receive.failed",
        level="warning",
        msg="Receiving messages from the broker failed. It is retried.",
        fields=_QUEUE_ERROR,
    ),
}


_DEAD_LETTER = same("queue", "dead_letter_queue", "message_id", "replay_id", "count")
_WAIT: Mapping[str, Source] = {**_DEAD_LETTER, "due_at": "due_at"}


def _replayed(msg: str) -> LogRow:
    return LogRow(
        name="dead_letter.replayed",
        level="info",
        msg=msg,
        fields={**_WAIT, "result": "result", "new_message_id": "new_message_id"},
    )


def _not_sent(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields={**_DEAD_LETTER, "reason": "reason"})


REPLAY_ROWS: Rows = {
    events.DeadLetterReplayed: LogRowCases(
        by=lambda event: event.result,
        rows={
            "sent": _replayed("The dead letter was sent back to its queue."),
            "already_sent": _replayed("The dead letter had already been sent back to its queue. It was deleted."),
            "waiting": LogRow(
                name="dead_letter.waiting", level="debug", msg="The delay of the dead letter is not over.", fields=_WAIT
            ),
            "released": _not_sent(
                "dead_letter.released", "warning", "The dead letter could not be sent back. It is retried."
            ),
        },
        otherwise=_not_sent(
            "dead_letter.set_aside",
            "warning",
            "The dead letter was moved to the final DLQ.",
        ),
    ),
    events.ReplaysUnrecorded: LogRow(
        name="replay.unrecorded",
        level="warning",
        msg="Dead letters were sent back to their queues, but the ledger could not record it.",
        fields={"count": lambda event: len(event.replay_ids), "ids": "replay_ids", **with_error()},
    ),
    events.DeadLettersExpiring: LogRow(
        name="dead_letter.expiring",
        level="warning",
        msg="Dead letters are about to expire: the queue deletes them at the end of its retention.",
        fields={
            "queue": "queue",
            "count": "count",
            "oldest_age_s": "oldest_age_seconds",
            "first_deleted_at": "first_deleted_at",
            "archived": "archived",
        },
    ),
    events.DeadLettersArchived: LogRow(
        name="dead_letter.archived",
        level="warning",
        msg="Dead letters that were about to expire were moved to a file.",
        fields=same("queue", "count", "file"),
    ),
}
