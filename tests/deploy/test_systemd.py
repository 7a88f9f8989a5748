"""Units: systemd finds nothing in them, stopping fits, and what no other try mends is not tried again."""

import configparser
import re
from pathlib import Path

import pytest
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY, run

from penstock.config import load_settings, unknown_variables
from penstock.errors import ConfigurationError, UsageError

FOLDER = DEPLOY / "systemd"
KINDS = ("monitor", "replayer", "worker")
PENSTOCK = "/opt/penstock/bin/penstock"


def text(kind: str) -> str:
    return (FOLDER / f"penstock-{kind}@.service").read_text()


def service(kind: str) -> dict[str, list[str]]:
    """The values of each key of [Service]; a key may come more than once."""
    found: dict[str, list[str]] = {}
    for line in text(kind).partition("[Service]")[2].partition("[Install]")[0].splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def environment(kind: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in service(kind)["Environment"])


def verified(folder: Path, kind: str, words: str) -> tuple[int, str]:
    """What systemd says of a unit with these words, whose program is one that is there."""
    (folder / f"penstock-{kind}@.service").write_text(words.replace(PENSTOCK, "/bin/true"))
    said = run("systemd-analyze", "verify", "--man=no", folder / f"penstock-{kind}@shop.service", folder=folder)
    return said.returncode, said.stdout + said.stderr


def test_all_of_them_are_looked_at() -> None:
    units = {f"penstock-{kind}@.service" for kind in KINDS}
    assert {path.name for path in FOLDER.iterdir()} == {*units, "penstock.sysusers.conf"}


@pytest.mark.parametrize("kind", KINDS)
def test_systemd_has_nothing_to_say(tmp_path: Path, kind: str) -> None:
    assert verified(tmp_path, kind, text(kind)) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("KillMode=mixed", "KillMode=most", "Failed to parse kill mode"),
        ("ProtectClock=", "ProtectClocks=", "Unknown key"),
        ("TimeoutStopSec=90", "TimeoutStopSec=ninety", "ninety"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@systems", "@systems"),
    ],
)
def test_systemd_would_say_something(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    assert right in text("worker")
    assert words in verified(tmp_path, "worker", text("worker").replace(right, wrong))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_systemd_waits_for_as_long_as_penstock_takes(kind: str) -> None:
    check(
        text(kind),
        "systemd",
        granted_seconds=float(service(kind)["TimeoutStopSec"][0]),
        setting=environment(kind)["PENSTOCK_STOP_TIMEOUT_SECONDS"],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_signal_goes_to_penstock_alone_and_what_no_try_mends_is_left(kind: str) -> None:
    found = service(kind)
    assert found["ExecStart"] == [f"{PENSTOCK} {kind} ${{APP}}"]
    assert (found["KillMode"], found["KillSignal"]) == (["mixed"], ["SIGTERM"])
    assert found["Restart"] == ["on-failure"]
    hopeless = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert hopeless == {UsageError.exit_code, ConfigurationError.exit_code}


@pytest.mark.parametrize("kind", KINDS)
def test_it_may_write_its_state_and_nothing_else(kind: str) -> None:
    found = service(kind)
    assert (found["ProtectSystem"], found["StateDirectory"]) == (["strict"], ["penstock/%i"])
    assert environment(kind)["PENSTOCK_STATE"] == "%S/penstock/%i"
    assert (found["User"], found["NoNewPrivileges"], found["CapabilityBoundingSet"]) == (["penstock"], ["yes"], [""])
    assert "u penstock " in (FOLDER / "penstock.sysusers.conf").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_the_system_that_is_not_granted_is_refused_and_kills_nobody(kind: str) -> None:
    assert service(kind)["SystemCallErrorNumber"] == ["EPERM"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_is_a_setting(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment(kind).items():
        monkeypatch.setenv(name, value)
    for name in re.findall(r"\$\{(\w+)\}", text(kind)):  # what the unit wants besides, from its file
        monkeypatch.setenv(name, "shop:app")
    assert unknown_variables() == []
    # A file `ledger` of the folder that LoadCredential names becomes the credential penstock_ledger in %d.
    assert service(kind)["LoadCredential"] == ["penstock:/etc/penstock/%i.secrets"]
    assert environment(kind)["PENSTOCK_SECRETS_DIR"] == "%d"
    (tmp_path / "penstock_ledger").write_text("postgresql://p:x@db/p")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(tmp_path))
    assert load_settings().ledger == "postgresql://p:x@db/p"


def test_a_replayer_may_answer_at_a_port_of_its_own() -> None:
    """What comes later in a unit wins; so the file of its own is after the one it shares with the worker."""
    shared = "/etc/penstock/%i.env"
    assert service("worker")["EnvironmentFile"] == service("monitor")["EnvironmentFile"] == [shared]
    assert service("replayer")["EnvironmentFile"] == [shared, "-/etc/penstock/%i.replayer.env"]


def test_the_units_are_ini_files_with_the_sections_that_systemd_knows() -> None:
    for kind in KINDS:
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text(kind))
        assert parser.sections() == ["Unit", "Service", "Install"]
