"""The trial jobs of `penstock doctor`, on a Spark that answers badly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.pipeline.spark import trial


def test_a_job_that_a_cancel_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for executors, which never come."""
    cancels: list[str] = []
    released = threading.Event()

    @contextmanager
    def tagged(*_: str) -> Iterator[None]:
        yield

    monkeypatch.setattr(trial, "runtime_of", lambda _: SimpleNamespace(tagged=tagged, cancel=cancels.append))
    monkeypatch.setattr(trial, "CANCEL_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(trial, "GIVE_UP_SECONDS", 0.05)
    waiting = SimpleNamespace(collect=released.wait)
    spark: Any = SimpleNamespace(range=lambda *_: SimpleNamespace(mapInArrow=lambda *_: waiting))
    try:
        assert not trial.cancel_by_tag(spark)
        assert cancels
    finally:
        released.set()
