"""The audit page: newest first, filtered, in pages; entries that did not end are marked."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.web.clients import FormClient, client_of
from ulid import ULID

from penstock import App
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.ledger import dead_letters as module
from penstock.web.audit import ACTIONS, ROWS_MAX, detail_texts
from penstock.web.texts import texts_in

Write = Callable[..., str]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        broker=f"sqlite:///{tmp_path}/queue.db", ledger=f"sqlite:///{tmp_path}/ledger.db", data_dir=str(tmp_path)
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[FormClient]:
    with client_of(App(name="shop", settings=settings)) as client:
        yield client


@pytest.fixture
def write(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that records an action; one second after the last, by its id."""
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(module, "ULID", lambda: ULID.from_timestamp(next(seconds)))
    with closing(Ledger.open(settings.ledger)) as ledger:

        def write(
            who: str = "ann@host",
            action: str = "replay",
            queue: str = "orders-dlq",
            outcome: str | None = "done",
            messages: int = 0,
            **details: Any,
        ) -> str:
            entry = ledger.audits.begin(action, queue=queue, who=who, details=details)
            if outcome is not None:
                ledger.audits.end(entry, messages=messages, outcome=outcome)
            return entry

        yield write


def shown_in(page: str) -> list[str]:
    return re.findall(r'<td class="name">(who\d+|[a-z]+@host)</td>', page)


def test_an_empty_log_explains_itself(client: FormClient) -> None:
    assert "Nothing was changed by hand yet" in client.get("/audit").text


def test_entries_are_shown_with_user_action_time_number_and_outcome(client: FormClient, write: Write) -> None:
    write(messages=1_234, error="timeout", canary=None, ids=["a", "b"])
    page = client.get("/audit").text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    assert re.search(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ann@host replay dead letters orders-dlq 1,234 done 0 s error: timeout", text
    )
    assert 'ids ["a", "b"]' in text.replace("&#34;", '"')
    assert "canary" not in page


@pytest.mark.parametrize(
    ("outcome", "text", "kind"),
    [
        (None, "not ended", "warn"),
        ("done", "done", "good"),
        ("interrupted", "interrupted", "warn"),
        ("failed", "failed", "bad"),
        ("aborted", "aborted", "plain"),
    ],
)
def test_outcomes_are_marked(outcome: str | None, text: str, kind: str, client: FormClient, write: Write) -> None:
    write(outcome=outcome)
    assert f'<span class="badge {kind}">{text}</span>' in client.get("/audit").text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["bob@host", "eve@host", "ann@host"]),
        ("who=ANN", ["ann@host"]),
        ("who=host", ["bob@host", "eve@host", "ann@host"]),
        ("action=purge", ["bob@host"]),
        ("action=pur", []),
        ("queue=mails", ["bob@host", "eve@host"]),
        ("queue=mails&who=eve", ["eve@host"]),
        ("who=%25", []),
        ("who=_nn", []),
        ("who=%00", []),
        ("before=%00", ["bob@host", "eve@host", "ann@host"]),
        ("before=x", ["bob@host", "eve@host", "ann@host"]),
        ("who=" + "x" * 5_000, []),
    ],
)
def test_entries_are_filtered(query: str, expected: list[str], client: FormClient, write: Write) -> None:
    write()
    write(who="eve@host", queue="mails-dlq")
    write(who="bob@host", action="purge", queue="mails-dlq")
    page = client.get(f"/audit?{query}").text
    assert shown_in(page) == expected
    assert ("No entry matches" in page) == (not expected)


def test_filters_are_kept_in_the_form(client: FormClient, write: Write) -> None:
    write()
    page = client.get("/audit?who=an%22n&action=replay&queue=q").text
    assert 'name="who" value="an&#34;n"' in page
    assert '<option value="replay" selected>' in page


def test_pages_follow_each_other_without_gaps_and_keep_the_filter(client: FormClient, write: Write) -> None:
    for number in range(ROWS_MAX + 2):
        write(who=f"who{number}")
    write(who="eve@host")
    first = client.get("/audit?who=who").text
    assert shown_in(first) == [f"who{number}" for number in range(ROWS_MAX + 1, 1, -1)]
    (following,) = re.findall(r'<a href="([^"]*)" rel="next">', first)
    second = client.get(following.replace("&amp;", "&")).text
    assert shown_in(second) == ["who1", "who0"]
    assert 'rel="next"' not in second
    assert 'href="/audit?who=who"' in second


def test_hostile_entries_are_harmless(client: FormClient, write: Write) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    write(who=hostile, queue=hostile, error=hostile, **{"</dl><b>": "x"})
    page = client.get("/audit").text
    assert "<script>alert" not in page
    assert "</dl><b>" not in page
    assert not {"\x1b", "\u202e"} & set(page)


def test_actions_have_names_in_each_language_and_unknown_ones_are_shown_as_they_are(
    client: FormClient, write: Write
) -> None:
    write(action="drain")
    write(action="{0} <b>")
    english = client.get("/audit").text
    japanese = client.get("/audit", headers={"Accept-Language": "ja"}).text
    assert ">drain a worker</td>" in english
    assert ">ワーカーをドレイン</td>" in japanese
    for page in (english, japanese):
        assert ">{0} &lt;b&gt;</td>" in page


@pytest.mark.parametrize("text", ACTIONS.values())
def test_each_name_of_an_action_has_its_japanese(text: str) -> None:
    assert text in texts_in("ja").translations


def test_long_details_are_cut() -> None:
    ((name, text),) = detail_texts({"ids": ["x" * 26] * 2_000, "none": None, "empty": "", "list": []})
    assert (name, len(text)) == ("ids", 303)
