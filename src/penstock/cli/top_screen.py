"""What `penstock top` shows of one look: a screen for terminals, lines for everybody else, a document for programs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.output import UNFOLDED_COLUMNS, moment, printable
from penstock.cli.queues import age_of, oldest, oldest_visible, state_of
from penstock.cli.status import document_of
from penstock.ledger.records import ObjectState
from penstock.operations.status.standing import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.app.queues import QueueStatus
    from penstock.operations.status.standing import PipelineStatus, Status
    from penstock.operations.status.top import QueueFlow, TopFrame

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
"""Columns that a narrow terminal does without, the first one first."""

_NAMES = frozenset({"queue", "state", "pipeline"})  # columns of words; the others are numbers
_STYLES = {"lost": "bold white on red", "unconsumed": "bold white on red", "dead": "bold red", "late": "bold yellow"}


def document(frame: "TopFrame") -> dict[str, Any]:
    """One look as JSON: that of `penstock status`, with the flow of each queue."""
    if frame.standing is None:
        return {"at": frame.at, "verdict": frame.verdict, "error": frame.error}
    told = document_of(frame.standing)
    for queue in told["queues"]:
        queue |= dataclasses.asdict(frame.flows[queue["queue"]])
    return {"at": frame.at, "error": None, **told}


def lines(frame: "TopFrame") -> str:
    """One look as lines, for who reads no terminal."""
    from rich.console import Console

    console = Console(width=UNFOLDED_COLUMNS, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(f"{moment(frame.at)}  {printable(frame.verdict)}", markup=False, soft_wrap=True)
        if frame.standing is not None:
            for columns, rows in _tables(frame.standing, frame.flows):
                console.print(_table(columns, rows))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def screen(
    frame: "TopFrame", last: "TopFrame | None", *, name: str, every_seconds: float, width: int
) -> "RenderableType":
    """One look as a screen so many characters wide. While nothing can be told, the tables are those of the ``last``
    look that could."""
    from rich.console import Group
    from rich.text import Text

    shown = frame if frame.standing is not None else last
    told = f"penstock top  {moment(frame.at)}  every {every_seconds:g} s, q ends  {printable(name)}"
    head = Text(told, style="dim", no_wrap=True, overflow="ellipsis")  # of a long name the beginning will do
    parts: list[Any] = [head, Text(printable(frame.verdict), style=_style(frame)), Text("")]
    if frame.standing is None and shown is not None:
        parts.append(Text(f"as it was {span(frame.at - shown.at)} ago:", style="dim"))
    if shown is not None and shown.standing is not None:
        for columns, rows in _tables(shown.standing, shown.flows):
            parts += [_table(*_fitting(columns, rows, width)), Text("")]
        parts.append(Text(f"workers: {printable(_workers(shown.standing))}"))
    return Group(*parts)


def _tables(
    standing: "Status", flows: "Mapping[str, QueueFlow]"
) -> Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    queues = [_queue(one, flows[one.queue]) for one in standing.queues]
    pipelines = [_pipeline(one) for one in standing.pipelines]
    found = ((QUEUE_COLUMNS, queues), (PIPELINE_COLUMNS, pipelines))
    return [(columns, rows) for columns, rows in found if rows]


def _queue(one: "QueueStatus", flow: "QueueFlow") -> Sequence[str]:
    first_tier = one.dead_letters - one.dead_letters_set_aside
    return (
        one.queue,
        state_of(one),
        oldest_visible(one),
        oldest(one),
        f"{one.visible:,}",
        f"{one.in_flight:,}",
        f"{one.delayed:,}",
        str(len(one.workers)),
        _rate(flow.in_per_second),
        _rate(flow.out_per_second),
        _rate(flow.net_per_second, signed=True),
        age_of(flow.drained_in_seconds) if one.messages else "",
        _number(first_tier),
        _number(one.dead_letters_set_aside),
    )


def _pipeline(one: "PipelineStatus") -> Sequence[str]:
    missing = 0 if one.reconciled is None else one.reconciled.missing
    return (
        one.pipeline,
        *(_number(one.objects.get(state, 0)) for state in ObjectState),
        _number(one.objects_overdue),
        _number(missing),
        f"{one.batches_committed:,}",
        "?" if one.batches_unpublished is None else f"{one.batches_unpublished:,}",
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

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
    """A terminal has little room: columns without anything in them are left out, then those of `_LEFT_OUT`."""
    widths = {
        column: GAP + max(len(column), *(len(row[place]) for row in rows))
        for place, column in enumerate(columns)
        if any(row[place] for row in rows)
    }
    for column in _LEFT_OUT:
        if sum(widths.values()) <= width:
            break
        widths.pop(column, None)
    kept = [place for place, column in enumerate(columns) if column in widths]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _workers(standing: "Status") -> str:
    told = [f"{one.worker} ({one.state}, {one.in_flight:,} in flight)" for one in standing.records]
    told += [name for name in standing.workers if name not in {one.worker for one in standing.records}]
    return ", ".join(told) or ("none on this host" if standing.workers_elsewhere else "none running")


def _style(frame: "TopFrame") -> str:
    if frame.standing is None:
        return "bold white on red"
    words = frame.standing.words
    return _STYLES[words[0]] if words else "bold green"


def _number(number: int) -> str:
    return f"{number:,}" if number else ""


def _rate(per_second: float | None, *, signed: bool = False) -> str:
    if per_second is None:
        return ""
    text = f"{per_second:{'+' if signed else ''},.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
