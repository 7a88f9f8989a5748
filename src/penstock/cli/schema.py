"""`penstock admin schema`: show, compare and change the schema and the transform that a ledger remembers."""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.app.scope import Scope
from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import grouped_options
from penstock.cli.output import (
    Json,
    moment,
    print_fields,
    print_json,
    print_table,
    printable,
    talk,
    transform_text,
)
from penstock.cli.where import ScopeOptions, print_each
from penstock.errors import UsageError
from penstock.ledger.rules import made_with
from penstock.messaging.wording import counted
from penstock.pipeline.extra import require_tables

if TYPE_CHECKING:
    from penstock.operations.tables.schemas import SourceSchema
    from penstock.pipeline.spark.source.differences import Difference
    from penstock.pipeline.spark.source.remembered import Remembered, RememberedColumn

EARLIER = "recorded by an earlier version"
NOTHING = "No schema is remembered: the first ingest without --schema infers one, and one with --schema records it."
APP_HINT = "no schema is remembered; the app declares it in its code (ObjectSource(schema=...))"
SHOWN_MAX = 5  # objects of a sample

app = typer.Typer(no_args_is_help=True)


@app.command("show")
@grouped_options
def show(
    where: ScopeOptions,
    ddl: Annotated[bool, typer.Option("--ddl", help="Print only the columns, as --schema takes them.")] = False,
    json_: Json = False,
) -> None:
    """Show the remembered columns and dialect, and where they came from.

    For an inferred column with a type wider than that of most of its values it names the value that forced it, with
    object and line.
    """
    if ddl and json_:
        raise UsageError("--ddl and --json are two formats: give one.")
    require_tables(work="Schemas are compared with Arrow")
    documents: list[dict[str, Any]] = []
    scopes = where.scopes()
    print_each(scopes, lambda scope: documents.extend(_show(scope, ddl=ddl, quiet=json_)), quiet=json_ or ddl)
    if json_:
        print_json(documents)


def _show(scope: Scope, *, ddl: bool, quiet: bool) -> list[dict[str, Any]]:
    from penstock.operations.tables.schemas import schemas  # loads Arrow

    found = schemas(scope)
    recorded = [one for one in found if one.remembered is not None]
    if ddl and len(recorded) > 1:
        raise UsageError(
            f"--ddl is for one pipeline; give --pipeline, one of {', '.join(one.pipeline for one in found)}."
        )
    if not quiet:
        if not recorded:
            talk(NOTHING)
        for one in found:
            _print_schema(one, ddl=ddl, several=len(found) > 1)
    return [_document(one) for one in found]


def _print_schema(one: "SourceSchema", *, ddl: bool, several: bool) -> None:
    remembered = one.remembered
    if remembered is None:
        if not ddl and (one.transform is not None or one.merge is not None):
            print_fields({"pipeline": one.pipeline, **_rules(one)})
        if several:
            talk(printable(f"{one.pipeline}: {APP_HINT}"))
        return
    if ddl:
        print(printable(remembered.ddl))
        return
    origin = remembered.origin
    print_fields(
        {
            "pipeline": one.pipeline,
            "read as": dialect_text(_dialect(remembered)),
            "source": origin.source if origin is not None else "",
            "last change": f"{origin.how}, {moment(origin.at)}" if origin is not None else EARLIER,
            "sample": _sample(remembered),
            **_rules(one),
        }
    )
    print()
    print_table(
        ("column", "type", "nullable", "from", "since", "why"),
        [_row(column, remembered) for column in remembered.columns],
        empty="No columns.",
    )
    source = origin.source if origin is not None else ""
    for detail in origin.details if origin is not None else ():
        if detail.cause is not None:
            print(printable(detail.sentence(source)))
    for note in origin.notes if origin is not None else ():
        print(printable(f"Note: {note}."))


def _rules(one: "SourceSchema") -> dict[str, str]:
    merge = {} if one.merge is None else {"merged by key": one.merge}
    return {"transform": transform_text(one.transform), **merge}


def _row(column: "RememberedColumn", remembered: "Remembered") -> tuple[str, ...]:
    origin = column.origin
    if origin is None:
        return column.name, column.type, "yes", EARLIER, "", ""
    assert remembered.origin is not None, "a column's origin is part of it"
    evidence = origin.evidence
    why = evidence.reason(remembered.origin.source) if evidence is not None else ""
    return column.name, column.type, "yes", str(origin.how), moment(origin.at), why


