"""`penstock doctor`: can this machine do the job?"""

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.output import AppName, Json, Pipeline, StateFolder, Table, print_json, printable

if TYPE_CHECKING:
    from penstock.app.findings import Finding

TryNotification = Annotated[
    bool,
    typer.Option(
        "--try-notification",
        help="Let S3 send a test event to the queue of each source: its bucket's notifications are written again.",
    ),
]


def doctor(
    table: Table = None,
    state: StateFolder = None,
    pipeline: Pipeline = None,
    app_name: AppName = None,
    try_notification: TryNotification = False,
    json_: Json = False,
) -> None:
    """Check Python, settings, disk, Java and Spark where they are needed, the table or the app's state here, or what is
    named, and what of it is in AWS. Exit code 3: something failed."""
    from itertools import chain

    from penstock.app.checks import machine_checks, spark_need, state_checks
    from penstock.app.findings import Finding, Verdict
    from penstock.app.scope import Asked

    asked = Asked(table=table, state=state, pipeline=pipeline, app=app_name)

    findings: list[Finding] = []
    for finding in chain(
        machine_checks(os.environ, spark=spark_need(asked)), state_checks(asked, try_notification=try_notification)
    ):
        findings.append(finding)
        if not json_:
            _print_finding(finding)
    if json_:
        print_json([dataclasses.asdict(finding) for finding in findings])
    if any(finding.verdict is Verdict.FAILED for finding in findings):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _print_finding(finding: "Finding") -> None:
    print(printable(f"{finding.verdict.value:<8} {finding.check:<12} {finding.found}"), flush=True)
    if finding.hint:
        print(printable(f"{'':<21} -> {finding.hint}"), flush=True)
