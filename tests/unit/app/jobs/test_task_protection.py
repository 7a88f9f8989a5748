"""The protection of an ECS task while a message takes longer than a drain. Errors do not affect the work."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.app.jobs.task_protection import (
    CHECK_SECONDS,
    EXPIRES_IN_MINUTES,
    RENEW_SECONDS,
    TaskProtection,
    ask_agent,
    protections,
    refusal,
)
from penstock.config import load_settings
from penstock.events import (
    Event,
    LeaseLost,
    MessagesReceived,
    SettlementFailed,
    SettlementsApplied,
    TaskProtected,
    TaskProtectionFailed,
)
from penstock.messaging.settlement import Ack
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0
LONG_SECONDS = 22.0
PROTECTED = TaskProtected(expires_in_seconds=EXPIRES_IN_MINUTES * 60.0)


@dataclass
class Scene:
    """A protection whose agent records the requested minutes in ``requests``, or raises ``error``."""

    clock: FakeClock = field(default_factory=FakeClock)
    stop: StopSignal = field(default_factory=StopSignal)
    requests: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.protection = TaskProtection(self.request, long_seconds=LONG_SECONDS, stop=self.stop, clock=self.clock)

    def request(self, minutes: int) -> None:
        self.requests.append(minutes)
        if self.error is not None:
            raise self.error

    def receive(self, *ids: str) -> None:
        self.protection(MessagesReceived(queue="q", message_ids=ids, redelivered=0))

    def check(self, *, after_seconds: float = 0.0) -> int:
        """Check once, and return the number of requests to the agent."""
        self.clock.advance(after_seconds)
        before = len(self.requests)
        self.protection.check(self.events.append)
        return len(self.requests) - before


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_work_shorter_than_a_drain_is_not_protected(scene: Scene) -> None:
    assert scene.check() == 0
    for name in ("a", "b", "c", "d"):  # a message is always in flight
        scene.receive(name)
        assert scene.check(after_seconds=LONG_SECONDS - 1) == 0
        scene.protection(SettlementsApplied(queue="q", message_ids=(name,), settlements=(Ack(),)))
    assert scene.events == []


def test_longer_work_is_protected_until_it_ends_and_reported_once(scene: Scene) -> None:
    scene.receive("a", "b")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    for _ in range(20):
        assert scene.check(after_seconds=RENEW_SECONDS / 2) == 0
        assert scene.check(after_seconds=RENEW_SECONDS / 2) == 1
    scene.protection(SettlementsApplied(queue="q", message_ids=("a",), settlements=(Ack(),)))
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    scene.protection(SettlementsApplied(queue="q", message_ids=("b",), settlements=(Ack(),)))
    assert scene.check(after_seconds=RENEW_SECONDS) == 0
    assert set(scene.requests) == {EXPIRES_IN_MINUTES}
    assert scene.events == [PROTECTED]


def test_protection_after_an_expired_one_is_reported_again(scene: Scene) -> None:
    scene.receive("a")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    scene.protection(SettlementsApplied(queue="q", message_ids=("a",), settlements=(Ack(),)))
    scene.receive("b")
    assert scene.check(after_seconds=EXPIRES_IN_MINUTES * 60) == 1
    assert scene.events == [PROTECTED, PROTECTED]


@pytest.mark.parametrize(
    ("event", "requests"),
    [
        (LeaseLost(queue="q", message_id="a", attempt=1), 0),
        (SettlementFailed(queue="q", message_id="a", attempt=1, operation="ack", reason="gone", lost=True), 0),
        (SettlementFailed(queue="q", message_id="a", attempt=1, operation="ack", reason="away", lost=False), 1),
        (SettlementsApplied(queue="other", message_ids=("a",), settlements=(Ack(),)), 1),
    ],
)
def test_settled_and_lost_messages_end_the_protection(scene: Scene, event: Event, requests: int) -> None:
    scene.receive("a")
    assert scene.protection.wants(type(event))
    scene.protection(event)
    assert scene.check(after_seconds=LONG_SECONDS) == requests


def test_a_stopped_worker_requests_no_protection(scene: Scene) -> None:
    scene.receive("a")
    scene.stop.request()
    assert scene.check(after_seconds=LONG_SECONDS) == 0


def test_a_paused_worker_protects_messages_in_flight(scene: Scene) -> None:
    scene.receive("a")
    scene.stop.pause()
    assert scene.check(after_seconds=LONG_SECONDS) == 1


def test_a_failed_request_is_reported_once_and_retried(scene: Scene) -> None:
    scene.error = OSError("TASK_NOT_VALID: no detail")
    scene.receive("a")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    assert [scene.check(after_seconds=RENEW_SECONDS) for _ in range(3)] == [1, 1, 1]
    assert scene.events == [TaskProtectionFailed(error="OSError: TASK_NOT_VALID: no detail")]
    scene.error = None
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    assert scene.events[1:] == [PROTECTED]
    scene.error = ValueError("again")
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    assert scene.events[2:] == [TaskProtectionFailed(error="ValueError: again")]


def test_the_thread_requests_protection_and_ends_with_its_block(scene: Scene) -> None:
    scene.receive("a")
    requested = threading.Event()
    scene.clock.auto_advance = True
    with scene.protection.beside(lambda _: requested.set()):
        assert requested.wait(DEADLINE_SECONDS)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "penstock-task-protection"]
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert CHECK_SECONDS < RENEW_SECONDS < EXPIRES_IN_MINUTES * 60 / 2


def test_the_protection_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def protection_count() -> int:
        return len(protections(load_settings(), long_seconds=1, stop=StopSignal(), clock=FakeClock()))

    assert protection_count() == 0
    monkeypatch.setenv("PENSTOCK_WORKER_ECS_TASK_PROTECTION", "true")
    assert protection_count() == 1
    assert load_settings().ecs_agent_uri is None
    monkeypatch.setenv("ECS_AGENT_URI", "http://169.254.170.2/api/x")
    assert load_settings().ecs_agent_uri == "http://169.254.170.2/api/x"


class FakeAgent(ThreadingHTTPServer):
    """A server that responds like the agent of ECS (aws/amazon-ecs-agent, tmds/handlers/taskprotection/v1)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None, Any]] = []
        self.status = 200
        self.response: bytes = b""
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/abc"


