"""Reports sent to Sentry, Rollbar and a chat: their content, what they never contain, and errors of delivery."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.receivers import Receiver, receiver

from penstock import events
from penstock.errors import ConfigurationError
from penstock.events import Event
from penstock.messaging.failure import fingerprint
from penstock.monitoring.errors.hook import ErrorReporter
from penstock.monitoring.errors.occurrences import ErrorContext, ErrorHook
from penstock.monitoring.errors.services import ReportingSettings, services
from penstock.monitoring.errors.services.chat import TITLE_CHARS_MAX, TRACEBACK_CHARS_MAX
from penstock.monitoring.errors.services.service import ReportRejected

SECRET = "hunter2"
DEADLINE_SECONDS = 180.0


@pytest.fixture
def errors_receiver() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


def caught_error() -> ValueError:
    secret = SECRET  # noqa: F841 - must not leave the process
    try:
        raise ValueError(f"no answer from redis://app:{SECRET}@cache:6379/0")
    except ValueError as error:
        return error


def context(exception: BaseException | None = None, **changed: Any) -> ErrorContext:
    fields: dict[str, Any] = {
        "process": "worker",
        "handler": "resize",
        "worker": "w1",
        "fingerprint": fingerprint("resize", "ValueError", exception, None),
        "error": "no answer" if exception is None else str(exception),
        "final": True,
        "occurrences": 1,
        "traceback": "Traceback (most recent call last):\n  ...\nValueError: no answer\n",
        "queue": "thumbs",
        "message_id": "m1",
        "attempt": 3,
    }
    return ErrorContext(**{**fields, **changed})


def one(**settings: Any) -> ErrorHook:
    (hook,) = services(
        ReportingSettings(**{"service": "shop", "version": "1.2", "environment": "prod", **settings})
    ).values()
    return hook


# Sentry


def test_sentry_receives_the_failure_with_tags_and_fingerprint(errors_receiver: Receiver) -> None:
    error = caught_error()
    one(sentry_dsn=errors_receiver.sentry_dsn)(error, context(error))
    (event,) = errors_receiver.sentry_events()
    assert event["fingerprint"] == [context(error).fingerprint]
    assert event["tags"] == {
        "process": "worker",
        "handler": "resize",
        "queue": "thumbs",
        "fingerprint": context(error).fingerprint,
    }
    assert (event["environment"], event["release"], event["level"]) == ("prod", "shop@1.2", "error")
    assert event["contexts"]["penstock"]["message_id"] == "m1"
    (value,) = event["exception"]["values"]
    assert value["type"] == "ValueError"
    assert value["value"] == "no answer from redis://app:***@cache:6379/0"
    assert value["stacktrace"]["frames"][-1]["function"] == "caught_error"


def test_sentry_receives_no_local_variables(errors_receiver: Receiver) -> None:
    error = caught_error()
    one(sentry_dsn=errors_receiver.sentry_dsn)(error, context(error))
    (event,) = errors_receiver.sentry_events()
    assert not any("vars" in frame for frame in event["exception"]["values"][0]["stacktrace"]["frames"])
    del event["exception"]["values"][0]["stacktrace"]  # which shows code
    assert SECRET not in json.dumps(event)


def test_sentry_receives_a_failure_without_an_exception(errors_receiver: Receiver) -> None:
    one(sentry_dsn=errors_receiver.sentry_dsn)(None, context(final=False))
    (event,) = errors_receiver.sentry_events()
    assert event["exception"]["values"] == [{"type": "ValueError", "value": "no answer"}]
    assert event["level"] == "warning"
    assert event["extra"]["traceback"].startswith("Traceback")


def test_a_report_refused_by_sentry_raises_an_error(errors_receiver: Receiver) -> None:
    hook = one(sentry_dsn=errors_receiver.sentry_dsn)
    errors_receiver.status = 403
    with pytest.raises(ReportRejected, match="status_403"):
        hook(None, context())
    errors_receiver.status = 200
    hook(None, context())  # the error of the last report is forgotten


def test_an_unreachable_sentry_raises_an_error(errors_receiver: Receiver) -> None:
    dsn = errors_receiver.sentry_dsn.replace(f":{errors_receiver.port}", ":1")
    with pytest.raises(ReportRejected, match="Sentry did not"):
        one(sentry_dsn=dsn)(None, context())


def test_an_invalid_dsn_is_reported_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match="sentry_dsn is not a DSN") as refusal:
        one(sentry_dsn=f"https://{SECRET}")
    assert SECRET not in str(refusal.value)


# Libraries with global state are tested in separate processes


def run_in_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


BEGIN = """
import logging, sys
from penstock.monitoring.errors.services import ReportingSettings, services
from tests.integration.test_error_services import context, caught_error
def hook(**settings):
    given = {"service": "shop", "version": "1.2", "environment": "prod", **settings}
    return next(iter(services(ReportingSettings(**given)).values()))
