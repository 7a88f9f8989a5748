"""The pages about objects: lists and searches, one object in every state, and hostile addresses."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient
from tests.cli.scene import Scene
from tests.web.clients import client_of
from tests.web.object_scene import TRACEBACK, ObjectScene, refresh

from penstock.app.paths import LEDGER_FILE
from penstock.app.scope import ScopeRequest, find_scope
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, UnknownCounts
from penstock.ledger.rows import uri_digest
from penstock.ledger.schema import archived_objects, archives, objects
from penstock.operations.objects import search as search_module
from penstock.pipeline.maintenance.archive import Archivist
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock
from penstock.web import objects as objects_module
from penstock.web.rendering import address

HOSTILE = (
    "two\nlines.jsonl",
    "\x1b[31mred\x1b[0m.jsonl",
    "' OR '1'='1' --.jsonl",
    "<script>alert(1)</script>.jsonl",
    "100%25 a+b #frag?x=1&y=2.jsonl",
    'quote".jsonl',
    "back\\slash.jsonl",
    " blanks around ",
    "名前/請求書 2026-11.jsonl",
    "\u202egnp.exe",
    "../../etc/passwd",
    "k" * 1_024,
    "あ" * 341,
)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ObjectScene]:
    scene = ObjectScene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def client(scene: ObjectScene) -> Iterator[TestClient]:
    with client_of(scene.scope) as client:
        yield client


def page(client: TestClient, path: str, *, status: int = 200, **query: object) -> str:
    given = {name: str(value) for name, value in query.items()}
    response = client.get(path, params=given or None, follow_redirects=False)
    assert response.status_code == status, response.text
    return response.text


def listed(text: str) -> Sequence[str]:
    """Return the keys of the objects that a list shows, in order."""
    addresses = re.findall(r'<th scope="row"><a href="/object\?([^"]+)"', text)
    found = [parse_qs(unescape(address))["address"][0] for address in addresses]
    return [address.removeprefix("s3://landing/") for address in found]


def seen(text: str) -> str:
    """Return the text of a page without its tags, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


# Lists


def test_a_long_address_breaks_after_slashes_and_stays_harmless() -> None:
    assert address("s3://landing/a/b.jsonl") == "s3://<wbr>landing/<wbr>a/<wbr>b.jsonl"
    assert address("file:///<b>/\x1b[2J") == "file:///<wbr>&lt;b&gt;/<wbr>\\x1b[2J"


def test_an_empty_ledger_says_so(client: TestClient) -> None:
    assert "Nothing failed, and nothing waits." in page(client, "/objects")
    assert "No object is in this state." in page(client, "/objects", state="dead")


