"""docs/fix/dead-letters.md lists each JSON field of the commands for dead letters."""

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from penstock.cli.dead.acting import replay_document
from penstock.cli.dead.documents import plan_document
from penstock.dead_letters.canary import CanaryResult
from penstock.dead_letters.groups import FailureGroup
from penstock.ledger.dead_letters import AuditRow
from penstock.operations.dead_letters.actions import ReplayReport
from penstock.operations.dead_letters.selection import DeadLetterPlan

PAGE = (Path(__file__).parents[2] / "docs" / "fix" / "dead-letters.md").read_text(encoding="utf-8")
PLAN = DeadLetterPlan(dead_letters=0, by_queue={}, groups=(), others=0, ids_met=frozenset())


def row(command: str) -> str:
    """Return the fields that the table lists for a command."""
    (found,) = re.findall(rf"^\| (?:{command}) \| (.*) \|$", PAGE, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("each group", [field.name for field in dataclasses.fields(FailureGroup)]),
        ("`audit`", [field.name for field in dataclasses.fields(AuditRow)]),
        ("`dead replay --dry-run`, `dead purge --dry-run`", plan_document(PLAN)),
        ("`dead replay`", replay_document(ReplayReport())),
        ("`dead replay`", get_args(get_type_hints(CanaryResult)["status"])),
        ("`dead replay`", get_args(get_type_hints(ReplayReport)["outcome"])),
    ],
)
def test_every_field_is_documented(command: str, fields: Collection[str]) -> None:
    assert [name for name in fields if f"`{name}`" not in row(command)] == []
