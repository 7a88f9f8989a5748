"""Log rows for the worker itself (start, end, failures beside the messages) and for the monitor."""

from collections.abc import Mapping

from penstock import events
from penstock.monitoring.logs.rows import (
    ERROR,
    HANDLER_ERROR,
    IDS,
    Level,
    LogRow,
    LogRowCases,
    Rows,
    Source,
    same,
    with_error,
)

_GIVEN_BACK: Mapping[str, Source] = {"count": lambda event: len(event.given_back), "ids": "given_back"}


def _stopped(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields=_GIVEN_BACK)


def _ended(level: Level, msg: str) -> LogRow:
    fields: Mapping[str, Source] = {"process": "process", "exit_code": "exit_code", "delay_s": "restart_in_seconds"}
    return LogRow(name="process.ended", level=level, msg=msg, fields=fields)


WORKER_ROWS: Rows = {
    events.WorkerStarted: LogRow(
        name="worker.started",
        level="info",
        msg="The worker serves.",
        fields=same("queues", "concurrency", "broker", "metrics"),
    ),
    events.WorkerDraining: LogRow(
        name="worker.draining",
        level="info",
        msg="No more messages are fetched; what is in flight goes on.",
        fields={"signal": "reason", "in_flight": "in_flight"},
    ),
    events.WorkerFailed: LogRow(
        name="worker.failed",
        level="error",
        msg="The worker cannot go on, and ends.",
        fields={**ERROR, "exception": lambda event: event.traceback or None},
    ),
    events.WorkerStopped: LogRowCases(
        by=lambda event: event.outcome,
        rows={
            "drained": _stopped("worker.drained", "info", "The worker ended; nothing is left in flight."),
            "given_back": _stopped("worker.given_back", "info", "The worker ended and gave back what was not done."),
        },
        otherwise=LogRow(
            name="worker.forced",
            level="warning",
            msg="The worker ended although a thread did not, or the broker did not take the messages named.",
            fields={"count": lambda event: len(event.unsettled), "ids": "unsettled"},
        ),
    ),
    events.ExecutionFailed: LogRow(
        name="execution.failed",
        level="error",
        msg="A batch ended without an answer; its messages go back.",
        fields={**HANDLER_ERROR, **IDS},
    ),
    events.UpkeepFailed: LogRow(
        name="upkeep.failed",
        level="warning",
        msg="The upkeep of a handler failed; it is tried again.",
        fields=HANDLER_ERROR,
    ),
    events.TickSent: LogRow(
        name="tick.sent",
        level="info",
        msg="The message of a scheduled handler is in its queue.",
        fields=same("handler", "queue", "scheduled_at"),
    ),
    events.TickFailed: LogRow(
        name="tick.failed",
        level="warning",
        msg="The message of a scheduled handler could not be sent; it is tried again.",
        fields={**HANDLER_ERROR, "scheduled_at": "scheduled_at"},
    ),
    events.OutboxSent: LogRow(
        name="outbox.sent",
        level="info",
        msg="Rows of the outbox are in their queue.",
        fields={"queue": "queue", **IDS},
    ),
    events.OutboxRefused: LogRow(
        name="outbox.refused",
        level="warning",
        msg="The broker does not take a row of the outbox; it stays there and is tried again.",
        fields={
            **same("queue", "outbox_id", "tries", "reason"),
            "delay_s": "delay_seconds",
        },
    ),
    events.RelayFailed: LogRow(
        name="relay.failed",
        level="warning",
        msg="The outbox cannot be relayed; nothing is lost, and it is tried again.",
        fields={**with_error("database"), "delay_s": "delay_seconds"},
    ),
    events.LedgerAway: LogRow(
        name="ledger.away",
        level="warning",
        msg="The ledger is away; the queues that need it are paused until it answers.",
        fields={**with_error(), **same("queues")},
    ),
    events.LedgerBack: LogRow(
        name="ledger.back",
        level="info",
        msg="The ledger answers again; the queues that need it are served.",
        fields={"duration_s": "away_seconds"},
    ),
    events.StoreAway: LogRow(
        name="store.away",
        level="warning",
        msg="The store of objects or of a table is away; the queues that need it are paused until it answers.",
        fields={**with_error("store"), **same("queues")},
    ),
    events.StoreBack: LogRow(
        name="store.back",
        level="info",
        msg="The store answers again; the queues that need it are served.",
        fields={**same("store"), "duration_s": "away_seconds"},
    ),
    events.BreakerOpened: LogRow(
        name="breaker.opened",
        level="error",
        msg="Message after message fails in the same way; the queue is paused here, but for one probe at a time.",
        fields={**with_error("queue", "handler"), **same("fingerprint", "failures")},
    ),
    events.BreakerClosed: LogRow(
        name="breaker.closed",
        level="info",
        msg="The queue is served as before.",
        fields={**same("queue", "handler", "probes"), "duration_s": "open_seconds"},
    ),
    events.InboxForgotten: LogRow(
        name="inbox.forgotten",
        level="info",
        msg="Rows of the inbox that are old enough were deleted.",
        fields=same("database", "count"),
    ),
    events.GiveBackFailed: LogRow(
        name="give_back.failed",
        level="warning",
        msg="One step of giving back failed; the steps after it were taken.",
        fields={**HANDLER_ERROR, "step": "step"},
    ),
    events.LifespanFailed: LogRow(
        name="lifespan.failed",
        level="warning",
        msg="A lifespan did not put its resources away; the others were left nevertheless.",
        fields=with_error("lifespan"),
    ),
    events.LineHalted: LogRow(
        name="queue.halted",
        level="error",
        msg="A handler met what no further try can mend; its queue is served no more here.",
        fields=with_error("queue", "handler"),
    ),
    events.ListenerFailed: LogRow(
        name="listener.failed",
        level="error",
        msg="A listener of the app raised; this is told once, and nothing else suffers for it.",
        fields=with_error("listener"),
    ),
    events.ThreadLeftBehind: LogRow(
        name="thread.left_behind",
        level="warning",
        msg="A thread did not end in time; the process leaves without it.",
        fields=same("thread"),
    ),
    events.ProcessEnded: LogRowCases(
        by=lambda event: event.exit_code == 0,
        rows={True: _ended("info", "A worker process ended.")},
        otherwise=_ended("error", "A worker process ended with a failure."),
    ),
    events.TaskProtected: LogRow(
        name="task.protected",
        level="info",
        msg="Work that takes long is under way; ECS neither scales this task in nor replaces it.",
        fields={"expires_s": "expires_in_seconds"},
    ),
    events.TaskProtectionFailed: LogRow(
        name="task_protection.failed",
        level="warning",
        msg="ECS's agent does not protect this task from being scaled in; work goes on, and it is asked again.",
        fields=with_error(),
    ),
    events.ProcessKilled: LogRow(
        name="process.killed",
        level="error",
        msg="A worker process did not end in time and was killed.",
        fields=same("process"),
    ),
    # A person requested it and wants to see it at any log level.
    events.StacksDumped: LogRow(
        name="stacks.dumped", level="warning", msg="What every thread is doing.", fields=same("stacks")
    ),
    events.MetricsExportFailed: LogRow(
        name="metrics_export.failed",
        level="warning",
        msg="Metrics could not be sent; what is counted goes on.",
        fields=with_error("outlet"),
    ),
    events.TracesExportFailed: LogRow(
        name="traces_export.failed",
        level="warning",
        msg="Traces could not be sent; the work goes on.",
        fields=with_error(),
    ),
    events.ErrorHookFailed: LogRow(
        name="error_hook.failed",
        level="warning",
        msg="An error hook raised; what it was to report is lost.",
        fields=with_error("hook", "count"),
    ),
    events.ErrorReportsDropped: LogRow(
        name="error_reports.dropped",
        level="warning",
        msg="An error hook is too slow; the oldest reports were dropped.",
        fields=same("hook", "count"),
    ),
}


MONITOR_ROWS: Rows = {
    events.MonitorStarted: LogRow(
        name="monitor.started",
        level="info",
        msg="The monitor looks at these, and answers for them.",
        fields=same("address", "sources", "queues", "pipelines"),
    ),
    events.LookFailed: LogRow(
        name="look.failed",
        level="warning",
        msg="The monitor cannot see something; its numbers are gone until it can.",
        fields=with_error("source"),
    ),
    events.LookRecovered: LogRow(
        name="look.recovered",
        level="info",
        msg="The monitor sees it again.",
        fields={"source": "source", "duration_s": "away_seconds"},
    ),
    events.QueueSeenEmpty: LogRow(
        name="queue.seen_empty",
        level="debug",
        msg="A receive waited for a message, and none came.",
        fields=same("queue"),
    ),
}
