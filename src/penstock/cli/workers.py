"""`penstock admin workers`: list the workers on this host, and signal them to drain or stop."""

import dataclasses
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.app.registry import WorkerRecord, Workers
from penstock.cli.exits import FAILED
from penstock.cli.output import Json, moment, print_json, print_table, printable, talk
from penstock.config import load_settings
from penstock.messaging.wording import counted
from penstock.operations.workers.signals import selected_workers, signal_workers, suspended_text

State = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Data directory of the workers; default: the setting."),
]
Worker = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="The worker's id, or its process id on this host.")
]
All = Annotated[bool, typer.Option("--all", help="All workers on this host.")]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_(state: State = None, json_: Json = False) -> None:
    """List the running workers on this host that use this data directory."""
    workers = _workers(state)
    now = time.time()
    records, silent = workers.records(), workers.silent()
    if json_:
        print_json([_document(record, now) for record in records] + [{"worker": worker} for worker in silent])
        return
    print_table(
        ("worker", "host", "pid", "version", "since", "state", "queues", "in flight", "last heartbeat", "metrics"),
        [
            (
                record.worker,
                record.host,
                record.pid,
                record.version,
                moment(record.started_at),
                record.state,
                ", ".join(_queue_text(queue, {**record.unserved, **record.paused}) for queue in record.queues),
                record.in_flight,
                f"{max(0.0, now - record.beat_at):.0f} s ago",
                record.metrics_address or "",
            )
            for record in records
        ]
        + [(worker, "", "", "", "", "keeps no record", "", "", "", "") for worker in silent],
        empty="No worker with this data directory runs on this host.",
    )


@app.command()
def drain(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Make workers on this host stop fetching, finish the messages in flight, and stay up."""
    _signal(_workers(state), signal.SIGTSTP, worker, all_=all_, json_=json_, action="to drain")


@app.command()
def stop(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Make workers on this host finish or release the messages in flight within the stop timeout, and exit."""
    _signal(_workers(state), signal.SIGTERM, worker, all_=all_, json_=json_, action="to stop")


def _workers(state: str | None) -> Workers:
    return Workers(Path(load_settings(data_dir=state).data_dir))


def _queue_text(queue: str, paused: Mapping[str, str]) -> str:
    return f"{queue} (paused: {paused[queue]})" if queue in paused else queue


def _document(record: WorkerRecord, now: float) -> dict[str, object]:
    fields = dataclasses.asdict(record)
    del fields["namespace"]
    return {**fields, "beat_age_seconds": max(0.0, now - record.beat_at)}


def _signal(
    workers: Workers, number: signal.Signals, worker: str | None, *, all_: bool, json_: bool, action: str
) -> None:
    result = signal_workers(workers, selected_workers(workers.records(), worker, all_=all_), number)
    if json_:
        suspended = [record.worker for record in result.suspended]
        print_json({"asked": result.asked, "elsewhere": result.elsewhere, "suspended": suspended})
    else:
        print(f"Signalled {counted(len(result.asked), 'worker')} {action}.")
    for name in result.elsewhere:
        talk(printable(f"{name} runs on another host or in another container; run this command there."))
    for record in result.suspended:
        talk(printable(suspended_text(record)))
    if (result.elsewhere or result.suspended) and not result.asked:
        raise typer.Exit(FAILED)
