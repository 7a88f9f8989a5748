"""Requests to moto take turns, and yield their turn while they wait."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from tests.services.moto_server import Serialised, Turn

PATIENCE_SECONDS = 60.0


class Stage:
    """An application whose requests run the test's functions, in their own threads."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.log: list[str] = []
        self._serve = Serialised(lambda environ, start_response: environ["does"](), self.turn)
        self._pool = ThreadPoolExecutor(4)

    def request(self, does: Callable[[], Any], **environ: Any) -> "Future[Any]":
        return self._pool.submit(self._serve, {"does": does, **environ}, None)


def test_a_request_begins_when_the_previous_one_has_ended() -> None:
    stage, entered, leave = Stage(), threading.Event(), threading.Event()

    def first() -> None:
        entered.set()
        assert leave.wait(PATIENCE_SECONDS)
        stage.log.append("first")

    one = stage.request(first)
    assert entered.wait(PATIENCE_SECONDS)
    two = stage.request(lambda: stage.log.append("second"))
    assert not wait([two], timeout=0.2).done
    leave.set()
    wait([one, two], PATIENCE_SECONDS)
    assert stage.log == ["first", "second"]


def test_a_waiting_request_yields_its_turn_even_if_its_condition_holds() -> None:
    stage, done, checked = Stage(), threading.Event(), threading.Event()

    def polling() -> None:
        while not done.is_set():
            stage.turn.wait_for(lambda: True)
            checked.set()

    poll = stage.request(polling)
    assert checked.wait(PATIENCE_SECONDS)
    stage.request(done.set).result(PATIENCE_SECONDS)
    poll.result(PATIENCE_SECONDS)


def test_the_body_of_a_request_is_read_before_its_turn() -> None:
    stage, reading, arrived = Stage(), threading.Event(), threading.Event()

    class Slow(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            reading.set()
            assert arrived.wait(PATIENCE_SECONDS)
            return b"body"

    slow = stage.request(lambda: stage.log.append("slow"), CONTENT_LENGTH="4", **{"wsgi.input": Slow()})
    assert reading.wait(PATIENCE_SECONDS)
    stage.request(lambda: stage.log.append("quick")).result(PATIENCE_SECONDS)
    arrived.set()
    slow.result(PATIENCE_SECONDS)
    assert stage.log == ["quick", "slow"]


def test_a_waiting_request_is_aborted_when_the_server_leaves() -> None:
    stage, checked = Stage(), threading.Event()

    def polling() -> None:
        while True:
            stage.turn.wait_for(lambda: False)
            checked.set()

    poll = stage.request(polling)
    assert checked.wait(PATIENCE_SECONDS)
    with stage.turn:
        stage.turn.times_shut += 1
    with pytest.raises(ConnectionAbortedError):
        poll.result(PATIENCE_SECONDS)
