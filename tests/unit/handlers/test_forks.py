"""Functions that fork: the forked child exits at the end of the function and does not settle the message."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.handlers.test_call import HandlerHarness, Keys, delivery
from tests.unit.handlers.test_process_call import ProcessHarness
from tests.unit.pipeline.objects.scene import Scene, run

from penstock.messaging.message import Message
from penstock.messaging.settlement import Release

RAN_ON = 99  # exit code of a child that ran on past the handler


class Fork:
    """Fork as a user's function does. The child ends as `ending` says; the parent waits for it, then fails."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self._parent_pid = os.getpid()
        self.code: int | None = None

    def __call__(self) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # it must not outlive the tests
            match self._ending:
                case "raises":
                    raise RuntimeError("in the child")
                case "exits":
                    raise SystemExit(7)
            return
        self.code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        raise ValueError("in the parent")

    def confined(self, work: Callable[[], Any]) -> Any:
        """Do the work; end a child that returns from it."""
        try:
            return work()
        finally:
            if os.getpid() != self._parent_pid:
                os._exit(RAN_ON)


def plain(fork: Fork, keys: Keys) -> Any:
    return HandlerHarness(lambda message: fork(), keys=keys).handler.begin([delivery()]).run()


def coroutine(fork: Fork, keys: Keys) -> Any:
    async def function(message: Message) -> None:
        fork()

    return asyncio.run(HandlerHarness(function, keys=keys).handler.begin([delivery()]).run())  # type: ignore[arg-type]


def batch(fork: Fork, keys: Keys) -> Any:
    def function(items: Sequence[Any]) -> None:
        fork()

    keys.calls += ["begin {}", "fail ValueError: in the parent"]  # batches have no keys
    return HandlerHarness(function, batch=10).handler.begin([delivery()]).run()


def coroutine_of_batches(fork: Fork, keys: Keys) -> Any:
    async def function(items: Sequence[Any]) -> None:
        fork()

    keys.calls += ["begin {}", "fail ValueError: in the parent"]  # batches have no keys
    return asyncio.run(HandlerHarness(function, batch=10).handler.begin([delivery()]).run())  # type: ignore[arg-type]


def cleanup(fork: Fork, keys: Keys) -> Any:
    harness = HandlerHarness(lambda message: None, keys=keys, cleanup=lambda message: fork())
    return harness.handler.begin([delivery(attempt=2)]).run()


@pytest.mark.parametrize(("ending", "code"), [("returns", 0), ("raises", 1), ("exits", 7)])
@pytest.mark.parametrize("call", [plain, coroutine, batch, coroutine_of_batches, cleanup])
def test_a_forked_child_ends_with_the_function(
    call: Callable[[Fork, Keys], Any], ending: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    fork, keys = Fork(ending), Keys()
    (settlement,) = fork.confined(lambda: call(fork, keys)).values()
    assert fork.code == code
    assert isinstance(settlement, Release), "the parent's failure counts"
    assert keys.calls == ["begin {}", "fail ValueError: in the parent"]
    assert ("RuntimeError: in the child" in capfd.readouterr().err) == (ending == "raises")


def test_a_child_forked_by_the_key_function_ends_with_it() -> None:
    fork = Fork("returns")

    def key(message: Message) -> str:
        fork()
        return "key"

    harness = HandlerHarness(lambda message: None, keys=Keys(), idempotency=key)
    (settlement,) = fork.confined(harness.handler.begin([delivery()]).run).values()
    assert fork.code == 0
    assert isinstance(settlement, Release)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_child_forked_by_an_object_handler_ends_with_it(tmp_path: Path, is_async: bool) -> None:
    scene, fork = Scene(tmp_path), Fork("returns")

    async def later(obj: Any) -> None:
        fork()

    scene.announce(scene.put("a"))
    handler = scene.handler(later if is_async else lambda obj: fork())
    (settlement,) = fork.confined(lambda: run(scene.begin(handler)[1])).values()
    assert fork.code == 0
    assert isinstance(settlement, Release)
    scene.close()


def test_a_child_forked_in_an_isolated_process_ends_with_the_function() -> None:
    harness = ProcessHarness()
    (settlement,) = harness.begin("fork and return").run().values()
    harness.handler.close()
    assert settlement.reason == "ValueError: in the parent"
