"""Background actions: their states, their order, and the bounds of the runner."""

import threading
from collections.abc import Iterator

import pytest

from penstock.errors import TemporaryError, UsageError
from penstock.operations.status.sentences import sentence
from penstock.testing.fake_clock import FakeClock
from penstock.web.actions import (
    ActionDescription,
    ActionProgress,
    ActionResult,
    ActionRunner,
    ActionRunsAlready,
    ActionSnapshot,
)

DEADLINE_SECONDS = 120.0
DONE = ActionResult(sentences=[sentence("{count} are done.", count=3)])


class Gate:
    """An action that waits at each chunk until the test lets it pass."""

    def __init__(self, chunks: int = 3) -> None:
        self.chunks = chunks
        self.begun = threading.Event()
        self._may_pass = threading.Semaphore(0)
        self.passed = threading.Semaphore(0)

    def __call__(self, progress: ActionProgress) -> ActionResult:
        self.begun.set()
        for _ in range(self.chunks):
            if progress.stopped():
                return ActionResult(sentences=[sentence("It was cut short.")], outcome="stopped")
            assert self._may_pass.acquire(timeout=DEADLINE_SECONDS)
            progress.add(10)
            self.passed.release()
        return ActionResult(sentences=[], outcome="stopped") if progress.stopped() else DONE

    def let_pass(self, count: int = 1) -> None:
        """Let so many chunks pass, and wait until they have."""
        for _ in range(count):
            self._may_pass.release()
            assert self.passed.acquire(timeout=DEADLINE_SECONDS)

    def open(self) -> None:
        self._may_pass.release(self.chunks)


@pytest.fixture
def runner() -> Iterator[ActionRunner]:
    runner = ActionRunner()
    yield runner
    runner.stop(seconds=0.0)


def described(
    *, key: str | None = None, resources: frozenset[str] = frozenset(), total: int | None = None
) -> ActionDescription:
    return ActionDescription(title=sentence("Replay them"), key=key, resources=resources, total=total)


def ended(runner: ActionRunner, id: str) -> ActionSnapshot:
    found = runner.wait(id, DEADLINE_SECONDS)
    assert found is not None
    assert found.ended
    return found


def test_an_action_runs_and_its_result_stays(runner: ActionRunner) -> None:
    id = runner.start("replay", "ann", described(total=3), lambda _: DONE)
    found = ended(runner, id)
    assert (found.state, found.user, found.kind, found.sentences) == ("done", "ann", "replay", [*DONE.sentences])
    assert found.started_at is not None
    assert found.ended_at is not None
    assert [one.id for one in runner.latest()] == [id]


def test_an_aborted_action_stops_after_its_chunk_and_names_its_user(runner: ActionRunner) -> None:
    gate = Gate()
    id = runner.start("replay", "ann", described(), gate)
    gate.let_pass()
    assert runner.abort(id, user="bob")
    gate.open()
    found = ended(runner, id)
    assert (found.state, found.done < 30, found.aborted_by) == ("aborted", True, "bob")
    assert not runner.abort(id, user="bob")
    assert not runner.abort("unknown", user="bob")


def test_an_action_that_ended_all_its_work_before_it_saw_the_abort_is_done(runner: ActionRunner) -> None:
    gate = threading.Event()

    def run(_: ActionProgress) -> ActionResult:
        assert gate.wait(DEADLINE_SECONDS)
        return DONE

    id = runner.start("replay", "ann", described(), run)
    assert runner.abort(id, user="bob")
    gate.set()
    assert ended(runner, id).state == "done"


@pytest.mark.parametrize("error", [UsageError("there is no queue x"), TemporaryError("Redis is unavailable")])
def test_an_error_becomes_the_sentence_of_a_failed_action(runner: ActionRunner, error: Exception) -> None:
    def run(progress: ActionProgress) -> ActionResult:
        progress.say(sentence("one message is sent and watched"))
        raise error

    found = ended(runner, runner.start("replay", "ann", described(), run))
    assert found.state == "failed"
    assert [one.values for one in found.sentences] == [{}, {"reason": str(error)}]


def test_an_unexpected_error_fails_the_action_and_not_the_runner(runner: ActionRunner) -> None:
    def run(_: ActionProgress) -> ActionResult:
        raise ZeroDivisionError("by zero")

    found = ended(runner, runner.start("replay", "ann", described(), run))
    assert (found.state, found.sentences[0].values) == ("failed", {"reason": "ZeroDivisionError: by zero"})
    assert ended(runner, runner.start("replay", "ann", described(), lambda _: DONE)).state == "done"


