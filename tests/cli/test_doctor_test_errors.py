"""`penstock doctor --send-test-error`: which services accept the error, from each kind of process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.conftest import Call
from tests.integration.receivers import Receiver, receiver

from penstock.app.telemetry import Process

KINDS = {*get_args(Process), "child"}
CHECK_FOUND_PROBLEMS = 3


@pytest.fixture
def errors_receiver() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def app(here: Path, name: str, body: str = "") -> str:
    """Write an app whose hook records its calls."""
    (here / f"{name}.py").write_text(
        "from pathlib import Path\nfrom penstock import App\n"
        "def record(error, context):\n"
        f"    {body or 'pass'}\n"
        "    with Path('errors.txt').open('a') as file:\n"
        "        file.write(f'{context.process} {context.error}\\n')\n"
        "app = App.from_config(on_error=record)\n"
    )
    return f"{name}:app"


def test_without_a_hook_or_service_a_warning_is_printed(penstock: Call) -> None:
    result = penstock("doctor", "--send-test-error")
    assert result.exit_code == 0
    assert result.out.startswith("warning  errors       failures are reported nowhere")
    assert "sentry_dsn" in result.out


def test_each_kind_of_process_reaches_the_hook_and_every_service(
    penstock: Call, here: Path, errors_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALERTS_SENTRY_DSN", errors_receiver.sentry_dsn)
    monkeypatch.setenv("PENSTOCK_LOG_ENVIRONMENT", "prod")
    with receiver() as chat:
        monkeypatch.setenv("PENSTOCK_ALERTS_NOTIFY_URLS", json.dumps([chat.chat_url]))
        result = penstock("doctor", "--send-test-error", app(here, "told_shop"), "--json")
        found = {finding["check"]: (finding["level"], finding["found"]) for finding in result.document}
        assert set(found) == KINDS
        hooked = {kind for kind, (_, words) in found.items() if "on_error" in words}
        assert hooked == KINDS - {"supervisor", "ingest", "lambda"}  # these load no app
        assert all(level == "ok" and words.endswith("sentry, notify_urls 1 (json)") for level, words in found.values())
        events = errors_receiver.sentry_events(len(KINDS))
        assert len(chat.documents(len(KINDS))) == len(KINDS)
    values = [event["exception"]["values"][-1] for event in events]
    assert {value["value"].partition("for the process ")[2].partition(".")[0] for value in values} == KINDS
    assert {event["tags"]["process"] for event in events} == set(get_args(Process))
    recorded = (here / "errors.txt").read_text().splitlines()
    assert len(recorded) == len(hooked)


def test_services_that_refuse_the_test_error_are_named(
    penstock: Call, here: Path, errors_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors_receiver.status = 500
    monkeypatch.setenv(
        "PENSTOCK_ALERTS_NOTIFY_URLS", json.dumps([errors_receiver.chat_url.replace("//", "//user:hunter2@")])
    )
    result = penstock("doctor", "--send-test-error", "--app", app(here, "failing_shop", "raise ValueError('a slip')"))
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert "failed   worker       on_error: ValueError: a slip" in result.out
    assert "failed   ingest       notify_urls 1 (json): ReportRejected: notify_urls 1 (json) did not take" in result.out
    assert "hunter2" not in result.out + result.err
    assert "accepted by" not in result.out


def test_an_invalid_setting_is_reported_once(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALERTS_SENTRY_DSN", "http://hunter2")
    result = penstock("doctor", "--send-test-error")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert result.out.startswith("failed   settings     The setting alerts.sentry_dsn is not a DSN")
    assert result.out.count("\n") == 1
    assert "hunter2" not in result.out


def test_options_of_other_checks_are_refused(penstock: Call) -> None:
    assert penstock("doctor", "--send-test-error", "--table", "x").exit_code == 2
    assert penstock("doctor", "shop:app", "--app", "other:app").exit_code == 2
