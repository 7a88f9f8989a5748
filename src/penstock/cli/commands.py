"""The command tree: name, help panel, one line of help and module of every command."""

from penstock.cli.lazy import LazyCommand

RUN, INSPECT, REPAIR, SET_UP = "Run", "Inspect", "Repair", "Set up"  # the panels of the help

COMMANDS = (
    LazyCommand(
        name="worker", panel=RUN, target="penstock.cli.worker:worker", help="Run a worker on the queues of an app."
    ),
    LazyCommand(name="run", panel=RUN, target="penstock.cli.run:run", help="Run one pipeline of an app."),
    LazyCommand(
        name="ingest", panel=RUN, target="penstock.cli.ingest:ingest", help="Load files into a table exactly once."
    ),
    LazyCommand(name="send", panel=RUN, target="penstock.cli.send:send", help="Send messages to a queue."),
    LazyCommand(
        name="status",
        panel=INSPECT,
        target="penstock.cli.status:status",
        help="Report problems with queues, workers and pipelines.",
    ),
    LazyCommand(
        name="web", panel=INSPECT, target="penstock.cli.web:web", help="Serve the dashboard until Ctrl-C or SIGTERM."
    ),
    LazyCommand(
        name="queues", panel=INSPECT, target="penstock.cli.queues:app", help="List, pause, resume and purge queues."
    ),
    LazyCommand(
        name="objects",
        panel=INSPECT,
        target="penstock.cli.objects:app",
        help="List objects and their states; retry failed ones.",
    ),
    LazyCommand(name="table", panel=INSPECT, target="penstock.cli.table:app", help="Show rows of a table."),
    LazyCommand(
        name="dead",
        panel=REPAIR,
        target="penstock.cli.dead.group:app",
        help="List, replay, purge and export dead letters.",
    ),
    LazyCommand(
        name="quarantine",
        panel=REPAIR,
        target="penstock.cli.quarantine:app",
        help="List, show, replay and dismiss bad lines of objects.",
    ),
    LazyCommand(
        name="reconcile",
        panel=REPAIR,
        target="penstock.cli.reconcile:reconcile",
        help="Find objects that were never processed and send their notifications again.",
    ),
    LazyCommand(
        name="init",
        panel=SET_UP,
        target="penstock.cli.init:init",
        help="Write a first app with settings and a test, or Terraform.",
    ),
    LazyCommand(
        name="demo",
        panel=SET_UP,
        target="penstock.cli.demo:demo",
        help="Kill a worker, then an ingest, and prove that nothing is lost or doubled.",
    ),
    LazyCommand(
        name="doctor",
        panel=SET_UP,
        target="penstock.cli.doctor:doctor",
        help="Check this machine, the settings and the services.",
    ),
    LazyCommand(
        name="admin",
        panel=SET_UP,
        target="penstock.cli.admin:app",
        help="Commands for maintenance, diagnosis and operators.",
    ),
)

ADMIN_COMMANDS = (
    LazyCommand(
        name="workers", target="penstock.cli.workers:app", help="List, drain and stop the workers on this host."
    ),
    LazyCommand(
        name="schema",
        target="penstock.cli.schema:app",
        help="Show, compare and change the schema and transform that a pipeline remembers.",
    ),
    LazyCommand(name="batches", target="penstock.cli.batches:app", help="List committed batches, and show one."),
    LazyCommand(
        name="publish", target="penstock.cli.tables:publish", help="Make committed batches visible in their table."
    ),
    LazyCommand(name="compact", target="penstock.cli.tables:compact", help="Merge small files of a table."),
    LazyCommand(name="gc", target="penstock.cli.tables:gc", help="Delete files that belong to no batch."),
    LazyCommand(
        name="repair",
        target="penstock.cli.repair:repair",
        help="Update a ledger that was restored from a backup to match its table.",
    ),
    LazyCommand(
        name="cleanup",
        target="penstock.cli.cleanup:cleanup",
        help="Tag, move or delete source objects that were processed.",
    ),
    LazyCommand(
        name="ledger", target="penstock.cli.ledger:app", help="Show, upgrade, downgrade and archive the ledger."
    ),
    LazyCommand(
        name="outbox",
        target="penstock.cli.transactions:outbox_app",
        help="List and send the messages that wait in an outbox.",
    ),
    LazyCommand(
        name="inbox", target="penstock.cli.transactions:inbox_app", help="Delete old records of processed messages."
    ),
    LazyCommand(
        name="replayer",
        target="penstock.cli.replayer:replayer",
        help="Send the dead letters back that are due now, print a report, and exit.",
    ),
    LazyCommand(
        name="monitor",
        target="penstock.cli.monitor:monitor",
        help="Measure queues, dead letters and the ledger, and serve the metrics.",
    ),
    LazyCommand(name="spark", target="penstock.cli.spark:app", help="Pack what the executors of a Spark cluster need."),
    LazyCommand(
        name="config", target="penstock.cli.config:app", help="Show the settings in effect, and check the stop timeout."
    ),
    LazyCommand(name="logs", target="penstock.cli.logs:app", help="Diagnose problems from log files."),
    LazyCommand(
        name="audit",
        target="penstock.cli.audit:audit",
        help="List manual changes of queues, dead letters, objects and schemas.",
    ),
)
