"""`penstock objects retract`: take the rows of objects out of the table."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.options import grouped_options, object_uri
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.tables import pipelines
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.messaging.wording import counted

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.operations.objects.retract import RetractPlan, RetractResult


@grouped_options
def retract(
    uris: Annotated[list[str], typer.Argument(metavar="OBJECT...", help="Addresses or paths of objects.")],
    where: ScopeOptions,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for `objects show` and the audit log.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report which rows would leave the table, change nothing.")
    ] = False,
    yes: output.Yes = False,
    json_: Json = False,
) -> None:
    """Take the rows of objects out of the table.

    All rows of the objects leave in one commit, whichever batches wrote them. The objects are not read again, by no
    listing, redelivery or reconcile, until `penstock objects retry` processes them again. The objects themselves and
    earlier versions of the table are not touched. Asks first. Exit code 1: not confirmed; 2: no such object was
    processed; 75: an object is being processed, or the rows leave with the next publish.
    """
    if "" in uris:
        raise UsageError("OBJECT is empty; give the address or path of an object.")
    if not (yes or dry_run):
        output.require_terminal("objects retract")
    scope = where.scope()
    _refuse_handlers(scope)
    named = [object_uri(uri) for uri in uris]
    result: RetractResult | None = None
    with pipelines(app=None, name=None, where=where, logs=False) as found:
        from penstock.operations.objects.retract import plan
        from penstock.operations.objects.retract import retract as retract_objects

        planned = plan(found, named, scope.aws)
        _note_left_out(planned)
        asked = bool(planned.versions) and not (yes or dry_run)
        if asked:
            _print_plan(planned)
        is_declined = asked and not output.confirmed(f"Take the rows of {_objects(planned)} out of the table?")
        if planned.versions and not (dry_run or is_declined):
            result = retract_objects(planned, reason=reason)
    if is_declined:
        raise output.declined("retracted")
    if json_:
        print_json(_document(planned, result, dry_run=dry_run))
    elif result is not None:
        _print_result(planned, result)
    elif dry_run and planned.versions:
        _print_plan(planned)
    if not planned.versions:
        raise typer.Exit(UsageError.exit_code)
    if result is not None and result.unpublished is not None:
        talk(
            printable(
                f"The rows are still in the table ({result.unpublished}). They leave it with the next publish: of a "
                "worker, of ingest, or by `penstock admin publish`."
            )
        )
        raise typer.Exit(TEMPORARY)


TEMPORARY = 75


def _refuse_handlers(scope: "Scope") -> None:
    name = scope.pipeline
    if name is not None and name in scope.tableless:
        raise UsageError(f"{name} is an object handler: it writes no table, so there are no rows to take out.")


def _note_left_out(planned: "RetractPlan") -> None:
    for uri in planned.unknown:
        talk(printable(f"The ledger knows no object {uri}."))
    for uri, state in planned.left_alone:
        talk(printable(f"{uri} is {state}, and left alone."))


def _print_plan(planned: "RetractPlan") -> None:
    print_table(
        ("object", "versions", "rows in the table", "files"),
        [(uri, versions, _rows(planned, uri), _files(planned, uri)) for uri, versions in planned.versions.items()],
        empty="No such objects.",
    )


def _print_result(planned: "RetractPlan", result: "RetractResult") -> None:
    rows = counted(sum(_rows(planned, uri) for uri in planned.versions), "row")
    verb = "leave the table" if result.unpublished is not None else "left the table"
    print(printable(f"{_objects(planned)} retracted with batch {result.seq}; {rows} {verb}."))


def _objects(planned: "RetractPlan") -> str:
    return counted(len(planned.versions), "object")


def _rows(planned: "RetractPlan", uri: str) -> int:
    return planned.rows[uri].rows if uri in planned.rows else 0


def _files(planned: "RetractPlan", uri: str) -> int:
    return planned.rows[uri].files if uri in planned.rows else 0


def _document(planned: "RetractPlan", result: "RetractResult | None", *, dry_run: bool) -> dict[str, Any]:
    return {
        "pipeline": planned.pipeline.pipeline,
        "dry_run": dry_run,
        "batch": None if result is None else result.seq,
        "visible": result is not None and result.unpublished is None,
        "objects": [
            {"object": uri, "versions": versions, "rows": _rows(planned, uri), "files": _files(planned, uri)}
            for uri, versions in planned.versions.items()
        ],
        "not_processed": [{"object": uri, "state": state} for uri, state in planned.left_alone],
        "unknown": planned.unknown,
    }