def test_the_list_begins_with_failed_waiting_and_running_objects_the_newest_first(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.process("done")
    scene.fail("bad")
    scene.fail("again", failure=AttemptFailure.RETRY)
    scene.fail("deleted", failure=AttemptFailure.DELETED)
    scene.claim("now", pipeline="orders")
    shown = page(client, "/objects")
    assert listed(shown) == ["now", "again", "bad"]
    for words in ("being processed", "waiting", "failed", "it is truncated", "orders"):
        assert words in shown
    assert listed(page(client, "/objects", state="all")) == ["now", "deleted", "again", "bad", "done"]
    assert listed(page(client, "/objects", state="gone")) == ["deleted"]
    assert listed(page(client, "/objects", pipeline="orders")) == ["now"]


def test_the_counts_lead_to_the_lists_of_each_state(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", "b", "c")
    scene.fail("bad")
    refresh(client)
    shown = page(client, "/objects")
    assert "processed 3" in seen(shown)
    assert "failed 1" in seen(shown)
    assert 'href="/objects?state=processed"' in shown


@pytest.mark.parametrize("state", ["", "all", "processed"])
def test_pages_by_key_have_every_object_once(scene: ObjectScene, client: TestClient, state: str) -> None:
    names = [f"{number:03}" for number in range(250)]
    for start in range(0, 250, 50):
        if state == "processed":
            scene.process(*names[start : start + 50])
        else:
            scene.fail(*names[start : start + 50])
    found: list[str] = []
    address = f"/objects?state={state}"
    for _ in range(5):
        shown = page(client, address)
        found += listed(shown)
        following = re.search(r'<a href="([^"]+)" rel="next">', shown)
        if following is None:
            break
        address = unescape(following[1])
    assert sorted(found) == names


@pytest.mark.parametrize(
    "query",
    [
        {"state": "no"},
        {"pipeline": "no"},
        {"after": "x"},
        {"after": "[1,2]"},
        {"after": "[" * 5_000},
        {"after": '["time",1,"x","","",""]'},
        {"after": '["time",1,NaN,"","",""]'},
        {"after": '["time",1,1e999,"","",""]'},
        {"after": '["attempt",1,0,"a\\u0000","",""]'},
        {"after": '["attempt",1,0,"a\\ud800","",""]'},
        {"after": '["id",1,0,"","","zz"]'},
        {"after": '["id",' + "9" * 5_000 + ',0,"","",""]'},
    ],
)
def test_bad_parameters_get_one_clear_sentence(client: TestClient, query: dict[str, str]) -> None:
    shown = page(client, "/objects", status=400, **query)
    assert "This is not possible" in shown
    assert "Traceback" not in shown


# Searches


@pytest.mark.parametrize("text", ["s3://landing/2026/a.jsonl", "landing/2026/a.jsonl", "  s3://landing/2026/a.jsonl "])
def test_an_exact_address_leads_to_the_object(scene: ObjectScene, client: TestClient, text: str) -> None:
    scene.process("2026/a.jsonl")
    response = client.get("/objects", params={"q": text}, follow_redirects=False)
    assert response.status_code == 303
    assert parse_qs(urlsplit(response.headers["location"]).query) == {"address": ["s3://landing/2026/a.jsonl"]}


def test_an_address_of_another_pipeline_than_the_chosen_one_is_not_found(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.process("a")
    assert "No object found" in page(client, "/objects", q="s3://landing/a", pipeline="orders")


def test_a_part_of_an_address_is_searched_in_all_states_failed_ones_first(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.fail("2026/bad.JSONL")
    scene.process("2026/a.jsonl", "2025/b.jsonl")
    scene.process("2026/c.jsonl")
    shown = page(client, "/objects", q="2026/")
    assert listed(shown)[0] == "2026/bad.JSONL"
    assert sorted(listed(shown)) == ["2026/a.jsonl", "2026/bad.JSONL", "2026/c.jsonl"]
    assert "Every address in the ledger was compared with 2026/." in shown
    assert listed(page(client, "/objects", q="JSONL", state="dead")) == ["2026/bad.JSONL"]


def test_a_search_that_runs_out_of_time_says_how_far_it_came_and_goes_on(
    scene: ObjectScene, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x1", "y1", "x2", "y2"):
        scene.process(name)
    refresh(client)
    monkeypatch.setattr(search_module, "READ_FIRST", 1)
    monkeypatch.setattr(objects_module, "SEARCH_SECONDS", 0.0)
    shown = page(client, "/objects", q="x1")
    assert "Searched 1 of 4 objects for x1" in seen(shown)
    assert "Continue the search" in shown
    addresses = []
    while (following := re.search(r'<a href="([^"]+)" rel="next">', shown)) is not None:
        addresses.append(unescape(following[1]))
        shown = page(client, addresses[-1])
    assert len(addresses) == 4, "one object each, and one to see that there are no more"
    assert listed(page(client, addresses[2])) == ["x1"]
    assert "Every address in the ledger was compared with x1." in shown


def test_more_objects_than_a_sorted_list_holds_are_read_by_attempt_and_id(
    scene: ObjectScene, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        scene.fail(name)
        scene.fail(f"wait {name}", failure=AttemptFailure.RETRY)
    monkeypatch.setattr(search_module, "RARE_MAX", 2)
    found = listed(page(client, "/objects"))
    assert found[:3] == ["c", "b", "a"]
    assert sorted(found[3:]) == ["wait a", "wait b", "wait c"]
    scene.fail("wait d", failure=AttemptFailure.RETRY, pipeline="orders")
    monkeypatch.setattr(objects_module, "PAGE_OBJECTS", 1)
    found, shown = [], page(client, "/objects")
    while (following := re.search(r'<a href="([^"]+)" rel="next">', shown)) is not None:
        found += listed(shown)
        shown = page(client, unescape(following[1]))
    assert sorted([*found, *listed(shown)]) == ["a", "b", "c", "wait a", "wait b", "wait c", "wait d"]
    assert listed(page(client, "/objects", q="wait b")) == ["wait b"]


def test_nothing_found_says_why_and_leads_on(client: TestClient) -> None:
    shown = page(client, "/objects", q="s3://landing/none.jsonl")
    assert "No object found" in shown
    assert 'href="/object?address=s3%3A%2F%2Flanding%2Fnone.jsonl"' in shown


# One object


def test_an_object_that_is_done_has_its_batch_message_and_attempt(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", unknown=UnknownCounts(fields={"extra": 2}, others=1, wrong_type={"id": 3}))
    shown = page(client, "/object", address="s3://landing/a")
    assert "Nothing is to be done" in shown
    assert 'href="/batch?pipeline=clicks&amp;seq=1"' in shown
    assert 'href="/message?queue=clicks-files&amp;id=message+of+a"' in shown
    assert 'href="/worker?id=worker-1"' in shown
    assert "shop:clean" in shown
    for words in ("extra no column 2", "other fields no column 1", "id another type 3", "2.0 kB"):
        assert words in seen(shown)
    assert "Retry this object" not in shown


def test_a_failed_object_has_its_reason_its_traceback_and_commands(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a b")
    shown = page(client, "/object", address="s3://landing/a b")
    assert "it is truncated" in shown
    assert "KeyError: &#39;amount&#39;" in shown
    assert "<details" in shown
    assert TRACEBACK.splitlines()[1].strip() in unescape(shown)
    assert "penstock dead replay --app shop:app --object 's3://landing/a b'" in unescape(shown)
    assert "penstock objects retry --app shop:app 's3://landing/a b'" in unescape(shown)
    assert "Retry this object" in shown


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (AttemptFailure.RETRY, "It waits for a worker."),
        (AttemptFailure.DELETED, "It was deleted before a worker read it"),
        (AttemptFailure.SUPERSEDED, "A newer version replaced it before a worker read it"),
    ],
)
def test_other_ends_are_explained(scene: ObjectScene, client: TestClient, failure: AttemptFailure, words: str) -> None:
    scene.fail("a", failure=failure)
    assert words in page(client, "/object", address="s3://landing/a")


def test_an_object_in_progress_names_its_worker(scene: ObjectScene, client: TestClient) -> None:
    scene.claim("a")
    shown = page(client, "/object", address="s3://landing/a")
    assert "A worker processes it now" in shown
    assert "running" in seen(shown)


def test_a_changed_object_has_all_versions_and_the_batch_that_replaced_the_first(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.process("a")
    scene.process("a", version="2")
    shown = page(client, "/object", address="s3://landing/a")
    assert "The ledger knows 2 versions of this object" in shown
    assert shown.index("etag-2") < shown.index("etag-1"), "the newest first"
    assert seen(shown).count("replaced by a later version") == 1
    assert 'href="/batch?pipeline=clicks&amp;seq=2">Batch 2</a>' in shown


def test_a_retracted_object_names_the_user_and_may_be_retried(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a")
    scene.retract("a")
    shown = page(client, "/object", address="s3://landing/a")
    assert "retracted by ann: sent twice" in shown
    assert "Its rows were taken out of the table by hand" in shown
    assert "Retry this object" in shown


def test_a_reopened_object_keeps_its_rows_until_it_is_read_again(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a")
    scene.reopen("a")
    shown = page(client, "/object", address="s3://landing/a")
    assert "Until then the table keeps the 20 rows of its earlier reading, in batch 1." in shown
    assert "to be read again" in page(client, "/objects")


def test_an_overdue_object_says_since_when(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("a", failure=AttemptFailure.RETRY)
    with scene.ledger.database.writing() as connection:
        connection.execute(update(objects).values(first_seen_at=objects.c.first_seen_at - 3 * 86_400))
    shown = page(client, "/object", address="s3://landing/a")
    assert "It has waited for 3 d, which is longer than allowed." in shown
    assert 'href="/queue?name=clicks-files"' in shown
    assert 'href="/reconcile"' in shown


def test_bad_lines_lead_to_the_quarantine(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", bad_lines=9)
    shown = page(client, "/object", address="s3://landing/a")
    assert "penstock quarantine show --app shop:app s3://landing/a" in shown
    assert "many bad lines" in shown
    assert "Its rows are in the batch, without those of its bad lines." in shown
    assert "Nothing is to be done" not in shown


def test_an_object_without_a_good_line_has_no_rows(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", bad_lines=9, rows=0)
    shown = page(client, "/object", address="s3://landing/a")
    assert "The table has no row of it, because all its lines are bad." in shown
    assert "Nothing is to be done" not in shown


def test_objects_with_many_bad_lines_need_attention(scene: ObjectScene, client: TestClient) -> None:
    scene.process("good")
    scene.process("bad", bad_lines=9)
    shown = page(client, "/objects")
    assert (
        shown.partition("Objects with many bad lines")[2].count('href="/object?address=s3%3A%2F%2Flanding%2Fbad"') == 1
    )
    assert "landing/good" not in shown
    assert "Objects with many bad lines" not in page(client, "/objects", state="processed")


def test_an_archived_identity_is_known(scene: ObjectScene, client: TestClient) -> None:
    ref = scene.ref("old")
    with scene.ledger.database.writing() as connection:
        connection.execute(
            archives.insert().values(
                id="01ARCHIVE", pipeline="clicks", uri=None, objects=1, bytes=0, source="the old loader", created_at=1.0
            )
        )
        connection.execute(
            archived_objects.insert().values(
                pipeline="clicks", object_id=ref.object_id, uri_digest=uri_digest(ref.uri), archive_id="01ARCHIVE"
            )
        )
    shown = page(client, "/object", address=ref.uri)
    assert "imported from the old loader" in shown
    response = client.get("/objects", params={"q": ref.uri}, follow_redirects=False)
    assert response.status_code == 303
    assert "1 archived object was not searched" in page(client, "/objects", q="nothing")


def test_an_archived_object_has_its_record_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = Scene.at(tmp_path)
    table.read({"a": [1, 2]})
    table.publish()
    with closing(Ledger.open(table.where.state / LEDGER_FILE)) as ledger:
        archivist = Archivist(
            ledger=ledger,
            pipeline=table.where.pipeline,
            location=LocalFiles(table.where.state / "archive"),
            probe=lambda _: None,
            clock=FakeClock(),
        )
        assert archivist.run(older_than_seconds=-1.0, up_to_seq=1).objects == 1
    with client_of(find_scope(ScopeRequest(), here=tmp_path)) as client:
        shown = page(client, "/object", address=table.ref("a").uri)
        assert "archived" in shown
        assert "Retry this object" not in shown
        assert "1 archived object was not searched" in page(client, "/objects", q="nothing")
        assert listed(page(client, "/objects", state="all")) == []


# Unknown ones


def test_an_unknown_object_lists_possible_causes(scene: ObjectScene, client: TestClient) -> None:
    scene.reconciled(missing=3, sent=2)
    shown = page(client, "/object", address="s3://landing/x/none.jsonl")
    assert "The ledger knows no object with exactly this address." in shown
    assert 'href="/objects?q=none.jsonl"' in shown
    assert "found 3 missing objects and enqueued 2" in seen(shown)
    assert "This object may be one of them" in shown
    assert "penstock reconcile --app shop:app clicks" in shown
    assert "The source of this pipeline was never compared with the ledger." in shown, "that of orders"


def test_an_unknown_object_elsewhere_is_not_among_the_missing(scene: ObjectScene, client: TestClient) -> None:
    scene.reconciled(missing=3, sent=2)
    shown = page(client, "/object", address="s3://other/none.jsonl")
    assert "This object may be one of them" not in shown


def test_a_page_without_an_address_asks_for_one(client: TestClient) -> None:
    assert "Which object?" in page(client, "/object", status=400)


# Hostile addresses (INPUTS 40 to 42)


@pytest.mark.parametrize("name", HOSTILE)
def test_any_address_is_listed_found_and_shown_harmlessly(scene: ObjectScene, client: TestClient, name: str) -> None:
    scene.fail(name, reason=f"{name} is bad")
    uri = scene.ref(name).uri
    shown = page(client, "/objects")
    assert listed(shown) == [uri.removeprefix("s3://landing/")]
    link = re.search(r'href="(/object\?[^"]+)"', shown)
    assert link is not None
    for text in (page(client, unescape(link[1])), page(client, "/object", address=uri), shown):
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    response = client.get("/objects", params={"q": uri}, follow_redirects=False)
    assert parse_qs(urlsplit(response.headers["location"]).query, keep_blank_values=True)["address"] == [uri]


@pytest.mark.parametrize("name", HOSTILE)
def test_unknown_hostile_addresses_are_harmless(client: TestClient, name: str) -> None:
    for shown in (
        page(client, "/object", address=f"s3://landing/{name}"),
        page(client, "/objects", q=name),
        page(client, f"/objects?q={quote(name)}&pipeline=clicks&state=dead"),
    ):
        assert "<script>alert" not in shown
        assert "\x1b" not in shown


def test_everything_is_there_in_japanese(scene: ObjectScene, client: TestClient) -> None:
    scene.fail("名前.jsonl")
    client.headers["accept-language"] = "ja"
    assert "要確認" in page(client, "/objects")
    shown = page(client, "/object", address="s3://landing/名前.jsonl")
    assert "処理に失敗しました" in shown
    assert "名前.jsonl" in shown
    assert "完全に一致するオブジェクトは台帳にありません" in page(client, "/object", address="s3://landing/no")


def test_the_errors_of_an_object_are_shown_without_secrets(scene: ObjectScene, client: TestClient) -> None:
    traceback = "Traceback (most recent call last):\nValueError: password=hunter2"
    scene.fail("a", reason="no login with password=hunter2", traceback=traceback)
    for shown in (page(client, "/object", address=scene.ref("a").uri), page(client, "/objects")):
        assert "no login with password=***" in shown
        assert "hunter2" not in shown
