"""The docs and the code say the same: every name a user meets is written down."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from penstock.cli.main import app
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.messaging.steps import Step

DOCS = Path(__file__).parents[2] / "docs"
README = Path(__file__).parents[2] / "README.md"
OPERATING = (DOCS / "operating.md").read_text(encoding="utf-8")


def verbs() -> Iterator[str]:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]  # a group, as the app has many verbs
        subcommands = getattr(command, "commands", None)
        yield from (f"{name} {sub}" for sub in subcommands) if subcommands else (name,)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_is_in_the_operating_guide(verb: str) -> None:
    assert f"penstock {verb}" in OPERATING


def test_every_option_of_ingest_is_in_the_operating_guide() -> None:
    group = typer.main.get_command(app)
    ingest = group.commands["ingest"]  # type: ignore[attr-defined]  # as above
    options = {option for parameter in ingest.params for option in parameter.opts if option.startswith("--")}
    assert {option for option in options if option not in OPERATING} == set()


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
