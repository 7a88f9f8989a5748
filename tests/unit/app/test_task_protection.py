"""A task of ECS is protected while something in it takes longer than a drain, and the work notices nothing of it."""

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
    DeliverySettled,
    Event,
    LeaseLost,
    MessagesReceived,
    SettlementFailed,
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
    """A protection whose agent is a list of what it was asked, or raises."""

    clock: FakeClock = field(default_factory=FakeClock)
    stop: StopSignal = field(default_factory=StopSignal)
    asked: list[int] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.protection = TaskProtection(self.ask, long_seconds=LONG_SECONDS, stop=self.stop, clock=self.clock)

    def ask(self, minutes: int) -> None:
        self.asked.append(minutes)
        if self.error is not None:
            raise self.error

    def receive(self, *ids: str) -> None:
        self.protection(MessagesReceived(queue="q", message_ids=ids, redelivered=0))

    def check(self, *, after_seconds: float = 0.0) -> int:
        """How often it asked."""
        self.clock.advance(after_seconds)
        before = len(self.asked)
        self.protection.check(self.told.append)
        return len(self.asked) - before


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_a_drain_lets_come_to_its_end_needs_no_protection(scene: Scene) -> None:
    assert scene.check() == 0
    for name in ("a", "b", "c", "d"):  # there is always something to do
        scene.receive(name)
        assert scene.check(after_seconds=LONG_SECONDS - 1) == 0
        scene.protection(DeliverySettled(queue="q", message_id=name, attempt=1, settlement=Ack()))
    assert scene.told == []


def test_longer_work_protects_until_it_ends_and_is_told_once(scene: Scene) -> None:
    scene.receive("a", "b")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    for _ in range(20):
        assert scene.check(after_seconds=RENEW_SECONDS / 2) == 0
        assert scene.check(after_seconds=RENEW_SECONDS / 2) == 1
    scene.protection(DeliverySettled(queue="q", message_id="a", attempt=1, settlement=Ack()))
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    scene.protection(DeliverySettled(queue="q", message_id="b", attempt=1, settlement=Ack()))
    assert scene.check(after_seconds=RENEW_SECONDS) == 0
    assert set(scene.asked) == {EXPIRES_IN_MINUTES}
    assert scene.told == [PROTECTED]


def test_protection_that_ran_out_is_told_anew_when_it_comes_back(scene: Scene) -> None:
    scene.receive("a")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    scene.protection(DeliverySettled(queue="q", message_id="a", attempt=1, settlement=Ack()))
    scene.receive("b")
    assert scene.check(after_seconds=EXPIRES_IN_MINUTES * 60) == 1
    assert scene.told == [PROTECTED, PROTECTED]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (LeaseLost(queue="q", message_id="a", attempt=1), 0),
        (SettlementFailed(queue="q", message_id="a", attempt=1, operation="ack", reason="gone", lost=True), 0),
        (SettlementFailed(queue="q", message_id="a", attempt=1, operation="ack", reason="away", lost=False), 1),
        (DeliverySettled(queue="other", message_id="a", attempt=1, settlement=Ack()), 1),
    ],
)
def test_what_is_ours_no_more_protects_no_more(scene: Scene, event: Event, left: int) -> None:
    scene.receive("a")
    assert scene.protection.wants(type(event))
    scene.protection(event)
    assert scene.check(after_seconds=LONG_SECONDS) == left


def test_what_is_stopped_asks_no_more(scene: Scene) -> None:
    scene.receive("a")
    scene.stop.request()
    assert scene.check(after_seconds=LONG_SECONDS) == 0


def test_a_drain_for_good_protects_what_it_waits_for(scene: Scene) -> None:
    scene.receive("a")
    scene.stop.pause()
    assert scene.check(after_seconds=LONG_SECONDS) == 1


