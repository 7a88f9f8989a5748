"""`penstock worker ps`, `drain` and `stop`: which workers run here, and what they are told."""

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import FAILED
from penstock.cli.output import Json, counted, moment, print_json, print_table, printable, talk
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.registry import WorkerRecord, Workers

State = Annotated[
    str | None, typer.Option("--state", metavar="FOLDER", help="The workers' state folder, as in the setting state.")
]
Worker = Annotated[
    str | None, typer.Option("--worker", metavar="ID", help="This one: its id, or its process id on this host.")
]
All = Annotated[bool, typer.Option("--all", help="All of this host.")]


def ps(state: State = None, json_: Json = False) -> None:
    """List the living workers of this state folder on this host. Those of other hosts are listed there."""
    import time

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
                ", ".join(_shown(queue, {**record.unserved, **record.paused}) for queue in record.queues),
                record.in_flight,
                f"{max(0.0, now - record.beat_at):.0f} s ago",
                record.metrics_address or "",
            )
            for record in records
        ]
        + [(worker, "", "", "", "", "keeps no record", "", "", "", "") for worker in silent],
        empty="No worker of this state folder runs on this host.",
    )


def drain(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Let workers of this state folder on this host fetch no more, finish what they hold, and stay up."""
    _signal(_workers(state), signal.SIGTSTP, worker, all_=all_, json_=json_, verb="to drain")


def stop(state: State = None, worker: Worker = None, all_: All = False, json_: Json = False) -> None:
    """Let workers of this state folder on this host finish what they hold, or give it back in time, and end."""
    _signal(_workers(state), signal.SIGTERM, worker, all_=all_, json_=json_, verb="to stop")


def _workers(state: str | None) -> "Workers":
    from penstock.app.registry import Workers
    from penstock.config import load_settings

    return Workers(Path(load_settings(state=state).state))


def _signal(
    workers: "Workers", number: signal.Signals, worker: str | None, *, all_: bool, json_: bool, verb: str
) -> None:
    from penstock.app.registry import is_local

    asked: list[str] = []
    elsewhere: list[str] = []
    for record in _chosen(workers.records(), worker, all_=all_):
        if not is_local(record):
            elsewhere.append(record.worker)
        elif workers.signal(record, number):
            asked.append(record.worker)
    if json_:
        print_json({"asked": asked, "elsewhere": elsewhere})
    else:
        print(f"{counted(len(asked), 'worker')} asked {verb}.")
    for name in elsewhere:
        talk(printable(f"{name} runs on another host or in another container; ask it there."))
    if elsewhere and not asked:
        raise typer.Exit(FAILED)


def _chosen(records: "Sequence[WorkerRecord]", worker: str | None, *, all_: bool) -> "Sequence[WorkerRecord]":
    """Those that are meant. One worker alone need not be named."""
    if all_ and worker is not None:
        raise UsageError("Give --worker or --all, not both.")
    if worker is not None:
        records = [record for record in records if worker in (record.worker, str(record.pid))]
        if not records:
            raise UsageError(
                f"There is no living worker {worker} of this state folder on this host; `penstock worker ps` lists "
                "those there are."
            )
    elif len(records) > 1 and not all_:
        names = ", ".join(record.worker for record in records)
        raise UsageError(f"There are {len(records)} workers: {names}; name one with --worker, or give --all.")
    return records


def _shown(queue: str, paused: Mapping[str, str]) -> str:
    return f"{queue} (paused: {paused[queue]})" if queue in paused else queue


def _document(record: "WorkerRecord", now: float) -> dict[str, object]:
    fields = dataclasses.asdict(record)
    del fields["namespace"]
    return {**fields, "beat_age_seconds": max(0.0, now - record.beat_at)}
