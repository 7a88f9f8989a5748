"""Two apps on one ledger: neither sees the other's keys or objects, and each name belongs to one app."""

import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
from sqlalchemy import update
from tests.conformance.ledger.ledger_harness import LedgerHarness

from penstock.errors import ConfigurationError
from penstock.handlers.keys import KeyBegun, KeyBusy, KeyDone
from penstock.handlers.once import LedgerKeys
from penstock.ledger import Ledger
from penstock.ledger.migrate import downgrade
from penstock.ledger.records import OwnedName, OwnerKind, WorkBegun, WorkBusy, WorkDone, WorkOwner
from penstock.ledger.schema import works

DAY_SECONDS = 86_400.0


def register(
    ledger: Ledger, app: str, *, queue: str, name: str = "handle", kind: OwnerKind = "keys", is_named: bool = False
) -> Mapping[str, WorkOwner]:
    return ledger.owners.register(app, is_named=is_named, uses=[OwnedName(kind=kind, name=name, queue=queue)])


def keys(
    ledger: Ledger, app: str, *, queue: str, is_named: bool = False, retention_seconds: float = DAY_SECONDS
) -> LedgerKeys:
    owner = register(ledger, app, queue=queue, is_named=is_named)["handle"]
    return LedgerKeys(
        ledger=ledger,
        handler="handle",
        worker=app,
        lease_seconds=60.0,
        retention_seconds=retention_seconds,
        owner=owner,
    )


def finish(keys: LedgerKeys, key: str) -> None:
    begun = keys.begin(key)
    assert isinstance(begun, KeyBegun)
    assert begun.claim.finish("null")


def create_ledger_of_0005(url: str, *done: str, handler: str = "handle") -> None:
    """Create a ledger of revision 0005 in which these keys are done."""
    ledger = Ledger.open(url)
    for key in done:
        ledger.begin_work(handler, key, attempt_id=f"old {handler} {key}", worker="old", lease_seconds=60.0)
        assert ledger.finish_work(f"old {handler} {key}", outcome='"before"')
    with ledger.database.writing() as connection:
        downgrade(connection, "0005")
    ledger.close()


def test_handlers_of_one_name_in_two_apps_have_separate_keys(harness: LedgerHarness) -> None:
    orders = keys(harness.ledger, "orders", queue="orders")
    refunds = keys(harness.ledger, "refunds", queue="refunds")
    finish(orders, "42")
    finish(refunds, "42")
    assert isinstance(orders.begin("42"), KeyDone)
    assert [(row.app, row.queue, row.key) for row in sorted(harness.ledger.works(), key=lambda row: str(row.app))] == [
        ("orders", "orders", "42"),
        ("refunds", "refunds", "42"),
    ]


def test_one_app_deployed_under_two_names_has_two_sets_of_keys(harness: LedgerHarness) -> None:
    europe = keys(harness.ledger, "shop-eu", queue="orders", is_named=True)
    america = keys(harness.ledger, "shop-us", queue="orders", is_named=True)
    finish(europe, "42")
    finish(america, "42")


def test_every_process_of_an_app_finds_the_same_keys(shared_harness: LedgerHarness) -> None:
    finish(keys(shared_harness.ledger, "shop", queue="orders"), "42")
    other = Ledger.open(shared_harness.url)
    assert isinstance(keys(other, "shop", queue="orders").begin("42"), KeyDone)
    other.close()


ARN, URL = "arn:aws:sqs:eu-west-1:111122223333:orders", "https://sqs.eu-west-1.amazonaws.com/111122223333/orders"


@pytest.mark.parametrize("first", ["orders", URL, ARN])
def test_a_name_url_or_arn_denote_the_same_queue(harness: LedgerHarness, first: str) -> None:
    finish(keys(harness.ledger, "shop", queue=first), "42")
    for spelled in ("orders", URL, ARN, first):
        assert isinstance(keys(harness.ledger, "shop", queue=spelled).begin("42"), KeyDone)
    with pytest.raises(ConfigurationError, match="belong to the app 'shop'"):
        keys(harness.ledger, "depot", queue="orders")


def test_queues_of_one_name_in_two_accounts_are_different_queues(harness: LedgerHarness) -> None:
    for account in ("111122223333", "444455556666"):
        finish(keys(harness.ledger, "shop", queue=f"arn:aws:sqs:eu-west-1:{account}:orders"), "42")


