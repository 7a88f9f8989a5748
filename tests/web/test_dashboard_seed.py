"""The ledger that benchmarks of the dashboard fill: it has every state, and the pages show it."""

from pathlib import Path

import pytest
from benchmarks.dashboard_seed import PIPELINES, seed_ledger
from tests.web.clients import client_of
from tests.web.object_scene import settings_in
from tests.web.test_objects import listed, page

from penstock.app.scope import Scope
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState

OBJECTS = 6_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeded")
    seed_ledger(f"sqlite:///{folder}/ledger.db", OBJECTS)
    return folder


def test_it_has_every_object_once_and_every_state(folder: Path) -> None:
    ledger = Ledger.open(folder / "ledger.db")
    counts = [ledger.counts(name) for name in PIPELINES]
    reopened = sum(len(ledger.reopenings.open(name, limit=100)) for name in PIPELINES)
    batches = {name: len(ledger.batches(name)) for name in PIPELINES}
    ledger.close()
    assert sum(sum(count.values()) for count in counts) == OBJECTS
    assert {state for count in counts for state, number in count.items() if number} == {*ObjectState}
    assert reopened
    assert batches == {"clicks": 5, "orders": 1, "invoices": 1}


def test_the_pages_show_it(folder: Path) -> None:
    with client_of(Scope(settings=settings_in(folder))) as client:
        names = listed(page(client, "/objects?state=dead"))
        assert names
        assert "ValueError: no amount" in page(client, "/object", address=f"s3://landing/{names[0]}")
        assert "Committed batches" in page(client, "/batches")
        assert "part-0.parquet" in page(client, "/batch", pipeline="clicks", seq=1)
        assert "s3://landing/clicks/" in page(client, "/reconcile")
