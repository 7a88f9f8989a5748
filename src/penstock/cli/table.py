"""`penstock table`: show rows of a table."""

import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.messaging.wording import counted
from penstock.pipeline.extra import require_tables

if TYPE_CHECKING:
    from penstock.app.paths import TablePaths
    from penstock.operations.tables.rows import ShownRows

NULL = "null"
CELL_CHARS_MAX = 200  # of a value for programs; on a terminal its width decides
WIDTH_LEAST = 12  # of a column with texts on a terminal; numbers and times are not cut
NAMED_MAX = 20  # of the columns that do not fit
GAP = 2  # between columns
CUT = "..."

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Show rows of a table."""


@app.command()
@grouped_options
def show(
    where: ScopeOptions,
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="The table, as ingest takes it; default: that of --table, --app and --pipeline, or the one here.",
            show_default=False,
        ),
    ] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Show the bad lines of the table, from its quarantine table.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="COLUMNS", help="Only these columns, separated by commas, in this order."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of rows.")] = 10,
    json_: Json = False,
) -> None:
    """Show the first rows of a table's newest version.

    Any Delta or Iceberg table, read without Spark. On a terminal it shows the columns that fit and cuts long values;
    with --json values are whole. Exit code 2: there is no table.
    """
    require_tables(work="Rows are read with Arrow")
    from penstock.operations.tables.rows import rows_of  # loads Arrow

    found = rows_of(_table(where, address), quarantine=quarantine, columns=_names(columns), limit=limit)
    if json_:
        print_json(_document(found))
    else:
        _print(found)


def _table(where: ScopeOptions, address: str | None) -> "TablePaths":
    """Return the table that a command line means. A named one needs no data directory."""
    from penstock.operations.tables.rows import paths_of  # loads Arrow

    if address is not None and (where.table or where.pipeline or where.app_name):
        raise UsageError("TABLE names the table: leave out --table, --app and --pipeline.")
    named = address or where.table
    if named is not None:
        return paths_of(named, where.state)
    tables = where.scope().tables_meant
    if len(tables) != 1:
        raise UsageError(f"Which pipeline? Give --pipeline; there are {', '.join(sorted(tables))}.")
    [found] = tables.values()
    return found


def _names(text: str | None) -> Sequence[str]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"--columns {text!r} has an empty name, or one twice; write names separated by commas.")
    return names


def _document(found: "ShownRows") -> dict[str, Any]:
    names = [column.name for column in found.columns]
    return {
        "table": found.table,
        "format": found.format,
        "version": found.version,
        "rows_total": found.total,
        "columns": [{"name": column.name, "type": column.type} for column in found.columns],
        "rows": [dict(zip(names, map(in_json, row), strict=True)) for row in found.rows],
    }


def _print(found: "ShownRows") -> None:
    if found.version is None:
        talk(printable(f"No line was ever quarantined: there is no table {found.table}."))
        return
    names = [column.name for column in found.columns]
    if not found.rows:
        columns = ", ".join(names)
        talk(printable(f"The table {found.table} has no rows (version {found.version}); its columns: {columns}."))
        return
    cells = [[text_of(value) for value in row] for row in found.rows]
    if sys.stdout.isatty():
        _print_fitting(names, found.rows, cells)
    else:
        print_table(names, [[_cut(cell, CELL_CHARS_MAX) for cell in row] for row in cells], empty="")
    talk(_extent(found))


def _extent(found: "ShownRows") -> str:
    shown, version = len(found.rows), f"(version {found.version})"
    if found.total is None:
        return f"{counted(shown, 'row')} {version}; the table's log does not tell how many there are."
    if shown >= found.total:
        return f"{counted(shown, 'row')} {version}."
    return f"{shown:,} of {counted(found.total, 'row')} {version}; --limit shows more."


def _print_fitting(names: Sequence[str], values: Sequence[Sequence[Any]], cells: Sequence[Sequence[str]]) -> None:
    """Print the columns that fit into the terminal."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    lines = [[printable(name) for name in names], *([printable(cell) for cell in row] for row in cells)]
    wanted = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    leasts = [
        min(width, WIDTH_LEAST) if any(isinstance(value, str | bytes | dict | list) for value in column) else width
        for width, column in zip(wanted, zip(*values, strict=True), strict=True)
    ]
    widths = fitting(wanted, leasts, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, width in enumerate(widths):
        is_number = all(row[index] is None or isinstance(row[index], int | float | Decimal) for row in values)
        table.add_column(
            Text(_cut_to(lines[0][index], width)),
            width=width,
            no_wrap=True,
            overflow="crop",
            justify="right" if is_number else "left",
        )
    for row, shown in zip(values, lines[1:], strict=True):
        table.add_row(
            *(
                Text(_cut_to(cell, width), style="dim" if value is None else "")
                for value, cell, width in zip(row, shown, widths, strict=False)
            )
        )
    console.print(table)
    left_out = [printable(name) for name in names[len(widths) :]]
    if left_out:
        more = [CUT] if len(left_out) > NAMED_MAX else []
        listed = ", ".join([*left_out[:NAMED_MAX], *more])
        talk(f"{counted(len(left_out), 'more column')}: {listed}; --columns selects columns, --json prints all.")


def fitting(widths: Sequence[int], leasts: Sequence[int], total: int) -> Sequence[int]:
    """Return the widths of the columns that fit into ``total``, from the first on; at least one column.

    ``leasts`` are the widths below which a column is rather left out. What remains is shared by those that are cut.
    """
    kept = used = 0
    for least in leasts:
        used += least + (GAP if kept else 0)
        if kept and used > total:
            break
        kept += 1
    found = list(leasts[:kept])
    room = total - sum(found) - GAP * (kept - 1)
    if room < 0:  # a single column
        return [total]
    cut = sorted(range(kept), key=lambda one: widths[one] - found[one])  # what the narrower leave goes to the others
    for position, index in enumerate(cut):
        more = min(widths[index] - found[index], room // (kept - position))
        found[index] += more
        room -= more
    return found


def text_of(value: Any) -> str:
    """Return a value as text for a person. A text that could be taken for something else is in quotes."""
    if value is None:
        return NULL
    if isinstance(value, str):
        is_plain = value and value == value.strip() and value != NULL and not value.startswith('"')
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime):
        return str(in_json(value)).replace("T", " ")
    if isinstance(value, dict | list):
        return json.dumps(in_json(value), ensure_ascii=False)
    found = in_json(value)
    return found if isinstance(found, str) else json.dumps(found)


def in_json(value: Any) -> Any:
    """Return a value as JSON has it: decimals and times are texts, bytes too, with those that are not UTF-8 escaped."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(in_json(key)): in_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # decimals, UUIDs, durations


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}{CUT} ({len(text):,} characters)"


def _cut_to(text: str, width: int) -> str:
    """Return a text that takes at most ``width`` cells of a terminal."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - len(CUT)).rstrip() + CUT if width > len(CUT) else set_cell_size(text, width)
