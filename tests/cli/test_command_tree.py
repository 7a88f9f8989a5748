"""The command tree: its help lists what the modules define, and no module is imported without need."""

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.cli.conftest import Call

from penstock.cli.commands import ADMIN_COMMANDS, COMMANDS, INSPECT, REPAIR, RUN, SET_UP
from penstock.cli.dead.acting import replay
from penstock.cli.lazy import LazyCommand

HELP_LINE_CHARACTERS = 100
BASE = {"penstock.cli", "penstock.cli.commands", "penstock.cli.exits", "penstock.cli.lazy", "penstock.cli.main"}
BASE |= {"penstock.cli.output", "penstock.cli.streams", "penstock.errors", "penstock"}
REPORT = """
import contextlib, io, sys
from penstock.cli.main import main
sys.argv = ["penstock", *{arguments!r}]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(*(name for name in sys.modules if name.partition(".")[0] == "penstock"))
"""


def imported(*arguments: str) -> set[str]:
    """Return the modules of Penstock that a call imports."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(arguments=arguments)], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_help_of_replay_names_both_dlqs() -> None:
    text = " ".join((replay.__doc__ or "").split())
    assert text.startswith("Send dead letters from QUEUE-dlq and QUEUE-dead back to their queues. ")
    assert "Exit code 1: no message's origin is known;" in text


def test_help_imports_no_command() -> None:
    assert imported("--help") <= BASE
    assert imported("admin", "--help") <= BASE | {"penstock.cli.admin"}


def test_the_help_of_a_command_imports_only_that_command() -> None:
    commands = {one.target.partition(":")[0] for one in (*COMMANDS, *ADMIN_COMMANDS)}
    assert imported("init", "--help") & commands == {"penstock.cli.init"}


WITHOUT_LEDGER = ("worker", "send", "queues", "init", "workers", "config", "monitor", "outbox", "logs")
HEAVY = {"pyspark", "pyarrow", "boto3", "botocore", "deltalake", "numpy", "pandas", "opentelemetry", "sentry_sdk"}


EACH = """
import importlib, json, sys
added = {{}}
for module in {modules!r}:
    importlib.import_module(module)
    added[module] = sorted({unwanted!r} & set(sys.modules) - set().union(*added.values()))
print(json.dumps({{module: names for module, names in added.items() if names}}))
"""


@pytest.mark.parametrize("has_ledger", [False, True], ids=["without the ledger", "with it"])
def test_no_module_of_a_command_imports_a_heavy_library(has_ledger: bool) -> None:
    commands = [one for one in (*COMMANDS, *ADMIN_COMMANDS) if (one.name not in WITHOUT_LEDGER) is has_ledger]
    assert commands
    code = EACH.format(
        modules=[one.target.partition(":")[0] for one in commands],
        unwanted=HEAVY if has_ledger else HEAVY | {"sqlalchemy"},
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {}  # modules, and what they were the first to import


@pytest.mark.parametrize("one", [*COMMANDS, *ADMIN_COMMANDS], ids=lambda one: one.name)
def test_the_listed_help_is_the_first_line_of_the_commands_help(one: LazyCommand) -> None:
    first = " ".join(one.load().help.partition("\n\n")[0].split())
    assert first == one.help
    assert len(one.help) <= HELP_LINE_CHARACTERS


def test_the_root_has_four_panels_and_fourteen_commands_beside_admin() -> None:
    panels: dict[str | None, list[str]] = {}
    for one in COMMANDS:
        panels.setdefault(one.panel, []).append(one.name)
    assert panels == {
        RUN: ["worker", "run", "ingest", "send"],
        INSPECT: ["status", "web", "queues", "objects", "table"],
        REPAIR: ["dead", "quarantine", "reconcile"],
        SET_UP: ["init", "demo", "doctor", "admin"],
    }


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["gc"], "penstock admin gc"),
        (["admin", "demo"], "penstock demo"),
        (["top"], "penstock status --watch"),
        (["worker", "run", "shop:app"], "'penstock worker APP'"),
        (["worker", "ps"], "'penstock admin workers list'"),
        (["worker", "ps", "--json"], "'penstock admin workers list'"),
        (["worker", "drain", "--all"], "'penstock admin workers drain'"),
        (["worker", "stop", "--all"], "'penstock admin workers stop'"),
        (["stats"], "status"),
        (["admin", "gcc"], "gc"),
    ],
)
def test_an_unknown_command_gets_a_hint(penstock: Call, arguments: Sequence[str], hint: str) -> None:
    result = penstock(*arguments)
    assert (result.exit_code, result.out) == (2, "")
    assert hint in result.err
