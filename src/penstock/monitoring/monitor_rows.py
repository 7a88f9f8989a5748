"""What is logged of the monitor, and of what workers see of queues that tell no ages."""

from penstock import events
from penstock.monitoring.rows import Row, Rows, same, with_error

MONITOR_ROWS: Rows = {
    events.MonitorStarted: Row(
        name="monitor.started",
        level="info",
        msg="The monitor looks at these, and answers for them.",
        fields=same("address", "sources", "queues", "pipelines"),
    ),
    events.LookFailed: Row(
        name="look.failed",
        level="warning",
        msg="The monitor cannot see something; its numbers are gone until it can.",
        fields=with_error("source"),
    ),
    events.LookRecovered: Row(
        name="look.recovered",
        level="info",
        msg="The monitor sees it again.",
        fields={"source": "source", "duration_s": "away_seconds"},
    ),
    events.QueueSeenEmpty: Row(
        name="queue.seen_empty",
        level="debug",
        msg="A receive waited for a message, and none came.",
        fields=same("queue"),
    ),
}