error = caught_error()
"""


def test_the_sentry_service_patches_nothing_in_the_process(errors_receiver: Receiver) -> None:
    code = """
    before = (sys.excepthook, threading.excepthook, logging.Logger.callHandlers, threading.Thread.start)
    hook(sentry_dsn=sys.argv[1])(error, context(error))
    assert before == (sys.excepthook, threading.excepthook, logging.Logger.callHandlers, threading.Thread.start)
    import sentry_sdk
    assert not sentry_sdk.is_initialized()
    """
    run_in_process(BEGIN + "import threading\n" + textwrap.dedent(code), errors_receiver.sentry_dsn)
    assert len(errors_receiver.sentry_events()) == 1


def test_a_users_own_sentry_is_used(errors_receiver: Receiver) -> None:
    code = """
    import sentry_sdk
    sentry_sdk.init(dsn=sys.argv[1], environment="his own", default_integrations=False)
    sentry_sdk.set_tag("team", "blue")
    hook(sentry_dsn="http://key@127.0.0.1:1/1")(error, context(error))
    """
    run_in_process(BEGIN + textwrap.dedent(code), errors_receiver.sentry_dsn)
    (event,) = errors_receiver.sentry_events()
    assert event["environment"] == "his own"
    assert event["tags"]["team"] == "blue"
    assert event["tags"]["handler"] == "resize"


ROLLBAR = """
import rollbar
rollbar.SETTINGS["endpoint"] = sys.argv[1]
"""


def test_rollbar_receives_the_failure_without_variables_and_command_line(errors_receiver: Receiver) -> None:
    code = """
    rollbar_hook = hook(rollbar_token="0123456789")
    rollbar_hook(error, context(error))
    rollbar_hook(None, context(final=False))
    assert not logging.getLogger().handlers
    """
    ran = run_in_process(BEGIN + ROLLBAR + textwrap.dedent(code), errors_receiver.rollbar_endpoint, f"--token={SECRET}")
    assert ran.stderr == ""
    first, second = (document["data"] for document in errors_receiver.documents(2))
    trace = first["body"]["trace"]
    assert trace["exception"] == {"class": "ValueError", "message": "no answer from redis://app:***@cache:6379/0"}
    assert trace["frames"][-1]["method"] == "caught_error"
    assert not any({"locals", "args", "kwargs"} & set(frame) for frame in trace["frames"])
    assert "argv" not in first["server"]
    assert "person" not in first
    assert first["fingerprint"] == context(caught_error()).fingerprint
    assert first["custom"]["queue"] == "thumbs"
    assert (first["environment"], first["code_version"], first["level"]) == ("prod", "shop@1.2", "error")
    assert second["level"] == "warning"
    assert second["body"]["message"]["body"].startswith("no answer\n\nTraceback")
    del trace["frames"]  # which show code
    assert SECRET not in json.dumps(first)


@pytest.mark.parametrize("status", [401, 413, 429, 502, 500])
def test_a_report_refused_by_rollbar_raises_an_error(errors_receiver: Receiver, status: int) -> None:
    errors_receiver.status = status
    code = """
    from penstock.monitoring.errors.services.service import ReportRejected
    rollbar_hook = hook(rollbar_token="0123456789")
    for _ in range(2):
        try:
            rollbar_hook(error, context(error))
        except ReportRejected as refused:
            print(refused)
    """
    ran = run_in_process(BEGIN + ROLLBAR + textwrap.dedent(code), errors_receiver.rollbar_endpoint)
    assert ran.stdout.count("Rollbar did not take the report") == 2, ran.stdout
    assert ran.stderr == ""


def test_a_users_own_rollbar_is_used(errors_receiver: Receiver) -> None:
    code = """
    rollbar.init("his-token", environment="his own", handler="blocking", allow_logging_basic_config=False,
                 endpoint=sys.argv[1])
    hook(rollbar_token="0123456789")(error, context(error))
    """
    run_in_process(BEGIN + ROLLBAR + textwrap.dedent(code), errors_receiver.rollbar_endpoint)
    (document,) = errors_receiver.documents()
    assert (document["access_token"], document["data"]["environment"]) == ("his-token", "his own")


# Chats


def test_a_chat_receives_a_title_and_the_end_of_the_traceback(errors_receiver: Receiver) -> None:
    error = caught_error()
    long = f"redis://app:{SECRET}@cache " + "x" * 5_000 + "\nValueError: the end\n"
    one(notify_urls=(errors_receiver.chat_url,))(error, context(error, traceback=long, occurrences=7))
    (document,) = errors_receiver.documents()
    assert document["title"] == "shop [prod]: resize failed, 7 times"
    assert document["type"] == "failure"
    text = document["message"]
    assert "no answer from redis://app:***@cache:6379/0" in text
    assert "message: m1" in text
    assert text.endswith(("ValueError: the end\n", "ValueError: the end"))
    assert SECRET not in text
    assert len(text) < TRACEBACK_CHARS_MAX + 1_500


def test_a_title_names_the_subject_if_nothing_failed(errors_receiver: Receiver) -> None:
    one(notify_urls=(errors_receiver.chat_url,))(None, context(subject="1 object overdue"))
    (document,) = errors_receiver.documents()
    assert document["title"] == "shop [prod]: resize: 1 object overdue"


def test_a_title_is_one_line_of_limited_length(errors_receiver: Receiver) -> None:
    one(notify_urls=(errors_receiver.chat_url,))(None, context(handler="a\nb\x1b[31m" + "c" * 500))
    (document,) = errors_receiver.documents()
    assert document["title"].isprintable()
    assert len(document["title"]) <= TITLE_CHARS_MAX


def test_a_report_refused_by_a_chat_is_reported_without_its_address(errors_receiver: Receiver) -> None:
    errors_receiver.status = 500
    with pytest.raises(ReportRejected, match=r"notify_urls 1 \(json\) did not take") as refusal:
        one(notify_urls=(f"json://user:{SECRET}@127.0.0.1:{errors_receiver.port}/{SECRET}",))(None, context())
    assert SECRET not in str(refusal.value)


def test_an_invalid_address_is_named_by_its_number_and_scheme_only() -> None:
    with pytest.raises(ConfigurationError, match=r"address 2 of the setting .* \(slock://\.\.\.\)") as refusal:
        services(ReportingSettings(notify_urls=("json://127.0.0.1:1", f"slock://{SECRET}")))
    assert SECRET not in str(refusal.value)


# Together


def test_a_hanging_and_a_failing_service_do_not_affect_the_others(errors_receiver: Receiver) -> None:
    with receiver() as hanging, receiver() as failing:
        hanging.open.clear()
        failing.status = 500
        hooks = services(
            ReportingSettings(
                sentry_dsn=errors_receiver.sentry_dsn,
                notify_urls=(hanging.chat_url, failing.chat_url, errors_receiver.chat_url),
            )
        )
        events_emitted: list[Event] = []
        called: list[str] = []
        reporter = ErrorReporter(
            lambda _, context: called.append(context.error), worker="w1", emit=events_emitted.append, services=hooks
        )
        for number in range(3):
            reporter.report(ValueError(str(number)))
        assert len(errors_receiver.bodies(6)) == 6  # three for Sentry, three for the chat
        assert "notify_urls 1 (json)" in reporter.unfinished(0.0)
        assert called == ["0", "1", "2"]
        assert len(failing.bodies(3)) == 3
        hanging.open.set()
        assert reporter.flush(DEADLINE_SECONDS)
        failures = [event for event in events_emitted if isinstance(event, events.ErrorHookFailed)]
        assert [one.count for one in failures if one.hook == "notify_urls 2 (json)"] == [1]  # reported once a minute
        assert not [one for one in failures if one.hook in ("sentry", "notify_urls 3 (json)", "on_error")]
