"""`penstock doctor`: check this machine, the settings and the services."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from penstock.app.scope import ScopeRequest
from penstock.cli.apps import AppArgument
from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError
from penstock.operations.doctor.checks import STARTING_SPARK, machine_checks, spark_need, state_checks, table_formats
from penstock.operations.doctor.findings import Finding, FindingLevel
from penstock.operations.doctor.spark import spark_checks
from penstock.operations.doctor.trial_errors import trial_errors

TryNotification = Annotated[
    bool,
    typer.Option(
        "--try-notification",
        help="Let S3 send a test event to the queue of each source. It rewrites the bucket's notifications.",
    ),
]
SendTestError = Annotated[
    bool,
    typer.Option(
        "--send-test-error",
        help="Only send a test error from each kind of process to the hook and every service.",
    ),
]
SparkOnly = Annotated[
    bool,
    typer.Option("--spark", help="Only check the configured Spark: its workers, and the functions that pipelines use."),
]
Master = Annotated[str | None, typer.Option("--master", help="With --spark: the Spark master to check.")]


@grouped_options
def doctor(
    where: ScopeOptions,
    app: AppArgument = None,
    try_notification: TryNotification = False,
    send_test_error: SendTestError = False,
    spark: SparkOnly = False,
    master: Master = None,
    json_: Json = False,
) -> None:
    """Check this machine, the settings and the services.

    It checks Python and the disk; the table or app in the current directory, or the one given, with its resources in
    AWS; and Java and Spark if they are needed. Exit code 3: a check failed.

    With --spark it only opens the configured Spark, or the one at --master, and checks it with small jobs: the workers'
    Python and packages, shipping, the data source, cancelling, shared folders, and access to S3 from tasks.

    With --send-test-error it only sends a test error to the app's on_error and to every service in the settings, once
    from each kind of process.
    """
    request = where.with_names(app).request
    findings: list[Finding] = []
    if spark and (send_test_error or try_notification):
        raise UsageError("--spark only checks Spark: leave out --send-test-error and --try-notification.")
    if master is not None and not spark:
        raise UsageError("--master is for --spark: add --spark to check the Spark at this address.")
    if send_test_error:
        found = _test_errors(request)
    elif spark:
        talk(STARTING_SPARK)
        found = spark_checks(request, master=master)
    else:
        found = _checks(request, try_notification=try_notification)
    for finding in found:
        findings.append(finding)
        if not json_:
            _print_finding(finding)
    if json_:
        print_json([dataclasses.asdict(finding) for finding in findings])
    elif not send_test_error:
        print(printable(_result(findings)))
    if any(finding.level is FindingLevel.FAILED for finding in findings):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _checks(request: ScopeRequest, *, try_notification: bool) -> Iterator[Finding]:
    yield from machine_checks(os.environ, spark=spark_need(request), formats=table_formats(request), say=talk)
    yield from state_checks(request, try_notification=try_notification)


def _result(findings: Sequence[Finding]) -> str:
    """Return one line that sums up all checks."""

    def checks(level: FindingLevel) -> list[str]:
        return list(dict.fromkeys(finding.check for finding in findings if finding.level is level))

    failed, warned = checks(FindingLevel.FAILED), checks(FindingLevel.WARNING)
    if not failed and not warned:
        return f"Result: all {len(findings)} checks passed."
    parts = [f"failed: {', '.join(failed)}"] if failed else ["nothing failed"]
    parts += [f"warnings: {', '.join(warned)}"] if warned else []
    return f"Result: {'; '.join(parts)}."


def _test_errors(request: ScopeRequest) -> Iterator[Finding]:
    if request.table is not None or request.state is not None or request.pipeline is not None:
        raise UsageError(
            "A test error is sent for an app, or for the settings here: leave out --table, --data-dir and --pipeline."
        )
    return trial_errors(request.app)


def _print_finding(finding: Finding) -> None:
    print(printable(f"{finding.level.value:<8} {finding.check:<12} {finding.found}"), flush=True)
    if finding.hint:
        print(printable(f"{'':<21} -> {finding.hint}"), flush=True)
