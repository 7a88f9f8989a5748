"""One sample of `penstock status --watch`: a screen for terminals, lines for other outputs, JSON for programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.output import UNFOLDED_COLUMNS, moment, printable
from penstock.cli.queues import age_of, oldest, oldest_visible, state_of
from penstock.cli.status_documents import document_of
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import PipelineStatus, Status
from penstock.operations.status.sentences import span

if TYPE_CHECKING:
    from penstock.app.flows import QueueFlow
    from penstock.app.queues import QueueStatus
    from penstock.operations.status.watch import StatusFrame

QUEUE_COLUMNS = (
    "queue",
    "state",
    "oldest visible",
    "oldest",
    "visible",
    "in flight",
    "delayed",
    "workers",
    "in/s",
    "out/s",
    "net/s",
    "empty in",
    "dlq",
    "dead",
)
PIPELINE_COLUMNS = ("pipeline", *(state.value for state in ObjectState), "overdue", "missing", "batches", "unpublished")
GAP = 2  # between two columns
_LEFT_OUT = ("oldest", "delayed", "net/s", "batches", "gone", "superseded", "missing", "out/s", "in flight")
"""Columns that a narrow terminal leaves out, in this order."""

_NAMES = frozenset({"queue", "state", "pipeline"})  # columns of words; the others are numbers
_STYLES = {
    "missing": "bold white on red",
    "no consumer": "bold white on red",
    "failed": "bold red",
    "lagging": "bold yellow",
}


def document(frame: "StatusFrame") -> dict[str, Any]:
    """Return a sample as a document: that of `penstock status`, with the flow of each queue."""
    if frame.status is None:
        return {"at": frame.at, "summary": frame.summary, "error": frame.error}
    status = document_of(frame.status)
    for queue in status["queues"]:
        queue |= dataclasses.asdict(frame.flows[queue["queue"]])
    return {"at": frame.at, "error": None, **status}


def lines(frame: "StatusFrame") -> str:
    """Return a sample as lines, for outputs that are no terminal."""
    console = Console(width=UNFOLDED_COLUMNS, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(f"{moment(frame.at)}  {printable(frame.summary)}", markup=False, soft_wrap=True)
        if frame.status is not None:
            for columns, rows in _tables(frame.status, frame.flows):
                console.print(_table(columns, rows))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def screen(
    frame: "StatusFrame", last: "StatusFrame | None", *, name: str, every_seconds: float, width: int
) -> RenderableType:
    """Return a sample as a screen of this width.

    If broker or ledger cannot be reached, the tables are those of the ``last`` sample that could be taken.
    """
    shown = frame if frame.status is not None else last
    title = f"penstock status --watch  {moment(frame.at)}  every {every_seconds:g} s, q ends  {printable(name)}"
    head = Text(title, style="dim", no_wrap=True, overflow="ellipsis")  # a long name is cut
    top = [frame.summary] if frame.status is None else frame.status.lines
    parts: list[Any] = [head, *(Text(printable(line), style=_style(frame)) for line in top), Text("")]
    if frame.status is None and shown is not None:
        parts.append(Text(f"as it was {span(frame.at - shown.at)} ago:", style="dim"))
    if shown is not None and shown.status is not None:
        for columns, rows in _tables(shown.status, shown.flows):
            parts += [_table(*_fitting(columns, rows, width)), Text("")]
        parts.append(Text(f"workers: {printable(_workers(shown.status))}"))
    return Group(*parts)


def _tables(
    status: Status, flows: "Mapping[str, QueueFlow]"
) -> Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    queues = [_queue(queue, flows[queue.queue]) for queue in status.queues]
    pipelines = [_pipeline(pipeline) for pipeline in status.pipelines]
    found = ((QUEUE_COLUMNS, queues), (PIPELINE_COLUMNS, pipelines))
    return [(columns, rows) for columns, rows in found if rows]


def _queue(queue: "QueueStatus", flow: "QueueFlow") -> Sequence[str]:
    in_dlq = queue.dead_letters - queue.dead_letters_set_aside
    return (
        queue.queue,
        state_of(queue),
        oldest_visible(queue),
        oldest(queue),
        f"{queue.visible:,}",
        f"{queue.in_flight:,}",
        f"{queue.delayed:,}",
        str(len(queue.workers)),
        _rate(flow.in_per_second),
        _rate(flow.out_per_second),
        _rate(flow.net_per_second, signed=True),
        age_of(flow.drained_in_seconds) if queue.messages else "",
        _number(in_dlq),
        _number(queue.dead_letters_set_aside),
    )


def _pipeline(pipeline: PipelineStatus) -> Sequence[str]:
    return (
        pipeline.pipeline,
        *(_number(pipeline.objects.get(state, 0)) for state in ObjectState),
        _number(pipeline.objects_overdue),
        _number(pipeline.objects_missing),
        f"{pipeline.batches_committed:,}",
        "?" if pipeline.batches_unpublished is None else f"{pipeline.batches_unpublished:,}",
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_name = column in _NAMES
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the columns that fit: first empty ones are omitted, then those of `_LEFT_OUT`."""
    widths = {
        column: GAP + max(len(column), *(len(row[index]) for row in rows))
        for index, column in enumerate(columns)
        if any(row[index] for row in rows)
    }
    for column in _LEFT_OUT:
        if sum(widths.values()) <= width:
            break
        widths.pop(column, None)
    kept = [index for index, column in enumerate(columns) if column in widths]
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _workers(status: Status) -> str:
    workers = [f"{record.worker} ({record.state}, {record.in_flight:,} in flight)" for record in status.records]
    workers += [name for name in status.workers if name not in {record.worker for record in status.records}]
    return ", ".join(workers) or ("none on this host" if status.workers_elsewhere else "none running")


def _style(frame: "StatusFrame") -> str:
    if frame.status is None:
        return "bold white on red"
    kinds = frame.status.problem_kinds
    return _STYLES[kinds[0]] if kinds else "bold green"


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _rate(per_second: float | None, *, signed: bool = False) -> str:
    if per_second is None:
        return ""
    text = f"{per_second:{'+' if signed else ''},.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
