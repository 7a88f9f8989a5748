"""The data directory: the claims of a dead process are freed at once."""

from pathlib import Path

from penstock.app.state import open_state
from penstock.ledger.records import WorkBegun, WorkState


def test_the_claims_of_a_dead_process_are_freed(tmp_path: Path) -> None:
    with open_state(tmp_path) as state:
        for key, worker in (("ours", state.worker), ("theirs", "dead")):
            state.ledger.begin_work("make", key, attempt_id=key, worker=worker, lease_seconds=60.0)
        (tmp_path / "processes" / "dead.lock").touch()  # a lock file without a lock: the process is dead
        assert state.release_dead() == 1
        assert [row.key for row in state.ledger.works(state=WorkState.OPEN)] == ["ours"]
        begun = state.ledger.begin_work("make", "theirs", attempt_id="next", worker=state.worker, lease_seconds=60.0)
        assert isinstance(begun, WorkBegun)
        assert begun.previous is not None
        assert begun.previous.worker == "dead"