def _sample(remembered: "Remembered") -> str:
    from penstock.pipeline.spark.source.evidence import short_uri

    origin = remembered.origin
    if origin is None or not origin.objects:
        return ""
    names = [short_uri(uri, origin.source) for uri in origin.objects]
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"{counted(len(names), 'object')}: {', '.join(names[:SHOWN_MAX])}{more}"


def _dialect(remembered: "Remembered") -> Mapping[str, Any]:
    from penstock.pipeline.spark.source.differences import dialect_of

    return dialect_of(remembered.read)


def dialect_text(dialect: Mapping[str, Any]) -> str:
    """Return a format and dialect on one line."""
    if not dialect:
        return "unknown format (recorded by an earlier version)"
    usual = {"quote": '"', "header": True, "format": dialect["format"]}
    options = {
        name: value for name, value in dialect.items() if value not in ("", [], 0, False) and usual.get(name) != value
    }
    parts = [
        name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {_plain(value)}"
        for name, value in options.items()
    ]
    if dialect.get("header") is False:
        parts.append("no header")
    return ", ".join([dialect["format"], *parts])


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def _document(one: "SourceSchema") -> dict[str, Any]:
    remembered = one.remembered
    if remembered is None:
        return {
            "pipeline": one.pipeline,
            "ddl": None,
            "dialect": {},
            "columns": [],
            "origin": None,
            "transform": one.transform,
            "merge": one.merge,
        }
    origin = remembered.origin
    return {
        "pipeline": one.pipeline,
        "ddl": remembered.ddl,
        "dialect": dict(_dialect(remembered)),
        "columns": [_column_document(column, remembered) for column in remembered.columns],
        "origin": None
        if origin is None
        else {
            "how": str(origin.how),
            "at": origin.at,
            "source": origin.source,
            "objects": list(origin.objects),
            "dialect": str(origin.dialect),
            "notes": list(origin.notes),
            "nested": [one.as_json() for one in origin.details],
        },
        "transform": one.transform,
        "merge": one.merge,
    }


def _column_document(column: "RememberedColumn", remembered: "Remembered") -> dict[str, Any]:
    origin = column.origin
    evidence = origin.evidence if origin is not None else None
    source = remembered.origin.source if remembered.origin is not None else ""
    return {
        "name": column.name,
        "type": column.type,
        "nullable": True,
        "from": str(origin.how) if origin is not None else None,
        "at": origin.at if origin is not None else None,
        "why": evidence.sentence(source) if evidence is not None else None,
        "evidence": evidence.as_json() if evidence is not None else None,
    }


@app.command("diff")
@grouped_options
def diff(
    where: ScopeOptions,
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="The folder or s3:// prefix; default: as remembered.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="DDL", help="Compare with these columns, not with the objects.")
    ] = None,
    source_option: Annotated[str | None, typer.Option("--source", hidden=True)] = None,
    json_: Json = False,
) -> None:
    """Compare the remembered schema with the present objects, or a given one, and with the table.

    A sample of the objects is read as at a first ingest; nothing is changed. Exit code 3: there are differences.
    """
    if source_option is not None:  # as `schema set --infer` has it
        raise UsageError(
            f"The source is an argument here: `penstock admin schema diff{where.request.options} "
            f"{shlex.quote(source_option)}`."
        )
    if source is not None and schema is not None:
        raise UsageError("SOURCE and --schema are two things to compare with: give one.")
    require_tables(work="Schemas are compared with Arrow")
    from penstock.operations.tables.schemas import compare  # loads Arrow

    found = compare(where.scope(), source=source, schema=schema)
    if json_:
        print_json({**dataclasses.asdict(found), "differences": [_difference(one) for one in found.differences]})
    else:
        _print_differences(found.differences, empty="No differences.")
        for note in found.notes:
            print(printable(f"Note: {note}."))
    if found.differences:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _difference(one: "Difference") -> dict[str, Any]:
    return {**dataclasses.asdict(one), "against": str(one.against)}


