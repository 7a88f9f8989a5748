"""The docs and the code say the same: every name a user meets is written down."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.app.ingest import IngestReport
from penstock.app.status import Standing
from penstock.cli.main import app
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.ledger.records import ObjectState
from penstock.messaging.steps import Step
from penstock.pipeline.source.quarantine import QUARANTINE_SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
README = Path(__file__).parents[2] / "README.md"
OPERATING = (DOCS / "operating.md").read_text(encoding="utf-8")


def verbs() -> Iterator[str]:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]  # a group, as the app has many verbs
        subcommands = getattr(command, "commands", None)
        yield from (f"{name} {sub}" for sub in subcommands) if subcommands else (name,)


def options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (option for option in parameter.opts if option.startswith("--"))
    for sub in getattr(command, "commands", {}).values():
        yield from options(sub)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_is_in_the_operating_guide(verb: str) -> None:
    assert f"penstock {verb}" in OPERATING


@pytest.mark.parametrize("option", sorted({*options(typer.main.get_command(app))}))
def test_every_option_is_in_the_operating_guide(option: str) -> None:
    assert re.search(rf"{option}\b", OPERATING)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(IngestReport)])
def test_every_field_of_the_report_is_in_the_operating_guide(field: str) -> None:
    assert f"`{field}`" in OPERATING


@pytest.mark.parametrize("state", list(ObjectState))
def test_every_state_of_an_object_is_in_the_operating_guide(state: ObjectState) -> None:
    assert f"`{state.value}`" in OPERATING


def test_every_trouble_that_status_tells_is_in_the_operating_guide() -> None:
    nothing = Standing(
        table="t",
        table_version=None,
        objects={ObjectState.DEAD: 1, ObjectState.UNPROCESSED: 1},
        batches_committed=0,
        batches_unpublished=1,
        messages_visible=1,
        messages_in_flight=0,
        messages_delayed=0,
        oldest_visible_message_age_seconds=0.0,
        dead_letters=1,
        workers=(),
    )
    troubles = {*nothing.troubles, *dataclasses.replace(nothing, objects={}).troubles}
    assert len(troubles) == 5
    assert {name for name in (text.partition(":")[0] for text in troubles) if f"`{name}`" not in OPERATING} == set()


def test_every_column_of_the_quarantine_is_in_the_operating_guide() -> None:
    assert {name for name in QUARANTINE_SCHEMA.names if f"| `{name}` |" not in OPERATING} == set()


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_in_the_operating_guide(name: str) -> None:
    assert f"`{name}`" in OPERATING
    assert f"`PENSTOCK_{name.upper()}`" in OPERATING


@pytest.mark.parametrize("step", list(Step))
def test_every_step_is_in_the_guarantees(step: Step) -> None:
    assert f"`{step.value}`" in (DOCS / "guarantees.md").read_text(encoding="utf-8")


def test_every_exit_code_is_in_the_operating_guide() -> None:
    def codes(kind: type[PenstockError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(sub) for sub in kind.__subclasses__()))

    told = OPERATING[OPERATING.index("Exit codes:") :].split("\n\n")[0]
    assert {code for code in codes(PenstockError) if not re.search(rf"\b{code}\b", told)} == set()


@pytest.mark.parametrize("page", sorted([README, *DOCS.rglob("*.md")]), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
