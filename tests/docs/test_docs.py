"""Docs and code agree: every name that users see is documented."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import penstock
import penstock.testing
from penstock.cli.lazy import LazyGroup
from penstock.cli.main import app
from penstock.config import Audience, Settings, audience, dotted, variable
from penstock.errors import PenstockError
from penstock.ledger.records import ObjectState
from penstock.messaging.death import Death
from penstock.messaging.delivery import PreviousAttempt
from penstock.messaging.steps import Step
from penstock.operations.ingest.ingest import NOT_IN_JSON, IngestReport
from penstock.operations.status.model import Status
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.testing import plugin

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DECISIONS = DOCS / "why" / "decisions"
README = ROOT / "README.md"
COMMANDS = (DOCS / "run" / "commands.md").read_text(encoding="utf-8")
SETTINGS = (DOCS / "run" / "settings.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (DOCS / "fix" / "troubleshooting.md").read_text(encoding="utf-8")
READING_TABLES = (DOCS / "use" / "reading-tables.md").read_text(encoding="utf-8")
HANDLERS = (DOCS / "use" / "handlers.md").read_text(encoding="utf-8")
TESTING = (DOCS / "use" / "testing.md").read_text(encoding="utf-8")


ROOT_GROUP: Any = typer.main.get_command(app)


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return each command below a group that is no group itself, with its full name."""
    for one in group.commands:
        command = group.load(one) if isinstance(group, LazyGroup) else group.commands[one]
        full = f"{name} {one}".strip()
        yield from commands(command, full) if hasattr(command, "commands") else ((full, command),)


ALL_COMMANDS = dict(commands(ROOT_GROUP))


def options() -> set[str]:
    """Return the options that people may give. Hidden ones are between processes of Penstock."""
    return {
        option
        for command in (ROOT_GROUP, *ALL_COMMANDS.values())
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for option in parameter.opts
        if option.startswith("--")
    }


