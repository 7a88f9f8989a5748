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

_RELEASED: Mapping[str, Source] = {"count": lambda event: len(event.released), "ids": "released"}


def _stopped(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields=_RELEASED)


def _ended(level: Level, msg: str) -> LogRow:
    fields: Mapping[str, Source] = {"process": "process", "exit_code": "exit_code", "delay_s": "restart_in_seconds"}
    return LogRow(name="process.exited", level=level, msg=msg, fields=fields)


WORKER_ROWS: Rows = {
    events.WorkerStarted: LogRow(
        name="worker.started",
        level="info",
        msg="The worker started.",
        fields=same("queues", "weights", "concurrency", "broker", "ledger", "metrics", "jobs", "app", "version"),
    ),
    events.WorkerDraining: LogRow(
        name="worker.draining",
        level="info",
        msg="The worker stopped receiving messages. Messages in flight continue.",
        fields=same("reason", "in_flight"),
    ),
    events.WorkerFailed: LogRow(
        name="worker.failed",
        level="error",
        msg="The worker failed and stops.",
        fields={**ERROR, "exception": lambda event: event.traceback or None},
    ),
    events.WorkerStopped: LogRowCases(
        by=lambda event: event.outcome,
        rows={
            "drained": _stopped("worker.drained", "info", "The worker stopped. All messages in flight finished."),
            "interrupted": _stopped(
                "worker.interrupted", "info", "The worker stopped and released unfinished messages."
            ),
        },
        otherwise=LogRow(
            name="worker.forced",
            level="warning",
            msg="The worker was forced to stop: a thread did not end, or messages could not be settled.",
            fields={"count": lambda event: len(event.unsettled), "ids": "unsettled"},
        ),
    ),
    events.ExecutionFailed: LogRow(
        name="execution.failed",
        level="error",
        msg="A batch ended without settlements. Its messages are released.",
        fields={**HANDLER_ERROR, **IDS},
    ),
    events.JobFailed: LogRow(
        name="job.failed",
        level="warning",
        msg="A background job failed. It is retried.",
        fields=with_error("job"),
    ),
    events.ScheduledMessageSent: LogRow(
        name="scheduled_message.sent",
        level="info",
        msg="The message of a scheduled handler was sent.",
        fields=same("handler", "queue", "scheduled_at"),
    ),
    events.ScheduledMessageFailed: LogRow(
        name="scheduled_message.failed",
        level="warning",
        msg="The message of a scheduled handler could not be sent. It is retried.",
        fields={**HANDLER_ERROR, "scheduled_at": "scheduled_at"},
    ),
    events.OutboxSent: LogRow(
        name="outbox.sent",
        level="info",
        msg="Rows of the outbox were sent to their queue.",
        fields={"queue": "queue", **IDS},
    ),
    events.OutboxRejected: LogRow(
        name="outbox.rejected",
        level="warning",
        msg="The broker rejected a row of the outbox. The row stays there and is retried.",
        fields={
            **same("queue", "outbox_id", "tries", "reason"),
            "delay_s": "delay_seconds",
        },
    ),
    events.RelayFailed: LogRow(
        name="relay.failed",
        level="warning",
        msg="The relay of an outbox failed. No message is lost, and it is retried.",
        fields={**with_error("database"), "delay_s": "delay_seconds"},
    ),
    events.LedgerUnavailable: LogRow(
        name="ledger.unavailable",
        level="warning",
        msg="The ledger is unavailable. The queues that need it are paused.",
        fields={**with_error(), **same("queues")},
    ),
    events.LedgerAvailable: LogRow(
        name="ledger.available",
        level="info",
        msg="The ledger is available again. The paused queues are consumed.",
        fields={"duration_s": "outage_seconds"},
    ),
    events.StoreUnavailable: LogRow(
        name="store.unavailable",
        level="warning",
        msg="The store of a source or a table is unavailable. The queues that need it are paused.",
        fields={**with_error("store"), **same("queues")},
    ),
    events.StoreAvailable: LogRow(
        name="store.available",
        level="info",
        msg="The store is available again. The paused queues are consumed.",
        fields={**same("store"), "duration_s": "outage_seconds"},
    ),
    events.BreakerOpened: LogRow(
        name="breaker.opened",
        level="error",
        msg="Consecutive messages failed with the same error. This worker pauses the queue, except for single probes.",
        fields={**with_error("queue", "handler"), **same("fingerprint", "failures")},
    ),
    events.BreakerClosed: LogRow(
        name="breaker.closed",
        level="info",
        msg="The breaker closed. The queue is consumed as before.",
        fields={**same("queue", "handler", "probes"), "duration_s": "open_seconds"},
    ),
    events.InboxCleaned: LogRow(
        name="inbox.cleaned",
        level="info",
        msg="Expired rows of the inbox were deleted.",
        fields=same("database", "count"),
    ),
    events.SettingWithoutEffect: LogRow(
        name="setting.without_effect",
        level="warning",
        msg="A setting has no effect in this worker.",
        fields=same("setting", "reason"),
    ),
    events.ReleaseFailed: LogRow(
        name="release.failed",
        level="warning",
        msg="A step of releasing a batch failed. The following steps ran.",
        fields={**HANDLER_ERROR, "step": "step"},
    ),
    events.LifespanFailed: LogRow(
        name="lifespan.failed",
        level="warning",
        msg="A lifespan failed to close its resources. The other lifespans were closed.",
        fields=with_error("lifespan"),
    ),
    events.ConsumerHalted: LogRow(
        name="consumer.halted",
        level="error",
        msg="A handler hit an error that no retry can fix. This worker stops consuming its queue.",
        fields=with_error("queue", "handler"),
    ),
    events.ListenerFailed: LogRow(
        name="listener.failed",
        level="error",
        msg="A listener of the app raised. This is logged once per listener, which is still called.",
        fields=with_error("listener"),
    ),
    events.ThreadLeftBehind: LogRow(
        name="thread.left_behind",
        level="warning",
        msg="A thread did not end in time. The process exits without it.",
        fields=same("thread"),
    ),
    events.ProcessExited: LogRowCases(
        by=lambda event: event.exit_code == 0,
        rows={True: _ended("info", "A worker process exited.")},
        otherwise=_ended("error", "A worker process failed."),
    ),
    events.TaskProtected: LogRow(
        name="task.protected",
        level="info",
        msg="ECS protects this task from scale-in while the worker is busy with long work.",
        fields={"expires_s": "expires_in_seconds"},
    ),
    events.TaskProtectionFailed: LogRow(
        name="task_protection.failed",
        level="warning",
        msg="ECS did not protect this task from scale-in. Work continues, and the request is repeated.",
        fields=with_error(),
    ),
    events.ProcessKilled: LogRow(
        name="process.killed",
        level="error",
        msg="A worker process did not stop in time and was killed.",
        fields=same("process"),
    ),
    # A person requested it and wants to see it at any log level.
    events.StacksDumped: LogRow(
        name="stacks.dumped", level="warning", msg="The stack of every thread, as requested.", fields=same("stacks")
    ),
    events.MetricsExportFailed: LogRow(
        name="metrics_export.failed",
        level="warning",
        msg="Exporting metrics failed. Counting continues.",
        fields=with_error("exporter"),
    ),
    events.TracesExportFailed: LogRow(
        name="traces_export.failed",
        level="warning",
        msg="Exporting traces failed. Work continues.",
        fields=with_error(),
    ),
    events.ErrorHookFailed: LogRow(
        name="error_hook.failed",
        level="warning",
        msg="An error hook raised. Its report is lost.",
        fields=with_error("hook", "count"),
    ),
    events.ErrorReportsDropped: LogRow(
        name="error_reports.dropped",
        level="warning",
        msg="An error hook is too slow. The oldest reports were dropped.",
        fields=same("hook", "count"),
    ),
}