class _Handler(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        agent = self.server
        assert isinstance(agent, FakeAgent)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        agent.requests.append((self.command, self.path, self.headers["Content-Type"], body))
        self.send_response(agent.status)
        self.send_header("Content-Length", str(len(agent.response)))
        self.end_headers()
        self.wfile.write(agent.response)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep stderr clean."""


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with FakeAgent() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_SECONDS)


PROTECTED_RESPONSE = {
    "protection": {"ExpirationDate": "2026-01-01T00:00:00Z", "ProtectionEnabled": True, "TaskArn": "arn:x"}
}
UNPROTECTED_RESPONSE = {"protection": {"ExpirationDate": None, "ProtectionEnabled": False, "TaskArn": "arn:x"}}
FAILURE = {"failure": {"Arn": "arn:x", "Detail": None, "Reason": "DEPLOYMENT_BLOCKED"}}
ERROR = {"requestID": "1", "error": {"Arn": "arn:x", "Code": "AccessDeniedException", "Message": "not authorized"}}


def test_the_request_to_the_agent_follows_the_documentation_of_aws(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # an unreachable proxy
    agent.response = json.dumps(PROTECTED_RESPONSE).encode()
    ask_agent(agent.url)(3)
    body = {"ProtectionEnabled": True, "ExpiresInMinutes": 3}
    assert agent.requests == [("PUT", "/api/abc/task-protection/v1/state", "application/json", body)]


@pytest.mark.parametrize(
    ("status", "response", "message"),
    [
        (200, FAILURE, "DEPLOYMENT_BLOCKED: no detail"),
        (400, ERROR, "AccessDeniedException: not authorized"),
        (500, PROTECTED_RESPONSE, "the agent returned the status 500"),
        (200, UNPROTECTED_RESPONSE, "does not confirm the protection"),
        (200, [], "is not a JSON object"),
    ],
)
def test_a_refusal_of_the_agent_is_an_error_with_its_reason(
    agent: FakeAgent, status: int, response: object, message: str
) -> None:
    agent.status, agent.response = status, json.dumps(response).encode()
    with pytest.raises(OSError, match=message):
        ask_agent(agent.url)(3)


@pytest.mark.parametrize("uri", [None, "", "http://127.0.0.1:1"])
def test_a_request_without_an_agent_is_an_error(uri: str | None) -> None:
    with pytest.raises(OSError, match="ECS_AGENT_URI" if not uri else "refused"):
        ask_agent(uri)(3)


@pytest.mark.parametrize("response", [b"", b"\xff", b"<html>", b"1", b'{"protection": true}'])
def test_an_invalid_response_is_a_refusal(response: bytes) -> None:
    assert refusal(response) is not None