def test_objects_accept_any_spelling_of_their_queue(harness: LedgerHarness) -> None:
    for spelled in ("orders", URL, ARN):
        register(harness.ledger, "thumbnails", queue=spelled, kind="objects")
    with pytest.raises(ConfigurationError, match="belong to the app 'thumbnails'"):
        register(harness.ledger, "depot", queue="orders", kind="objects")


@pytest.mark.parametrize("is_named", [False, True])
def test_another_app_on_the_same_queue_and_handler_must_use_the_same_name(
    harness: LedgerHarness, is_named: bool
) -> None:
    """The module may have been renamed, and its keys must not be forgotten; or it is another app."""
    keys(harness.ledger, "shop", queue="orders")
    with pytest.raises(ConfigurationError, match=r"belong to the app 'shop'.*App\(name='shop'\)"):
        keys(harness.ledger, "shop.main", queue="orders", is_named=is_named)
    finish(keys(harness.ledger, "shop", queue="orders", is_named=True), "42")


def test_an_object_handlers_name_belongs_to_one_app_and_one_queue(harness: LedgerHarness) -> None:
    register(harness.ledger, "thumbnails", queue="thumbnails", kind="objects")
    register(harness.ledger, "thumbnails", queue="thumbnails", kind="objects")
    with pytest.raises(ConfigurationError, match=r"belong to the app 'thumbnails', and this app is 'index'"):
        register(harness.ledger, "index", queue="index", kind="objects", is_named=True)
    with pytest.raises(ConfigurationError, match="fed from the queue thumbnails, and here it is index"):
        register(harness.ledger, "thumbnails", queue="index", kind="objects")
    register(harness.ledger, "thumbnails", queue="index", kind="objects", is_named=True)
    register(harness.ledger, "thumbnails", queue="index", kind="objects")


def test_nothing_is_registered_if_one_name_is_refused(harness: LedgerHarness) -> None:
    register(harness.ledger, "first", name="load", queue="a", kind="objects")
    uses = [OwnedName(kind="keys", name="new", queue="new"), OwnedName(kind="objects", name="load", queue="a")]
    with pytest.raises(ConfigurationError):
        harness.ledger.owners.register("second", is_named=False, uses=uses)
    register(harness.ledger, "third", name="new", queue="new")