@pytest.mark.parametrize("name", sorted(ALL_COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    assert f"`penstock {name}" in COMMANDS


@pytest.mark.parametrize("option", sorted(options()))
def test_every_option_is_documented(option: str) -> None:
    assert re.search(rf"{option}\b", COMMANDS)


def test_internal_options_are_not_documented() -> None:
    assert "--stop-timeout" in options()
    assert "--lifeline" not in options()
    assert "--lifeline" not in COMMANDS


@pytest.mark.parametrize("field", sorted({field.name for field in dataclasses.fields(IngestReport)} - {*NOT_IN_JSON}))
def test_every_field_of_the_ingest_report_is_documented(field: str) -> None:
    assert f"`{field}`" in COMMANDS


@pytest.mark.parametrize("state", list(ObjectState))
def test_every_state_of_an_object_is_documented(state: ObjectState) -> None:
    assert f"`{state.value}`" in COMMANDS


def test_every_problem_that_status_reports_is_in_troubleshooting() -> None:
    nothing = Status(
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
    troubles = {*nothing.problem_texts, *dataclasses.replace(nothing, objects={}).problem_texts}
    assert len(troubles) == 5
    names = {re.sub(r"^1 message waits, ", "messages wait in ..., ", text.partition(":")[0]) for text in troubles}
    assert {name for name in names if f"`{name}`" not in TROUBLESHOOTING} == set()


def test_every_column_of_the_quarantine_table_is_documented() -> None:
    assert {name for name in QUARANTINE_SCHEMA.names if f"| `{name}` |" not in READING_TABLES} == set()


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_documented(name: str) -> None:
    match audience(name):
        case Audience.ADVANCED:
            title = "## Advanced settings"
        case Audience.HIDDEN:
            title = "## For tests"
        case _:
            title = "## Common settings"
    table = SETTINGS.partition(title)[2].partition("\n## ")[0]
    assert f"| `{dotted(name)}` | `{variable(name)}` |" in table


@pytest.mark.parametrize("step", list(Step))
def test_every_step_is_in_the_guarantees(step: Step) -> None:
    assert f"`{step.value}`" in (DOCS / "why" / "guarantees.md").read_text(encoding="utf-8")


def test_every_exit_code_is_documented() -> None:
    def codes(kind: type[PenstockError]) -> set[int]:
        return {kind.exit_code}.union(*(codes(sub) for sub in kind.__subclasses__()))

    documented = COMMANDS[COMMANDS.index("Exit codes:") :].split("\n\n")[0]
    assert {code for code in codes(PenstockError) if not re.search(rf"\b{code}\b", documented)} == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", sorted([README, ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]), ids=lambda page: page.name
)
def test_every_link_between_pages_resolves(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def fields(*kinds: type[Any]) -> list[str]:
    """Return the public fields, properties and methods of dataclasses."""
    return sorted({name for kind in kinds for name in dir(kind) if not name.startswith("_")})


def section(title: str) -> str:
    """Return a section of the handlers' reference."""
    _, found, rest = HANDLERS.partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def names_in(text: str) -> set[str]:
    """Return the words in code spans: `max_attempts`, `retrying(...)`, `Queue("orders", Order)`."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize(
    ("title", "function"),
    [
        ("handler", penstock.Handlers.handler),
        ("object_handler", penstock.Handlers.object_handler),
        ("pipeline", penstock.Handlers.pipeline),
        ("Sending", penstock.App.send),
        ("Queue", penstock.Queue),
        ("pipeline", penstock.ObjectSource),
        ("pipeline", penstock.DeltaSink),
    ],
)
def test_every_parameter_is_in_its_section_of_the_reference(title: str, function: Callable[..., Any]) -> None:
    assert set(parameters(function)) - names_in(section(title)) == set()


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("Context", (penstock.Context, PreviousAttempt, penstock.Message)),
        ("Context", (penstock.BatchContext,)),
        ("object_handler", (penstock.ObjectContext,)),
        ("pipeline", (penstock.Pipeline,)),
    ],
)
def test_every_field_of_an_argument_is_in_the_reference(title: str, kinds: tuple[type[Any], ...]) -> None:
    documented = names_in(section(title)) | {"declaration", "belongs_to", "name"}  # of pipelines, only for the app
    assert set(fields(*kinds)) - documented == set()


def test_every_field_of_a_published_batch_is_in_the_reference() -> None:
    assert set(penstock.PublishedBatch.model_fields) - names_in(section("pipeline")) == set()


def test_every_field_of_a_death_is_in_the_reference() -> None:
    assert {field.name for field in dataclasses.fields(Death)} - names_in(section("What becomes of a message")) == set()


@pytest.mark.parametrize("name", sorted(penstock.__all__))
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert name in names_in(HANDLERS)


@pytest.mark.parametrize("name", sorted(penstock.testing.__all__))
def test_every_public_name_for_tests_is_in_their_guide(name: str) -> None:
    assert name in names_in(TESTING)


@pytest.mark.parametrize("fixture", [name for name in vars(plugin) if name.startswith("penstock_")])
def test_every_fixture_is_in_the_guide_to_tests(fixture: str) -> None:
    assert fixture in names_in(TESTING)


@pytest.mark.parametrize(
    "page",
    [ROOT / "CONTRIBUTING.md", *(page for page in DOCS.rglob("*.md") if page.parent != DECISIONS)],
    ids=lambda page: page.name,
)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(tests/[^`*]+?)`", page.read_text(encoding="utf-8"))
    assert {path for path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("name", ["messages", "files"])
def test_each_tutorial_names_the_packages_to_install_before_their_use(name: str) -> None:
    tutorial = (DOCS / "learn" / f"{name}.md").read_text(encoding="utf-8")
    assert 0 < tutorial.index("pip install pytest") < tutorial.index("\npytest ")
    assert "clone" in tutorial.partition("\n## ")[0]


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (DECISIONS / "README.md").read_text(encoding="utf-8")))
    assert {page.name for page in DECISIONS.glob("*.md")} - {"README.md"} == listed
