"""The systemd unit: it is valid, stops in time, and is not restarted after errors that a restart cannot fix."""

import configparser
import re
from pathlib import Path

import pytest
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY, run

from penstock.config import load_settings, unknown_variables
from penstock.errors import ConfigurationError, UsageError

FOLDER = DEPLOY / "systemd"
UNIT = "penstock-worker@.service"
PENSTOCK = "/opt/penstock/bin/penstock"


def text() -> str:
    return (FOLDER / UNIT).read_text()


def service() -> dict[str, list[str]]:
    """Return the values of each key of [Service]; a key may occur more than once."""
    found: dict[str, list[str]] = {}
    for line in text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def environment() -> dict[str, str]:
    return dict(one.split("=", 1) for one in service()["Environment"])


def verified(folder: Path, words: str) -> tuple[int, str]:
    """Return the exit code and output of `systemd-analyze verify`, with a program that exists here."""
    (folder / UNIT).write_text(words.replace(PENSTOCK, "/bin/true"))
    done = run("systemd-analyze", "verify", "--man=no", folder / "penstock-worker@shop.service", folder=folder)
    return done.returncode, done.stdout + done.stderr


def test_there_is_one_unit() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {UNIT, "penstock.sysusers.conf"}


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert verified(tmp_path, text()) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("KillMode=mixed", "KillMode=most", "Failed to parse kill mode"),
        ("ProtectClock=", "ProtectClocks=", "Unknown key"),
        ("TimeoutStopSec=90", "TimeoutStopSec=ninety", "ninety"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@systems", "@systems"),
    ],
)
def test_systemd_finds_mistakes(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    assert right in text()
    assert words in verified(tmp_path, text().replace(right, wrong))[1]


def test_systemd_waits_for_the_stop_timeout() -> None:
    check(
        text(),
        "systemd",
        granted_seconds=float(service()["TimeoutStopSec"][0]),
        setting=environment()["PENSTOCK_WORKER_STOP_TIMEOUT"],
    )


def test_only_penstock_gets_the_signal_and_errors_that_a_restart_cannot_fix_end_it() -> None:
    found = service()
    assert found["ExecStart"] == [f"{PENSTOCK} worker ${{APP}}"]
    assert (found["KillMode"], found["KillSignal"]) == (["mixed"], ["SIGTERM"])
    assert found["Restart"] == ["on-failure"]
    hopeless = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert hopeless == {UsageError.exit_code, ConfigurationError.exit_code}


def test_the_unit_may_write_only_its_data_directory() -> None:
    found = service()
    assert (found["ProtectSystem"], found["StateDirectory"]) == (["strict"], ["penstock/%i"])
    assert environment()["PENSTOCK_DATA_DIR"] == "%S/penstock/%i"
    assert (found["User"], found["NoNewPrivileges"], found["CapabilityBoundingSet"]) == (["penstock"], ["yes"], [""])
    assert "u penstock " in (FOLDER / "penstock.sysusers.conf").read_text()


def test_a_forbidden_system_call_fails_instead_of_killing_the_process() -> None:
    assert service()["SystemCallErrorNumber"] == ["EPERM"]


def test_every_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    for name in re.findall(r"\$\{(\w+)\}", text()):  # variables that the unit expects in its environment file
        monkeypatch.setenv(name, "shop:app")
    assert unknown_variables() == []
    # A file `ledger` in the folder of LoadCredential becomes the credential penstock_ledger in %d.
    assert service()["LoadCredential"] == ["penstock:/etc/penstock/%i.secrets"]
    assert environment()["PENSTOCK_SECRETS_DIR"] == "%d"
    (tmp_path / "penstock_ledger").write_text("postgresql://p:x@db/p")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(tmp_path))
    assert load_settings().ledger == "postgresql://p:x@db/p"


def test_the_unit_is_an_ini_file_with_the_sections_that_systemd_knows() -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text())
    assert parser.sections() == ["Unit", "Service", "Install"]
    assert service()["EnvironmentFile"] == ["/etc/penstock/%i.env"]
