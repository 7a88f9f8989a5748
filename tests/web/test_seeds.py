"""The seeds have every state that the dashboard has to show, and none of them waits."""

from pathlib import Path

from tests.web.seeds import empty, fill, seeded
from tests.web.shop import CLICKS, THUMBNAILS

from penstock.app.scope import scope_of
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger.records import ObjectState
from penstock.operations.status.model import ProblemKind
from penstock.operations.status.status import read_status


def test_a_seeded_shop_has_every_problem(tmp_path: Path) -> None:
    with seeded(tmp_path) as seed:
        status = read_status(scope_of(seed.app))
        assert {*status.problem_kinds} == {kind.value for kind in ProblemKind}
        by_name = {queue.queue: queue for queue in status.queues}
        assert by_name["orders"].visible > 10_000
        assert by_name["orders"].in_flight == 4
        assert by_name["orders"].delayed == 3
        assert by_name["mails"].paused
        assert by_name["payments"].breaker
        assert by_name["reports"].unserved
        assert by_name["exports"].workers == ()
        assert by_name["idle"].messages == 0
        assert [lagging.queue for lagging in status.lagging]
        assert status.dead_letters_set_aside == 2
        assert sorted(record.state for record in status.records) == ["draining", "serving", "serving"]
        pipelines = {pipeline.pipeline: pipeline for pipeline in status.pipelines}
        assert all(count for count in pipelines[CLICKS].objects.values()), pipelines[CLICKS].objects
        assert pipelines[CLICKS].objects_replaced == 1
        assert pipelines[CLICKS].objects_overdue
        assert pipelines[CLICKS].objects_missing == 7
        assert pipelines[CLICKS].warned_objects
        assert pipelines[CLICKS].batches_unpublished
        assert pipelines[THUMBNAILS].objects[ObjectState.DEAD] == 1
        assert status.disagreements == []
        assert seed.app.ledger.archives.count(CLICKS) == 2
        assert {entry.outcome for entry in seed.app.ledger.audits.latest(limit=100)} == {
            *("done", "interrupted", "failed", "canary died"),
            None,
        }


def test_an_empty_shop_has_nothing(tmp_path: Path) -> None:
    with empty(tmp_path) as seed:
        status = read_status(scope_of(seed.app))
        assert not status.problems
        assert not status.queues
        assert [*tmp_path.iterdir()] == []


def test_a_broker_is_filled(tmp_path: Path) -> None:
    broker = SqliteBroker(tmp_path / "queue.db", holder="")
    fill(broker, queues=3, dead_letters=1_500)
    assert broker.stats("orders-dlq").visible == 1_500
    assert len(broker.queue_names()) >= 5
    broker.close()