MONITOR_ROWS: Rows = {
    events.DashboardStarted: LogRow(
        name="dashboard.started",
        level="info",
        msg="The worker serves the dashboard.",
        fields=same("address"),
    ),
    events.MonitorStarted: LogRow(
        name="monitor.started",
        level="info",
        msg="The monitor polls these sources and serves their metrics.",
        fields=same("address", "sources", "queues", "pipelines"),
    ),
    events.MonitorPollFailed: LogRow(
        name="monitor_poll.failed",
        level="warning",
        msg="The monitor cannot poll a source. The metrics of this source are absent until it can.",
        fields=with_error("source"),
    ),
    events.MonitorPollRecovered: LogRow(
        name="monitor_poll.recovered",
        level="info",
        msg="The monitor can poll the source again.",
        fields={"source": "source", "duration_s": "outage_seconds"},
    ),
    events.HistorySetAside: LogRow(
        name="history.set_aside",
        level="warning",
        msg="The history of the dashboard's charts could not be read. Its file was renamed, and a new one was begun.",
        fields=with_error("file", "aside"),
    ),
    events.HistoryUnwritable: LogRow(
        name="history.failed",
        level="warning",
        msg="The history of the dashboard's charts cannot be written. The charts have a gap until it can.",
        fields=with_error("file"),
    ),
    events.HistoryRecovered: LogRow(
        name="history.recovered",
        level="info",
        msg="The history of the dashboard's charts can be written again.",
        fields=same("file"),
    ),
    events.ReceiveEmpty: LogRow(
        name="receive.empty",
        level="debug",
        msg="A receive waited and returned no message.",
        fields=same("queue"),
    ),
}
