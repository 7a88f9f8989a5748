"""Versions of few objects from two workers in any order: the table shows what the store holds, one version of each.

The model is a few dictionaries: the store's present version of each object, and when each version was the present one.
The table is computed from the ledger's batches alone, as a publish does it: the rows of the addresses that a batch
replaces leave, then its own are added.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import VersionsMoved
from penstock.ledger import Ledger
from penstock.ledger.archive import ARCHIVING, ArchiveFile
from penstock.ledger.records import (
    AttemptFailure,
    BatchOutcome,
    Candidate,
    Committed,
    FailedObject,
    ObjectClaims,
    ObjectResult,
    OnChange,
    OriginalMessage,
    replaced_objects,
)

KEYS = ("a", "b")
VERSIONS = (1, 2, 3)
WORKERS = (0, 1)
ALWAYS_KNOWN = 1e12  # of a listing: objects found replaced are sent again by hand, see `World.deliver_current`

Version = tuple[str, int]
STEP = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from(VERSIONS)),
    st.tuples(st.just("deliver"), st.sampled_from(KEYS), st.sampled_from(VERSIONS)),
    st.tuples(st.just("claim"), st.sampled_from(WORKERS), st.integers(1, 4)),
    st.tuples(st.just("read"), st.sampled_from(WORKERS), st.just(0)),
    st.tuples(st.just("commit"), st.sampled_from(WORKERS), st.just(0)),
    st.tuples(st.just("die"), st.sampled_from(WORKERS), st.just(0)),
    st.tuples(st.just("archive"), st.just(0), st.just(0)),
)


def address(key: str) -> str:
    return f"file:///{key}"


def id_of(version: Version) -> bytes:
    return f"{version[0]}{version[1]}".encode().ljust(16, b"-")


VERSION_OF = {id_of((key, number)): (key, number) for key in KEYS for number in range(1, 6)}


@dataclass
class Work:
    """The claim of one worker, and the versions that its run found to be the store's."""

    claim: ObjectClaims
    read: set[Version] | None = None


