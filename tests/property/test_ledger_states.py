"""The ledger against a small model of its rules, in any order of claims, commits, crashes and passing time.

The model uses no SQL and no code of the ledger: one dictionary for objects and one for attempts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples

from penstock.errors import ClaimLost
from penstock.ledger import Ledger
from penstock.ledger.archive import ArchiveFile
from penstock.ledger.records import (
    AttemptFailure,
    AttemptState,
    BatchOutcome,
    Candidate,
    FailedObject,
    ObjectResult,
    ObjectState,
    OriginalMessage,
)
from penstock.messaging.steps import Step

pytestmark = pytest.mark.generated

PIPELINE = "file:///table"
NAMES = "abcd"
WORKERS = ("w-1", "w-2")
LEASE_SECONDS = 10.0

MESSAGES = st.fixed_dictionaries(
    {
        "message_id": st.sampled_from(["m-1", "m-2"]),
        "age": st.sampled_from([0.0, 5.0, 50.0]),
        "replay_id": st.sampled_from([None, None, "r-1", "r-2"]),
    }
)
ENDINGS = st.lists(st.sampled_from([None, None, *AttemptFailure]), min_size=len(NAMES), max_size=len(NAMES))


@dataclass
class ObjectModel:
    """An object in the model."""

    state: str = "unprocessed"
    holder: str | None = None
    attempts: int = 0
    unattributed: int = 0
    batch: int | None = None
    original_message: OriginalMessage | None = None
    dead_at: float | None = None
    missed_at: float | None = None
    sought_at: float | None = None
    archived: bool = False
    replays: set[str] = field(default_factory=set)


@dataclass
class AttemptModel:
    """An attempt in the model."""

    worker: str
    lease_until: float
    began_at: float = 0.0
    state: str = "open"
    batch: int | None = None


def object_id_of(name: str) -> bytes:
    return name.encode() * 16


class LedgerMachine(RuleBasedStateMachine):
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.time = 1_000.0
        self.objects: dict[str, ObjectModel] = {}
        self.tries: dict[str, AttemptModel] = {}
        self.batches: list[tuple[str, frozenset[str]]] = []
        self.archived_to = 0
        self.adopted = 0

    @initialize()
    def open(self) -> None:
        self.ledger = Ledger.open("sqlite://", now=lambda: self.time)
        self.ledger.ensure_pipeline(PIPELINE)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()

    # Actions

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6),
        message=MESSAGES,
        worker=st.sampled_from(WORKERS),
    )
    def claim(self, names: list[str], message: dict[str, Any], worker: str) -> None:
        attempt = f"attempt-{len(self.tries)}"
        original_message = OriginalMessage(
            message_id=message["message_id"],
            enqueued_at=self.time - message["age"],
            replay_id=message["replay_id"],
        )
        claim = self.ledger.claim(
            PIPELINE,
            [_candidate(name, original_message) for name in names],
            attempt_id=attempt,
            worker=worker,
            lease_seconds=LEASE_SECONDS,
        )
        self.free_expired()
        expected = {name: self.take(name, original_message, attempt) for name in dict.fromkeys(names)}
        taken = {name for name, how in expected.items() if how == "claimed"}
        assert {object_id_of(name) for name in taken} == set(claim.claimed)
        for name, how in expected.items():
            known, id = self.objects[name], object_id_of(name)
            if how == "claimed":
                claimed = claim.claimed[id]
                assert (claimed.attempts, claimed.unattributed_failures) == (known.attempts, known.unattributed)
                assert claimed.original_message == known.original_message
                missing = None if known.missed_at is None else self.time - known.missed_at
                assert claimed.missing_seconds == missing
            elif how == "busy":
                assert known.holder is not None
                assert claim.busy[id] == pytest.approx(self.tries[known.holder].lease_until - self.time)
            else:
                assert claim.ended[id].state.value == known.state
                assert claim.ended[id].original_message == (known.original_message if known.state == "dead" else None)
        # An id that claimed nothing was never an attempt; it is still not reused here.
        state = "open" if taken else "never"
        self.tries[attempt] = AttemptModel(
            worker=worker, lease_until=self.time + LEASE_SECONDS, began_at=self.time, state=state
        )

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    def claimer_dies_when_it_has_registered(self, names: list[str]) -> None:
        class Died(Exception):
            pass

        def die(_: Step) -> None:
            raise Died

        attempt = f"attempt-{len(self.tries)}"
        original_message = OriginalMessage(message_id="m-3", enqueued_at=self.time, replay_id=None)
        with pytest.raises(Died):
            Ledger(self.ledger.database, die).claim(
                PIPELINE,
                [_candidate(name, original_message) for name in names],
                attempt_id=attempt,
                worker="w-3",
                lease_seconds=LEASE_SECONDS,
            )
        new = [name for name in names if name not in self.objects]
        for name in new:
            assert self.take(name, original_message, attempt) == "claimed"
        state = "open" if new else "never"
        self.tries[attempt] = AttemptModel(
            worker="w-3", lease_until=self.time + LEASE_SECONDS, began_at=self.time, state=state
        )

    @precondition(lambda self: len(self.batches) > self.archived_to)
    @rule(more=st.integers(0, 2))
    def archive(self, more: int) -> None:
        up_to_seq = min(self.archived_to + 1 + more, len(self.batches))
        archives = self.ledger.archives
        retiring = archives.retiring(PIPELINE, after_seq=self.archived_to, up_to_seq=up_to_seq, objects_max=1_000)
        assert retiring is not None
        file = ArchiveFile(
            uri="file:///x", objects=sum(len(page) for page in archives.retired_objects(retiring)), bytes=1
        )
        assert archives.retire(retiring, archive_id=f"archive-{up_to_seq}", file=file)
        assert not archives.retire(retiring, archive_id=f"loser-{up_to_seq}", file=file)
        for _, processed in self.batches[self.archived_to : up_to_seq]:
            for name in processed:
                self.objects[name].archived = True
        self.archived_to = up_to_seq

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    def adopt(self, names: list[str]) -> None:
        original_message = OriginalMessage(message_id="m-3", enqueued_at=self.time, replay_id=None)
        preview = self.ledger.adoptions.preview(PIPELINE, [_candidate(name, original_message) for name in names])
        adoption = self.ledger.adoptions.adopt(
            PIPELINE, [_candidate(name, original_message) for name in names], source="file"
        )
        assert adoption == preview
        states = {name: self.objects[name].state if name in self.objects else "new" for name in names}
        new = [name for name, state in states.items() if state not in ("processing", "processed")]
        assert (adoption.new, adoption.known) == (len(new), list(states.values()).count("processed"))
        assert set(adoption.busy) == {object_id_of(name) for name, state in states.items() if state == "processing"}
        for name in new:
            self.objects[name] = ObjectModel(state="processed", archived=True)
            self.adopted += 1

    @precondition(lambda self: self.tries)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        attempt = self.any_attempt(data)
        is_open = self.tries[attempt].state == "open"
        assert self.ledger.extend(attempt, lease_seconds=LEASE_SECONDS) is is_open
        if is_open:
            self.tries[attempt].lease_until = self.time + LEASE_SECONDS

    @precondition(lambda self: self.tries)
    @rule(data=st.data(), endings=ENDINGS, uncounted=st.booleans(), unattributed=st.booleans(), missing=st.booleans())
    def commit(
        self,
        data: st.DataObject,
        endings: list[AttemptFailure | None],
        uncounted: bool,
        unattributed: bool,
        missing: bool,
    ) -> None:
        attempt = self.any_attempt(data)
        held = self.held_by(attempt) or list(NAMES)  # a stale worker still believes that it holds something
        ends = dict(zip(held, endings, strict=False))
        outcome = _outcome(attempt, ends, uncounted=uncounted, unattributed=unattributed, missing=missing)
        if self.tries[attempt].state != "open":
            self.commit_again(outcome)
            return
        committed = self.ledger.commit(outcome)
        seq = None if committed is None else committed.seq
        processed = frozenset(name for name, failure in ends.items() if failure is None)
        if processed:
            self.batches.append((attempt, processed))
        expected = len(self.batches) if processed else None
        assert seq == expected
        self.tries[attempt].state = "committed" if processed else "abandoned"
        self.tries[attempt].batch = seq
        for name, failure in ends.items():
            self.leave(name, failure, seq, uncounted=uncounted, unattributed=unattributed)
            self.miss(name, failure, attempt, missing=missing)
        assert self.ledger.commit(outcome) == committed, "the same outcome again returns the same"

    def commit_again(self, outcome: BatchOutcome) -> None:
        """Commit after the attempt ended: a commit with a batch returns it again, anything else lost its claim."""
        try:
            committed = self.ledger.commit(outcome)
        except ClaimLost:
            return
        assert (None if committed is None else committed.seq) == self.tries[outcome.attempt_id].batch
        assert self.tries[outcome.attempt_id].state != "never"

    @precondition(lambda self: self.tries)
    @rule(data=st.data(), uncounted=st.booleans(), unattributed=st.booleans())
    def abandon(self, data: st.DataObject, uncounted: bool, unattributed: bool) -> None:
        attempt = self.any_attempt(data)
        is_open = self.tries[attempt].state == "open"
        answer = self.ledger.abandon(
            attempt, reason="test", outcome="given_back", uncounted=uncounted, unattributed=unattributed
        )
        assert answer is is_open
        if is_open:
            self.free(attempt, uncounted=uncounted, unattributed=unattributed)

    @rule()
    def abandon_expired(self) -> None:
        assert sorted(self.ledger.abandon_expired(PIPELINE)) == sorted(self.free_expired())

    @rule(worker=st.sampled_from(WORKERS))
    def abandon_worker(self, worker: str) -> None:
        given_up = self.free_where(lambda one: one.worker == worker)
        assert sorted(self.ledger.abandon_worker(PIPELINE, worker)) == sorted(given_up)

    # The model's rules

    def any_attempt(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.tries)))

    def held_by(self, attempt: str) -> list[str]:
        return [name for name, known in self.objects.items() if known.holder == attempt]

    def take(self, name: str, original_message: OriginalMessage, attempt: str) -> str:
        known = self.objects.setdefault(name, ObjectModel())
        if known.archived:
            return "ended"
        if known.state == "processing":
            return "busy"
        if known.state == "dead" and self.may_revive(known, original_message, known.dead_at):
            known.attempts = 0
        elif known.state in ("gone", "superseded") and self.may_revive(known, original_message, known.sought_at):
            known.attempts, known.missed_at, known.sought_at, known.dead_at = 0, None, None, None
        elif known.state != "unprocessed":
            return "ended"
        elif known.missed_at is not None and self.may_revive(known, original_message, known.sought_at):
            known.missed_at, known.sought_at = None, None  # both checks must follow the latest notification
        # A revived object keeps the message that revived it, until another one may revive it.
        if known.dead_at is None or self.may_revive(known, original_message, known.dead_at):
            known.original_message = original_message
        known.state, known.holder = "processing", attempt
        known.attempts += 1
        if original_message.replay_id is not None:
            known.replays.add(original_message.replay_id)
        return "claimed"

    def may_revive(self, known: ObjectModel, original_message: OriginalMessage, since: float | None) -> bool:
        if original_message.replay_id is not None and original_message.replay_id not in known.replays:
            return True
        assert since is not None
        before = known.original_message
        redelivered = (
            before is not None
            and original_message.message_id == before.message_id
            and original_message.enqueued_at <= before.enqueued_at
        )
        return original_message.enqueued_at > since and not redelivered

    def miss(self, name: str, failure: AttemptFailure | None, attempt: str, *, missing: bool) -> None:
        """Record a check that did not find the object, until a check finds it."""
        known = self.objects[name]
        if failure is AttemptFailure.DELETED or (missing and failure is AttemptFailure.RETRY):
            if known.missed_at is None:
                known.missed_at, known.sought_at = self.time, self.tries[attempt].began_at
        else:
            superseded = failure is AttemptFailure.SUPERSEDED
            known.missed_at, known.sought_at = None, self.tries[attempt].began_at if superseded else None

    def leave(
        self, name: str, failure: AttemptFailure | None, seq: int | None, *, uncounted: bool, unattributed: bool
    ) -> None:
        known = self.objects[name]
        known.holder = None
        if failure is None:
            known.state, known.batch = "processed", seq
            return
        known.state = "unprocessed" if failure is AttemptFailure.RETRY else failure.value
        if failure is AttemptFailure.DEAD:
            known.dead_at = self.time
        elif failure is not AttemptFailure.RETRY:
            known.dead_at = None
        known.attempts -= uncounted
        known.unattributed += unattributed

    def free(self, attempt: str, *, uncounted: bool = False, unattributed: bool = False) -> None:
        self.tries[attempt].state = "abandoned"
        for name in self.held_by(attempt):
            self.leave(name, AttemptFailure.RETRY, None, uncounted=uncounted, unattributed=unattributed)

    def free_where(self, chosen: Callable[[AttemptModel], bool]) -> list[str]:
        given_up = [id for id, one in self.tries.items() if one.state == "open" and chosen(one)]
        for attempt in given_up:
            self.free(attempt)
        return given_up

    def free_expired(self) -> list[str]:
        return self.free_where(lambda one: one.lease_until < self.time)

    # Invariants

    @invariant()
    def objects_equal_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        rows = {row.object_id: row for row in self.ledger.objects(PIPELINE)}
        hot = {name: known for name, known in self.objects.items() if not known.archived}
        assert set(rows) == {object_id_of(name) for name in hot}
        states = self.ledger.states(PIPELINE, [object_id_of(name) for name in NAMES])
        assert states == {object_id_of(name): ObjectState(known.state) for name, known in self.objects.items()}
        for name, known in hot.items():
            row = rows[object_id_of(name)]
            assert (row.state.value, row.attempts, row.batch_seq) == (known.state, known.attempts, known.batch)
            assert row.original_message == known.original_message
        live = {
            object_id_of(name)
            for name, known in self.objects.items()
            if known.holder is not None and self.tries[known.holder].lease_until >= self.time
        }
        assert self.ledger.live(PIPELINE, list(rows)) == live

    @invariant()
    def attempts_equal_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for id, one in self.tries.items():
            row = self.ledger.attempt(id)
            assert (row.state.value if row else "never") == one.state
        abandoned = [id for id, one in self.tries.items() if one.state == AttemptState.ABANDONED]
        assert sorted(self.ledger.abandoned_attempts(PIPELINE)) == sorted(abandoned)

    @invariant()
    def batches_have_no_gap_and_no_object_twice(self) -> None:
        if not hasattr(self, "ledger"):
            return
        rows = self.ledger.batches(PIPELINE)
        assert [(row.seq, row.attempt_id, row.objects) for row in rows] == [
            (seq, attempt, len(processed)) for seq, (attempt, processed) in enumerate(self.batches, start=1)
        ]
        counted = sum(len(processed) for _, processed in self.batches) + self.adopted
        assert counted == self.ledger.counts(PIPELINE)[ObjectState.PROCESSED]


def _candidate(name: str, original_message: OriginalMessage) -> Candidate:
    return Candidate(
        object_id=object_id_of(name),
        bucket="file",
        key=f"/{name}".encode(),
        size_bytes=1,
        uri=f"file:///{name}",
        original_message=original_message,
    )


def _outcome(
    attempt: str, ends: dict[str, AttemptFailure | None], *, uncounted: bool, unattributed: bool, missing: bool
) -> BatchOutcome:
    failed = [
        FailedObject(
            object_id=object_id_of(name),
            failure=failure,
            reason="test",
            uncounted=uncounted,
            unattributed=unattributed,
            missing=missing and failure is AttemptFailure.RETRY,
        )
        for name, failure in ends.items()
        if failure is not None
    ]
    processed = [
        ObjectResult(object_id=object_id_of(name), rows=1, lines_quarantined=0)
        for name, failure in ends.items()
        if failure is None
    ]
    return BatchOutcome(pipeline=PIPELINE, attempt_id=attempt, processed=processed, failed=failed)


TestLedgerStates = LedgerMachine.TestCase
TestLedgerStates.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
