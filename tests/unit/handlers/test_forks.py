"""A function that forks: its copy ends where the function ends, and has no part in the message."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.handlers.test_call import Desk, Keys, delivery
from tests.unit.handlers.test_process_call import Desk as ChildDesk
from tests.unit.pipeline.objects.scene import Scene, run

from penstock.messaging.message import Message
from penstock.messaging.settlement import Release

WENT_ON = 99  # the exit code of a copy that came out of the machinery


class Fork:
    """The function's: the copy comes to the end that is asked for, its parent goes on when it is gone."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self._us = os.getpid()
        self.code: int | None = None

    def __call__(self) -> None:
        copy = os.fork()
        if copy == 0:
            signal.alarm(60)  # it must not stay on beside the tests
            match self._ending:
                case "raises":
                    raise RuntimeError("in the copy")
                case "exits":
                    raise SystemExit(7)
            return
        self.code = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        raise ValueError("in the parent")

    def confined(self, work: Callable[[], Any]) -> Any:
        """Do that; a copy that comes out of it goes no further."""
        try:
            return work()
        finally:
            if os.getpid() != self._us:
                os._exit(WENT_ON)


def plain(fork: Fork, keys: Keys) -> Any:
    return Desk(lambda message: fork(), keys=keys).handler.begin([delivery()]).run()


def coroutine(fork: Fork, keys: Keys) -> Any:
    async def function(message: Message) -> None:
        fork()

    return asyncio.run(Desk(function, keys=keys).handler.begin([delivery()]).run())  # type: ignore[arg-type]


def batch(fork: Fork, keys: Keys) -> Any:
    def function(items: Sequence[Any]) -> None:
        fork()

    keys.told += ["begin {}", "fail ValueError: in the parent"]  # batches have no keys
    return Desk(function, batch=10).handler.begin([delivery()]).run()


def coroutine_of_batches(fork: Fork, keys: Keys) -> Any:
    async def function(items: Sequence[Any]) -> None:
        fork()

    keys.told += ["begin {}", "fail ValueError: in the parent"]  # batches have no keys
    return asyncio.run(Desk(function, batch=10).handler.begin([delivery()]).run())  # type: ignore[arg-type]


def cleanup(fork: Fork, keys: Keys) -> Any:
    desk = Desk(lambda message: None, keys=keys, cleanup=lambda message: fork())
    return desk.handler.begin([delivery(attempt=2)]).run()


@pytest.mark.parametrize(("ending", "code"), [("returns", 0), ("raises", 1), ("exits", 7)])
@pytest.mark.parametrize("way", [plain, coroutine, batch, coroutine_of_batches, cleanup])
def test_a_copy_ends_with_the_function(
    way: Callable[[Fork, Keys], Any], ending: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    fork, keys = Fork(ending), Keys()
    (settlement,) = fork.confined(lambda: way(fork, keys)).values()
    assert fork.code == code
    assert isinstance(settlement, Release), "the parent's failure counts"
    assert keys.told == ["begin {}", "fail ValueError: in the parent"]
    assert ("RuntimeError: in the copy" in capfd.readouterr().err) == (ending == "raises")


def test_a_copy_made_for_the_key_ends_too() -> None:
    fork = Fork("returns")

    def key(message: Message) -> str:
        fork()
        return "key"

    desk = Desk(lambda message: None, keys=Keys(), idempotency=key)
    (settlement,) = fork.confined(desk.handler.begin([delivery()]).run).values()
    assert fork.code == 0
    assert isinstance(settlement, Release)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_copy_of_a_function_for_objects_ends_too(tmp_path: Path, is_async: bool) -> None:
    scene, fork = Scene(tmp_path), Fork("returns")

    async def later(obj: Any) -> None:
        fork()

    scene.announce(scene.put("a"))
    handler = scene.handler(later if is_async else lambda obj: fork())
    (settlement,) = fork.confined(lambda: run(scene.begin(handler)[1])).values()
    assert fork.code == 0
    assert isinstance(settlement, Release)
    scene.close()


def test_a_copy_of_a_child_process_ends_too() -> None:
    desk = ChildDesk()
    (settlement,) = desk.begin("fork and return").run().values()
    desk.handler.close()
    assert settlement.reason == "ValueError: in the parent"
