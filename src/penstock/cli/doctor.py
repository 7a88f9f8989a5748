"""`penstock doctor`: can this machine do the job?"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable
from penstock.cli.where import ScopeOptions
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.scope import ScopeRequest
    from penstock.operations.doctor.findings import Finding

TryNotification = Annotated[
    bool,
    typer.Option(
        "--try-notification",
        help="Let S3 send a test event to the queue of each source: its bucket's notifications are written again.",
    ),
]
SendTestError = Annotated[
    bool,
    typer.Option(
        "--send-test-error",
        help="Instead: send a test error as each kind of process does, to the hook and every service.",
    ),
]


@grouped_options
def doctor(
    where: ScopeOptions,
    app: Annotated[str | None, typer.Argument(metavar="[APP]", help="The same as --app.")] = None,
    try_notification: TryNotification = False,
    send_test_error: SendTestError = False,
    json_: Json = False,
) -> None:
    """Check Python, settings, disk, Java and Spark where they are needed, the table or the app's state here, or what is
    named, and what of it is in AWS. Exit code 3: something failed.

    With --send-test-error only that is done: a test error goes to the app's on_error and to every service that the
    settings name, once from each kind of process."""
    from penstock.operations.doctor.findings import Finding, FindingLevel

    asked = where.led_by(app).asked
    findings: list[Finding] = []
    for finding in _test_errors(asked) if send_test_error else _checks(asked, try_notification=try_notification):
        findings.append(finding)
        if not json_:
            _print_finding(finding)
    if json_:
        print_json([dataclasses.asdict(finding) for finding in findings])
    elif not send_test_error:
        print(printable(_result(findings)))
    if any(finding.verdict is FindingLevel.FAILED for finding in findings):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _checks(asked: "ScopeRequest", *, try_notification: bool) -> "Iterator[Finding]":
    from penstock.operations.doctor.checks import machine_checks, spark_need, state_checks

    yield from machine_checks(os.environ, spark=spark_need(asked))
    yield from state_checks(asked, try_notification=try_notification)


def _result(findings: "Sequence[Finding]") -> str:
    """Return one line that honours every check."""
    from penstock.operations.doctor.findings import FindingLevel

    def checks(verdict: FindingLevel) -> list[str]:
        return list(dict.fromkeys(one.check for one in findings if one.verdict is verdict))

    failed, warned = checks(FindingLevel.FAILED), checks(FindingLevel.WARNING)
    if not failed and not warned:
        return f"Result: all {len(findings)} checks are well."
    told = [f"failed: {', '.join(failed)}"] if failed else ["nothing failed"]
    told += [f"warnings: {', '.join(warned)}"] if warned else []
    return f"Result: {'; '.join(told)}."


def _test_errors(asked: "ScopeRequest") -> "Iterator[Finding]":
    from penstock.operations.doctor.trial_errors import trial_errors

    if asked.table is not None or asked.state is not None or asked.pipeline is not None:
        raise UsageError(
            "A test error is sent of an app, or of the settings here: leave --table, --state and --pipeline out."
        )
    return trial_errors(asked.app)


def _print_finding(finding: "Finding") -> None:
    print(printable(f"{finding.verdict.value:<8} {finding.check:<12} {finding.found}"), flush=True)
    if finding.hint:
        print(printable(f"{'':<21} -> {finding.hint}"), flush=True)