def _print_differences(found: Sequence["Difference"], *, empty: str) -> None:
    print_table(
        ("name", "remembered", "now", "in", "reason"),
        [(one.name, one.remembered or "-", one.found or "-", str(one.against), one.reason) for one in found],
        empty=empty,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectOptions:
    """The format and CSV dialect of a source."""

    format_: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="The format of the objects.")] = None
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", metavar="CHARACTER", help=r"CSV: the delimiter, such as ; or \t.")
    ] = None
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="CSV: the first line has the names of the columns, or not."),
    ] = None
    quote: Annotated[
        str | None, typer.Option("--quote", metavar="CHARACTER", help="CSV: the quote; empty: nothing is quoted.")
    ] = None
    comment: Annotated[
        str | None, typer.Option("--comment", metavar="CHARACTER", help="CSV: skip lines that begin with it.")
    ] = None
    skip_lines: Annotated[
        int | None, typer.Option("--skip-lines", min=0, max=1_000, help="CSV: lines before the header or first row.")
    ] = None
    null: Annotated[
        list[str] | None,
        typer.Option("--null", metavar="TEXT", help="CSV: a text that means NULL beside strings; repeatable."),
    ] = None

    @property
    def csv(self) -> dict[str, Any]:
        """The fields of the dialect that are given."""
        given = {
            "delimiter": self.delimiter,
            "header": self.header,
            "quote": self.quote,
            "comment": self.comment,
            "skip_lines": self.skip_lines,
            "null_marks": tuple(filter(None, self.null)) if self.null is not None else None,
        }
        found = {name: value for name, value in given.items() if value is not None}
        return {**found, "unnamed_first": False} if "header" in found else found


@app.command("set")
@grouped_options
def set_(
    where: ScopeOptions,
    dialect: DialectOptions,
    schema: Annotated[
        str | None,
        typer.Argument(metavar="DDL", help="All columns, such as 'id long, v double'; default: as they are."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="DDL", help="One column to change or add, such as 'v double'; repeatable."),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="Infer schema and dialect again from the present objects.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="SOURCE", help="With --infer: the objects; default: as remembered."),
    ] = None,
    transform: Annotated[
        bool, typer.Option("--transform", help="A transform makes the table's columns: do not compare them.")
    ] = False,
    json_: Json = False,
) -> None:
    """Change the remembered columns or dialect: the way back after a wrong inference.

    The next ingest uses them. Rows in the table stay as they are, and an ingest that runs with --watch keeps what it
    began with until it is restarted. Refused if the table has a column of another type.
    """
    is_given = schema is not None or bool(column) or dialect != DialectOptions()
    if infer == is_given:
        raise UsageError(
            "Give either --infer, or what is to change: all columns (DDL), --column, --format or an option of CSV."
        )
    if source is not None and not infer:
        raise UsageError("--source is for --infer: nothing else reads objects.")
    require_tables(work="Schemas are compared with Arrow")
    from penstock.operations.tables.schemas import SchemaChange, change  # loads Arrow

    wanted = SchemaChange(
        schema=schema,
        columns=tuple(column or ()),
        format=dialect.format_,
        csv=dialect.csv,
        infer=infer,
        source=source,
        has_transform=transform,
    )
    done = change(where.scope(), wanted)
    if json_:
        print_json(
            {
                "pipeline": done.pipeline,
                "ddl": done.after.ddl,
                "dialect": dict(_dialect(done.after)),
                "differences": [_difference(one) for one in done.differences],
            }
        )
        return
    _print_differences(done.differences, empty="Nothing changes: this is what is remembered.")
    if done.differences:
        talk("Remembered; the next ingest uses it. Rows in the table stay as they are.")
        talk("An ingest that runs with --watch keeps the former schema until it is restarted.")


@app.command("transform")
@grouped_options
def transform_(
    where: ScopeOptions,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:FUNCTION]", help="The transform of later rows.", show_default=False),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Later rows are made without a transform.")] = False,
    json_: Json = False,
) -> None:
    """Accept another transform for later rows of a table.

    A run with another transform than the one that made the rows is refused until then. Rows in the table stay as they
    are, until `penstock objects reprocess` reads their objects again. Workers that run now keep their transform until
    they are restarted.
    """
    if (name is None) != none:
        raise UsageError("Give the name of the transform, or --none.")
    if name is not None and not all(name.partition(":")):
        raise UsageError(f"The transform {name!r} is not of the form module:function.")
    from penstock.operations.tables.transforms import change_transform  # the ledger is slow to import

    done = change_transform(where.scope(), name or "")
    if json_:
        print_json(dataclasses.asdict(done))
    elif done.before == done.after:
        talk(printable(f"Nothing changes: the rows of {done.pipeline} are made {made_with(done.after)}."))
    else:
        before = "" if done.before is None else f", those before {made_with(done.before)}"
        print(printable(f"The next rows of {done.pipeline} are made {made_with(done.after)}{before}."))