@dataclass
class World:
    ledger: Ledger
    pipeline: str
    on_change: OnChange = OnChange.REPLACE
    store: dict[str, int] = field(default_factory=dict)
    time: int = 0
    present: defaultdict[Version, list[int]] = field(default_factory=lambda: defaultdict(list))  # when it was current
    committed: defaultdict[str, list[tuple[int, Version]]] = field(default_factory=lambda: defaultdict(list))
    messages: list[tuple[Version, float]] = field(default_factory=list)
    works: dict[int, Work] = field(default_factory=dict)
    attempts: int = 0
    sent: float = 1.0

    def step(self, name: str, first: object, second: object) -> None:
        self.time += 1
        for version in self.store.items():
            self.present[version].append(self.time)
        getattr(self, name)(first, second)

    def put(self, key: str, number: int) -> None:
        self.store[key] = number
        self.present[(key, number)].append(self.time)
        self.deliver(key, number)

    def deliver(self, key: str, number: int) -> None:
        """Send a message, which may be a duplicate or of a version that never existed."""
        self.sent += 1.0
        self.messages.append(((key, number), self.sent))

    def claim(self, worker: int, count: int) -> None:
        if worker in self.works or not self.messages:
            return
        taken, self.messages = self.messages[:count], self.messages[count:]
        self.attempts += 1
        claim = self.ledger.claim(
            self.pipeline,
            [_candidate(version, sent) for version, sent in taken],
            attempt_id=f"{self.pipeline}-{self.attempts}",
            worker=f"{worker}",
            lease_seconds=600.0,
            on_change=self.on_change,
        )
        self.messages += [one for one in taken if id_of(one[0]) in claim.busy]
        if claim.claimed:
            self.works[worker] = Work(claim=claim)

    def read(self, worker: int, _: object) -> None:
        work = self.works.get(worker)
        if work is not None and work.read is None:
            named = {VERSION_OF[id] for id in work.claim.claimed}
            work.read = {version for version in named if self.store.get(version[0]) == version[1]}

    def commit(self, worker: int, _: object) -> None:
        work = self.works.get(worker)
        if work is None or work.read is None:
            return
        del self.works[worker]
        ids = sorted(work.claim.claimed)
        outcome = BatchOutcome(
            pipeline=self.pipeline,
            attempt_id=work.claim.attempt_id,
            processed=[self.result(work, id) for id in ids if VERSION_OF[id] in work.read],
            failed=[
                FailedObject(object_id=id, failure=AttemptFailure.SUPERSEDED, reason="replaced", uncounted=True)
                for id in ids
                if VERSION_OF[id] not in work.read
            ],
            on_change=self.on_change,
            since_seq=work.claim.next_seq,
        )
        try:
            done = self.ledger.commit(outcome)
        except VersionsMoved:
            self._release(work)
            return
        if done is not None:
            for version in sorted(work.read):
                self.committed[version[0]].append((self.time, version))
            self.record(outcome, done)

    def record(self, outcome: BatchOutcome, done: Committed) -> None:
        """Take note of a commit."""

    def result(self, _: Work, object_id: bytes) -> ObjectResult:
        return ObjectResult(object_id=object_id, rows=1, lines_quarantined=0)

    def die(self, worker: int, _: object) -> None:
        work = self.works.pop(worker, None)
        if work is not None:
            self._release(work)

    def archive(self, _: object, __: object) -> None:
        after_seq = self.ledger.progress(self.pipeline, ARCHIVING)
        retiring = self.ledger.archives.retiring(
            self.pipeline, after_seq=after_seq, up_to_seq=1_000_000, objects_max=100
        )
        if retiring is None:
            return
        found = sum(len(page) for page in self.ledger.archives.retired_objects(retiring))
        file = ArchiveFile(uri="file:///archive", objects=found, bytes=1)
        assert self.ledger.archives.retire(retiring, archive_id=f"{self.pipeline}-{self.time}", file=file)

    def _release(self, work: Work) -> None:
        self.ledger.abandon(work.claim.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
        self.messages += [(VERSION_OF[id], one.original_message.enqueued_at) for id, one in work.claim.claimed.items()]

    def table(self) -> dict[str, list[int]]:
        """Return the versions whose rows the table shows, by key."""
        shown: dict[str, list[int]] = {key: [] for key in KEYS}
        committed = {key: iter(found) for key, found in self.committed.items()}
        by_time: defaultdict[int, list[Version]] = defaultdict(list)
        for found in committed.values():
            for time, version in found:
                by_time[time].append(version)
        batches = list(self.ledger.batches_after(self.pipeline, 0))
        assert len(batches) == len(by_time)
        for batch, time in zip(batches, sorted(by_time), strict=True):
            for key in KEYS:
                if address(key) in replaced_objects(batch.record.replaces):
                    shown[key].clear()
            for key, number in by_time[time]:
                shown[key].append(number)
        return shown

    def check(self) -> None:
        """Each version that counts was the store's after every other one was committed; the table has the last."""
        for found in self.committed.values():
            for (before, other), (time, version) in pairwise(found):
                if other != version:
                    assert any(before <= at <= time for at in self.present[version])
        assert self.table() == {key: [number for _, (_, number) in self.committed[key][-1:]] for key in KEYS}

    def finish(self) -> None:
        """Process everything: one worker after another, and a message for each object whose version is unknown."""
        for worker in WORKERS:
            self.step("read", worker, 0)
            self.step("commit", worker, 0)
        for _ in range(20):
            self._deliver_current()
            if not self.messages:
                return
            while self.messages:
                self.step("claim", 0, 4)
                self.step("read", 0, 0)
                self.step("commit", 0, 0)
        raise AssertionError("messages never end")

    def _deliver_current(self) -> None:
        ids = [id_of(version) for version in self.store.items()]
        now = self.ledger.now()
        known = self.ledger.known_among(self.pipeline, ids, seen_at=now + 1.0, on_change=self.on_change)
        self.messages += [(VERSION_OF[id], now + 2.0) for id in ids if id not in known]


def _candidate(version: Version, sent: float) -> Candidate:
    key, number = version
    return Candidate(
        object_id=id_of(version),
        bucket="file",
        key=key.encode(),
        size_bytes=1,
        uri=address(key),
        original_message=OriginalMessage(message_id=f"m-{sent}", enqueued_at=sent),
        etag=f"{number}",
    )


NUMBERS = count(1)


@cache
def shared_ledger() -> Ledger:
    """Return one ledger for all examples, each with its own pipeline: creating the tables takes longer than most."""
    return Ledger.open("sqlite://")


def check(steps: Sequence[tuple[str, object, object]], kind: Callable[..., World] = World) -> World:
    world = kind(ledger=shared_ledger(), pipeline=f"pipeline-{next(NUMBERS)}")
    world.ledger.ensure_pipeline(world.pipeline)
    for name, first, second in steps:
        world.step(name, first, second)
        world.check()
    world.finish()
    world.check()
    assert world.table() == {key: [world.store[key]] if key in world.store else [] for key in KEYS}
    return world


@settings(max_examples=40)
@given(st.lists(STEP, max_size=40))
def test_the_table_shows_one_version_of_each_object_and_in_the_end_the_stores(
    steps: Sequence[tuple[str, object, object]],
) -> None:
    check(steps)


@pytest.mark.slow
@settings(max_examples=2_000)
@given(st.lists(STEP, min_size=20, max_size=80))
def test_the_table_shows_one_version_of_each_object_after_many_steps(
    steps: Sequence[tuple[str, object, object]],
) -> None:
    check(steps)