def test_failures_are_told_once_and_asked_again(scene: Scene) -> None:
    scene.error = OSError("TASK_NOT_VALID: no detail")
    scene.receive("a")
    assert scene.check(after_seconds=LONG_SECONDS) == 1
    assert [scene.check(after_seconds=RENEW_SECONDS) for _ in range(3)] == [1, 1, 1]
    assert scene.told == [TaskProtectionFailed(error="OSError: TASK_NOT_VALID: no detail")]
    scene.error = None
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    assert scene.told[1:] == [PROTECTED]
    scene.error = ValueError("again")
    assert scene.check(after_seconds=RENEW_SECONDS) == 1
    assert scene.told[2:] == [TaskProtectionFailed(error="ValueError: again")]


def test_the_thread_asks_by_itself_and_ends_with_its_block(scene: Scene) -> None:
    scene.receive("a")
    heard = threading.Event()
    scene.clock.auto_advance = True
    with scene.protection.beside(lambda _: heard.set()):
        assert heard.wait(DEADLINE_SECONDS)
        (thread,) = [one for one in threading.enumerate() if one.name == "penstock-task-protection"]
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert CHECK_SECONDS < RENEW_SECONDS < EXPIRES_IN_MINUTES * 60 / 2


def test_it_is_off_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> int:
        return len(protections(load_settings(), long_seconds=1, stop=StopSignal(), clock=FakeClock()))

    assert made() == 0
    monkeypatch.setenv("PENSTOCK_WORKER_ECS_TASK_PROTECTION", "true")
    assert made() == 1
    assert load_settings().ecs_agent_uri is None
    monkeypatch.setenv("ECS_AGENT_URI", "http://169.254.170.2/api/x")
    assert load_settings().ecs_agent_uri == "http://169.254.170.2/api/x"


class Agent(ThreadingHTTPServer):
    """Answers as ECS's agent does (aws/amazon-ecs-agent, tmds/handlers/taskprotection/v1)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None, Any]] = []
        self.status = 200
        self.answer: bytes = b""
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/abc"


class _Handler(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        agent = self.server
        assert isinstance(agent, Agent)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        agent.requests.append((self.command, self.path, self.headers["Content-Type"], body))
        self.send_response(agent.status)
        self.send_header("Content-Length", str(len(agent.answer)))
        self.end_headers()
        self.wfile.write(agent.answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Not on our stderr."""


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_SECONDS)


YES = {"protection": {"ExpirationDate": "2026-01-01T00:00:00Z", "ProtectionEnabled": True, "TaskArn": "arn:x"}}
NO = {"protection": {"ExpirationDate": None, "ProtectionEnabled": False, "TaskArn": "arn:x"}}
FAILURE = {"failure": {"Arn": "arn:x", "Detail": None, "Reason": "DEPLOYMENT_BLOCKED"}}
ERROR = {"requestID": "1", "error": {"Arn": "arn:x", "Code": "AccessDeniedException", "Message": "not authorized"}}


def test_the_agent_is_asked_as_aws_documents_it(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # leads nowhere
    agent.answer = json.dumps(YES).encode()
    ask_agent(agent.url)(3)
    body = {"ProtectionEnabled": True, "ExpiresInMinutes": 3}
    assert agent.requests == [("PUT", "/api/abc/task-protection/v1/state", "application/json", body)]


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (200, FAILURE, "DEPLOYMENT_BLOCKED: no detail"),
        (400, ERROR, "AccessDeniedException: not authorized"),
        (500, YES, "the agent returned the status 500"),
        (200, NO, "does not confirm the protection"),
        (200, [], "is not a JSON object"),
    ],
)
def test_what_the_agent_refuses_is_an_error_with_its_reason(
    agent: Agent, status: int, answer: object, words: str
) -> None:
    agent.status, agent.answer = status, json.dumps(answer).encode()
    with pytest.raises(OSError, match=words):
        ask_agent(agent.url)(3)


@pytest.mark.parametrize("uri", [None, "", "http://127.0.0.1:1"])
def test_without_an_agent_it_is_an_error(uri: str | None) -> None:
    with pytest.raises(OSError, match="ECS_AGENT_URI" if not uri else "refused"):
        ask_agent(uri)(3)


@pytest.mark.parametrize("answer", [b"", b"\xff", b"<html>", b"1", b'{"protection": true}'])
def test_nonsense_is_no_protection(answer: bytes) -> None:
    assert refusal(answer) is not None
