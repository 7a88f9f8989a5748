"""`penstock doctor`: can this machine do the job?"""

import os

import typer

from penstock.cli.output import Json, StateFolder, Table, print_json, printable

CHECK_FOUND_PROBLEMS = 3


def doctor(table: Table = None, state: StateFolder = None, json_: Json = False) -> None:
    """Check Python, settings, Java, Spark, disk, and the table here or the one named. Exit code 3: something failed."""
    from itertools import chain

    from penstock.app.checks import Finding, Verdict, machine_checks, table_checks

    findings: list[Finding] = []
    for finding in chain(machine_checks(os.environ), table_checks(table, state)):
        findings.append(finding)
        if not json_:
            print(printable(f"{finding.verdict.value:<8} {finding.check:<12} {finding.found}"), flush=True)
    if json_:
        print_json([{"check": f.check, "verdict": f.verdict.value, "found": f.found} for f in findings])
    if any(finding.verdict is Verdict.FAILED for finding in findings):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)