def test_an_equal_action_is_refused_until_the_first_has_ended(runner: ActionRunner) -> None:
    gate = Gate()
    id = runner.start("replay", "ann", described(key="all"), gate)
    with pytest.raises(ActionRunsAlready) as refused:
        runner.start("replay", "bob", described(key="all"), lambda _: DONE)
    assert refused.value.action_id == id
    gate.open()
    ended(runner, id)
    assert ended(runner, runner.start("replay", "bob", described(key="all"), lambda _: DONE)).state == "done"


def test_an_action_waits_for_one_with_the_same_resource_and_others_overtake_it(runner: ActionRunner) -> None:
    gate = Gate()
    first = runner.start("replay", "ann", described(resources=frozenset({"a-dlq", "b-dlq"})), gate)
    second = runner.start("purge", "ann", described(resources=frozenset({"b-dlq"})), lambda _: DONE)
    third = runner.start("replay", "ann", described(resources=frozenset({"c-dlq"})), lambda _: DONE)
    assert ended(runner, third).state == "done"
    waiting = runner.find(second)
    assert waiting is not None
    assert (waiting.state, waiting.waits_for, waiting.started_at) == ("waiting", first, None)
    gate.open()
    assert ended(runner, second).state == "done"


def test_more_actions_than_may_run_wait_and_more_than_may_wait_are_refused() -> None:
    runner = ActionRunner(running_max=1, waiting_max=1)
    gates = Gate(), Gate()
    first, second = (runner.start("replay", "ann", described(), gate) for gate in gates)
    with pytest.raises(UsageError, match="1 actions wait already"):
        runner.start("replay", "ann", described(), Gate())
    assert not gates[1].begun.is_set()
    gates[0].open()
    ended(runner, first)
    gates[1].open()
    assert ended(runner, second).state == "done"


def test_a_waiting_action_that_is_aborted_never_begins() -> None:
    runner = ActionRunner(running_max=1)
    gate, never = Gate(), Gate()
    first = runner.start("replay", "ann", described(), gate)
    second = runner.start("replay", "ann", described(), never)
    assert runner.abort(second, user="ann")
    assert ended(runner, second).state == "aborted"
    gate.open()
    ended(runner, first)
    assert not never.begun.is_set()


def test_a_stop_interrupts_all_actions_and_accepts_no_more() -> None:
    runner = ActionRunner(running_max=1)
    gate, never = Gate(), Gate()
    first = runner.start("replay", "ann", described(), gate)
    second = runner.start("replay", "ann", described(), never)
    gate.let_pass()
    assert runner.stop(seconds=0.0) == 1  # the first is still in its chunk
    gate.open()
    assert (ended(runner, first).state, ended(runner, second).state) == ("interrupted", "interrupted")
    assert runner.stop(seconds=0.0) == 0
    with pytest.raises(TemporaryError, match="about to stop"):
        runner.start("replay", "ann", described(), Gate())


def test_an_aborted_action_stays_aborted_if_the_dashboard_stops_too() -> None:
    runner = ActionRunner()
    gate = Gate()
    id = runner.start("replay", "ann", described(), gate)
    gate.let_pass()
    runner.abort(id, user="ann")
    runner.stop(seconds=0.0)
    gate.open()
    assert ended(runner, id).state == "aborted"


def test_only_the_latest_ended_actions_are_remembered() -> None:
    runner = ActionRunner(finished_max=2)
    ids = []
    for _ in range(4):
        ids.append(runner.start("replay", "ann", described(), lambda _: DONE))
        runner.wait(ids[-1], DEADLINE_SECONDS)
    assert [one.id for one in runner.latest()] == [ids[3], ids[2]]
    assert runner.find(ids[0]) is None


def test_rate_and_seconds_left_follow_the_latest_progress() -> None:
    clock = FakeClock()
    runner = ActionRunner(clock=clock)
    gate = Gate(chunks=10)
    id = runner.start("replay", "ann", described(total=100), gate)
    assert gate.begun.wait(DEADLINE_SECONDS)
    for _ in range(2):
        clock.advance(1.0)
        gate.let_pass()
    found = runner.find(id)
    assert found is not None
    assert (found.done, found.per_second, found.seconds_left) == (20, 10.0, 8.0)
    clock.advance(100.0)
    gate.let_pass()
    clock.advance(25.0)  # the rate is that of the latest seconds, not of all
    gate.let_pass()
    found = runner.find(id)
    assert found is not None
    assert found.per_second == 10 / 25
    gate.open()
    assert ended(runner, id).per_second is None


def test_listeners_hear_of_each_end(runner: ActionRunner) -> None:
    heard = threading.Semaphore(0)
    runner.when_ended(heard.release)
    for _ in range(2):
        runner.start("replay", "ann", described(), lambda _: DONE)
        assert heard.acquire(timeout=DEADLINE_SECONDS)
