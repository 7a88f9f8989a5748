"""Outbox, relay and inbox together: as many effects as orders, whichever process is killed at any step.

The oracle reads both tables by the database's plain driver. Brokers drop recent duplicates; here they forget ids at
once, so that duplicates are delivered, and only the inbox makes them one effect.
"""

import random
from pathlib import Path

import pytest
from tests.integration.fleet import let_pass, wait_for
from tests.integration.transactions_scene import KINDS, make_user_database
from tests.integration.transactions_shop import STEPS, ProcessKeeper, Shop

ORDERS = 12
WITHIN_SECONDS = 180.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "step"),
    [("sqlite", step) for step in STEPS]
    # Databases differ only in how they handle connections that die; the rest is the same code on each.
    + [
        (kind, step)
        for kind in ("mariadb", "postgresql")
        for step in ("order_written", "sent", "committing", "committed")
    ],
)
def test_a_kill_at_each_step_loses_nothing_and_takes_effect_once(
    kind: str, step: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    shop = Shop(folder=folder, database=make_user_database(kind, request, folder), die_at=step)
    writer = ProcessKeeper(lambda: shop.write(0, ORDERS), until_success=True)
    worker = ProcessKeeper(lambda: shop.work().process)
    try:
        writer.join(WITHIN_SECONDS)
        wait_for(lambda: shop.done() and len(shop.database.effects()) >= ORDERS, "all is done", within=WITHIN_SECONDS)
    finally:
        worker.stop()
        shop.close()
    assert shop.died, "the step was never reached"
    assert shop.database.orders() == set(range(ORDERS))
    assert shop.database.effects() == list(range(ORDERS))
    if step in ("sent", "called", "committing", "committed"):
        assert len(shop.calls()) > ORDERS, "no message was delivered twice, so nothing was proven"


def test_a_broker_that_remembers_ids_drops_repeated_messages(request: pytest.FixtureRequest, folder: Path) -> None:
    database = make_user_database("sqlite", request, folder)
    shop = Shop(folder=folder, database=database, die_at="sent", deduplication_seconds=300.0)
    worker = ProcessKeeper(lambda: shop.work().process)
    try:
        assert shop.write(0, ORDERS).wait(WITHIN_SECONDS) == 0
        wait_for(lambda: shop.done() and len(shop.database.effects()) >= ORDERS, "all is done", within=WITHIN_SECONDS)
    finally:
        worker.stop()
        shop.close()
    assert shop.died
    assert sorted(shop.calls()) == list(range(ORDERS))


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *((kind, "committing") for kind in KINDS),
        ("sqlite", "committed"),
        # quick: this step on servers with one app, above
        *(pytest.param(kind, "committed", marks=pytest.mark.slow) for kind in KINDS if kind != "sqlite"),
    ],
)
def test_two_killed_apps_that_share_an_inbox_take_effect_once_each(
    kind: str, step: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    """Both have a handler of one name on a queue of one name, and messages of one id."""
    database = make_user_database(kind, request, folder)
    shops = [Shop(folder=folder / name, database=database, die_at=step, name=name) for name in ("shop", "depot")]
    for shop in shops:
        for no in range(ORDERS):
            shop.fleet.app.send("orders", {"no": no}, deduplication_id=f"order-{no}")
    workers = [ProcessKeeper(lambda shop=shop: shop.work().process) for shop in shops]  # type: ignore[misc] # a closure
    try:
        for shop in shops:
            wait_for(shop.done, "all is done", within=WITHIN_SECONDS)
    finally:
        for worker in workers:
            worker.stop()
        for shop in shops:
            shop.close()
    assert [(shop.died, len(shop.calls()) > ORDERS) for shop in shops] == [(True, True)] * 2
    assert database.effects() == sorted([*range(ORDERS)] * 2)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind == "mariadb" else ()) for kind in KINDS],  # quick: one server
)
def test_random_kills_lose_and_double_nothing(kind: str, request: pytest.FixtureRequest, folder: Path) -> None:
    shop = Shop(folder=folder, database=make_user_database(kind, request, folder))
    chance = random.Random(f"outbox {kind}")
    orders, kills = 240, 12
    writers = [
        ProcessKeeper(lambda first=first: shop.write(first, orders // 2), until_success=True)  # type: ignore[misc] # a closure
        for first in (0, orders // 2)
    ]
    workers = [ProcessKeeper(lambda: shop.work().process) for _ in range(2)]
    try:
        for _ in range(kills):
            let_pass(chance.uniform(0.2, 1.5))
            chance.choice([*writers, *workers, *workers]).kill()
        for writer in writers:
            writer.join(WITHIN_SECONDS)
        wait_for(lambda: shop.done() and len(shop.database.effects()) >= orders, "all is done", within=WITHIN_SECONDS)
    finally:
        for worker in workers:
            worker.stop()
        shop.close()
    assert shop.database.orders() == set(range(orders))
    assert shop.database.effects() == list(range(orders))