def test_one_of_several_apps_that_start_at_once_gets_the_name(shared_url: str) -> None:
    Ledger.open(shared_url).close()
    ready, outcomes = threading.Barrier(6), list[str]()

    def start(app: str) -> None:
        ledger = Ledger.open(shared_url)
        ready.wait(60)
        try:
            register(ledger, app, queue="orders")
            outcomes.append(app)
        except ConfigurationError:
            outcomes.append("refused")
        ledger.close()

    threads = [threading.Thread(target=start, args=(f"app-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes)[1:] == ["refused"] * 5


def test_an_apps_retention_leaves_completions_of_other_apps_alone(harness: LedgerHarness) -> None:
    billing = keys(harness.ledger, "billing", queue="invoices", retention_seconds=90 * DAY_SECONDS)
    thumbs = keys(harness.ledger, "thumbs", queue="images", retention_seconds=0.0)
    finish(billing, "1")
    finish(thumbs, "1")
    billing.forget()
    assert [row.app for row in harness.ledger.works()] == ["billing"], (
        "each row expires as its own app set it, whichever app deletes"
    )
    thumbs.forget()
    assert isinstance(billing.begin("1"), KeyDone)


def test_completions_of_an_earlier_version_still_count_after_the_upgrade(shared_url: str) -> None:
    create_ledger_of_0005(shared_url, "42")
    ledger = Ledger.open(shared_url)
    shop = keys(ledger, "shop", queue="orders")
    assert isinstance(shop.begin("42"), KeyDone)
    assert isinstance(shop.begin("43"), KeyBegun)
    ledger.close()


def test_old_and_new_workers_side_by_side_agree_on_every_key(shared_url: str) -> None:
    """This includes a handler that had no keys yet. An old worker knows nothing of owners."""
    create_ledger_of_0005(shared_url)
    ledger = Ledger.open(shared_url)
    shop = keys(ledger, "shop", queue="orders")

    def old_begins(key: str) -> object:
        return ledger.begin_work("handle", key, attempt_id=f"old {key}", worker="old", lease_seconds=60.0)

    assert isinstance(old_begins("held by old"), WorkBegun)
    assert not isinstance(shop.begin("held by old"), KeyBegun | KeyDone)
    assert isinstance(shop.begin("held by new"), KeyBegun)
    assert isinstance(old_begins("held by new"), WorkBusy)
    finish(shop, "done by new")
    assert isinstance(old_begins("done by new"), WorkDone)
    ledger.close()


def test_a_second_app_is_refused_while_keys_of_an_earlier_version_may_be_its_own(shared_url: str) -> None:
    create_ledger_of_0005(shared_url, "42")
    ledger = Ledger.open(shared_url)
    keys(ledger, "orders", queue="orders")
    with pytest.raises(ConfigurationError, match=r"'orders' .* has taken them over, and some may belong to this app"):
        keys(ledger, "refunds", queue="refunds", is_named=True)
    with ledger.database.writing() as connection:
        connection.execute(update(works).values(ended_at=0.0))
    LedgerKeys(ledger=ledger, handler="other", worker="w", lease_seconds=60, retention_seconds=DAY_SECONDS).forget()
    assert len(ledger.works()) == 1, "an app forgets keys without a retention of their own for its handlers alone"
    keys(ledger, "orders", queue="orders").forget()
    assert ledger.works() == []
    refunds = keys(ledger, "refunds", queue="refunds", is_named=True)
    finish(keys(ledger, "orders", queue="orders"), "42")
    finish(refunds, "42")
    ledger.close()


def test_a_second_app_is_refused_at_a_later_start_if_old_workers_added_keys(shared_url: str) -> None:
    """They may be its own: then its old and new workers do not see each other's completions."""
    create_ledger_of_0005(shared_url)
    ledger = Ledger.open(shared_url)
    keys(ledger, "orders", queue="orders", is_named=True)
    keys(ledger, "refunds", queue="refunds", is_named=True)
    keys(ledger, "refunds", queue="refunds", is_named=True)
    ledger.begin_work("handle", "42", attempt_id="old", worker="old", lease_seconds=60.0)
    with pytest.raises(ConfigurationError, match=r"'orders' .* has taken them over, and some may belong to this app"):
        keys(ledger, "refunds", queue="refunds", is_named=True)
    keys(ledger, "orders", queue="orders", is_named=True)
    ledger.close()


def test_after_a_downgrade_to_0005_the_first_apps_keys_are_found(shared_url: str) -> None:
    create_ledger_of_0005(shared_url)
    ledger = Ledger.open(shared_url)
    finish(keys(ledger, "shop", queue="orders"), "42")
    with ledger.database.writing() as connection:
        downgrade(connection, "0005")
    ledger.close()
    again = Ledger.open(shared_url)
    assert isinstance(again.begin_work("handle", "42", attempt_id="a", worker="w", lease_seconds=60.0), WorkDone)
    again.close()


def downgrade_and_close(ledger: Ledger, revision: str = "0005") -> None:
    with ledger.database.writing() as connection:
        downgrade(connection, revision)
    ledger.close()


def test_keys_of_an_app_survive_a_downgrade_to_0005_and_the_next_upgrade(shared_url: str) -> None:
    ledger = Ledger.open(shared_url)
    shop = keys(ledger, "shop", queue="orders")
    for number in (0, 1_000, 2_000):
        finish(shop, f"{number}")
    finish(replace(shop, owner=WorkOwner(app="shop", queue="orders", purpose="tick")), "1800000000")
    assert isinstance(shop.begin("left open"), KeyBegun)
    downgrade_and_close(ledger)
    again = Ledger.open(shared_url)
    assert isinstance(again.begin_work("handle", "2000", attempt_id="a", worker="w", lease_seconds=60.0), WorkDone)
    shop = keys(again, "shop", queue="orders")
    assert isinstance(shop.begin("0"), KeyDone)
    assert isinstance(shop.begin("left open"), KeyBusy)
    assert len(again.works()) == 4, "0005 knows no ticks"
    again.close()


def test_a_downgrade_that_would_lose_completed_keys_is_refused(shared_url: str) -> None:
    ledger = Ledger.open(shared_url)
    orders = keys(ledger, "orders", queue="orders")
    finish(orders, "42")
    finish(keys(ledger, "refunds", queue="refunds"), "42")
    finish(replace(orders, handler="long"), "x" * 5_000)
    with pytest.raises(ConfigurationError, match=r"3 completed keys .* 2 because several apps .* 1 because the key"):
        downgrade_and_close(ledger)
    ledger.close()
    again = Ledger.open(shared_url)
    assert isinstance(keys(again, "orders", queue="orders").begin("42"), KeyDone), "an upgrade leads back"
    downgrade_and_close(again, "base")
