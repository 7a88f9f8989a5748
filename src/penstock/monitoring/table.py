"""What is logged of each event: the whole table.

Names and fields are an interface; `docs/fix/logs.md` lists them and a test compares it with this table. An event
that is missing here is a defect, unless it is listed as not logged.
"""

from types import MappingProxyType

from penstock import events
from penstock.monitoring.message_rows import MESSAGE_ROWS
from penstock.monitoring.monitor_rows import MONITOR_ROWS
from penstock.monitoring.object_rows import BATCH_ROWS, OBJECT_ROWS, RECONCILE_ROWS
from penstock.monitoring.replay_rows import REPLAY_ROWS
from penstock.monitoring.rows import Rows
from penstock.monitoring.worker_rows import WORKER_ROWS

ROWS: Rows = MappingProxyType(
    {**WORKER_ROWS, **MESSAGE_ROWS, **REPLAY_ROWS, **OBJECT_ROWS, **BATCH_ROWS, **RECONCILE_ROWS, **MONITOR_ROWS}
)

# For those who count; others tell of each, and are logged.
COUNTED_ONLY: frozenset[type[events.Event]] = frozenset({events.SettlementsTaken})

# Roots of others: nobody emits them.
NOT_LOGGED: frozenset[type[events.Event]] = frozenset({events.Event, events.MessageEvent, events.ObjectEvent})
