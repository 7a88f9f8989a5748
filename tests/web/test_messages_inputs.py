"""Row 88: the pages of messages stay themselves, whatever bodies, keys, names and errors they show.

A page is parsed, and its elements and their attributes must be those of a page with a plain message.
"""

import gzip
import io
import json
import pickle
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.web.clients import client_of
from tests.web.markup import Markup, harmless

from penstock import App
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter, Release

PAGE_CHARS_MAX = 800_000  # 64 Ki characters of ten each, and the page around them
QUOTES = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>"


def notification(key: object, **fields: object) -> bytes:
    record = {"eventVersion": "2.1", "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 1}}, **fields}
    return json.dumps({"Records": [record]}).encode()


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 20_000_000)
    return buffer.getvalue()


BODIES: Mapping[str, bytes] = {
    "row_01_empty": b"",
    "row_01_blank": b" \n\t ",
    "row_02_not_json": b"hello <b>world</b>",
    "row_03_truncated": b'{"a": [1, {"b": "<i>',
    "row_04_invalid_utf_8": b'{"a": "\xff\xfe<script>alert(1)</script>"}',
    "row_05_bom": b'\xef\xbb\xbf{"a": 1}',
    "row_06_utf_16": '{"a": "<script>"}'.encode("utf-16"),
    "row_06_utf_16_without_mark": '{"a": "<script>"}'.encode("utf-16-le"),
    "row_07_nested_lists": b"[" * 100_000 + b"]" * 100_000,
    "row_07_nested_objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "row_07_nested_and_open": b"[" * 100_000,
    "row_07_nested_secret": b'{"token":' * 100_000 + b"1" + b"}" * 100_000,
    "row_08_not_a_number": b'{"a": NaN, "b": Infinity}',
    "row_09_too_large_number": b'{"a": 1e400}',
    "row_10_integer_of_5000_digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "row_11_duplicate_keys": b'{"a": 1, "a": "<script>alert(1)</script>", "a": 3}',
    "row_12_lone_surrogate": b'{"a": "\\ud800<script>\\udfff"}',
    "row_12_lone_surrogate_in_utf_8": b'{"a": "\xed\xa0\x80"}',
    "row_13_string": b'"<script>alert(1)</script>"',
    "row_14_list": b'["<script>alert(1)</script>"]',
    "row_15_no_records": b'{"Message": "<script>alert(1)</script>"}',
    "row_16_records_null": b'{"Records": null}',
    "row_17_records_of_wrong_type": b'{"Records": "<script>"}',
    "row_18_bad_record_among_good_ones": json.dumps({"Records": [{"s3": {}}, None, QUOTES]}).encode(),
    "row_19_record_without_key": notification(None),
    "row_20_key_with_nul": notification("a\0b"),
    "row_20_raw_nul": b"a\0b\0<script>",
    "row_21_long_key": notification("k" * 2_000 + QUOTES),
    "row_22_bucket": notification("k", bucket=QUOTES),
    "row_23_unknown_version": b'{"penstock-schema": 999}',
    "row_24_negative_size": notification("k", size=-1),
    "row_25_ten_megabytes_of_text": b"<script>" * 1_250_000,
    "row_25_ten_megabytes_of_json": b'{"a": "' + b"<b>" * 3_300_000 + b'"}',
    "row_25_ten_megabytes_of_tokens": b"[" + b"1," * 4_999_999 + b"1]",
    "row_25_ten_megabytes_of_backslashes": b'"' + b"\\" * 10_000_000,
    "row_25_ten_megabytes_of_zeros": b"\0" * 10_000_000,
    "row_25_ten_megabytes_of_bytes": b"\xff<x>" * 2_500_000,
    "row_26_pickle": pickle.dumps({"a": QUOTES}, protocol=4),
    "row_27_url": notification("https://example.test/?a=1&b=2#<script>"),
    "row_27_script_url": b'"javascript:alert(1)"',
    "row_28_gzip_bomb": gzip.compress(b"\0" * 20_000_000),
    "row_29_zip_bomb": zip_bomb(),
    "row_30_corrupt_gzip": gzip.compress(b"x" * 100)[:-9] + b"<script>",
    "row_31_size": notification("k", size=10**18),
    "row_32_etag": notification("k", eTag=QUOTES),
    "row_33_model": b'{"count": "<script>"}',
    "row_34_event_version": notification("k", eventVersion="9<script>"),
    "row_35_path": notification("../../etc/passwd"),
    "row_36_absolute_path": notification("/etc/passwd"),
    "row_37_percent": notification("%252F%3Cscript%3E"),
    "row_38_plus": notification("a+b%2Bc"),
    "row_39_plus_of_eventbridge": b'{"detail": {"object": {"key": "%2B"}}}',
    "row_40_line_feed_and_ansi": notification("a\nb\x1b[31mred\x1b[0m\x1b]0;title\x07"),
    "row_40_raw_ansi": b"\x1b[31mred\x1b[0m\r\nnext\x9b31m",
    "row_41_sql": notification("'; DROP TABLE messages; --"),
    "row_42_script": b"<script>alert(1)</script>",
    "row_42_script_in_json": notification(QUOTES),
    "row_42_template": b"{{ 7 * 7 }} {% raw %} ${7*7} #{7*7}",
    "row_42_end_of_page": b"</pre></main></body></html><!-- x --><![CDATA[ <?php ?> &lt;script&gt; &#60;b&#62;",
    "row_42_textarea": b"</textarea></title></style></noscript><plaintext>",
    "row_46_japanese": "{\"key\": \"\u30c7\u30fc\u30bf\u3000\u6771\u4eac.csv\"}".encode(),
    "row_47_formula": b'=HYPERLINK("http://x.test","<b>")\n+1\n-1\n@SUM(A1)',
    "row_88_right_to_left": "\u202egnp.exe\u2066\u2067\u2069\u200f\u061c".encode(),
    "row_88_invisible": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041\u2028f\u2029".encode(),
    "row_88_controls": bytes(range(32)) + b"\x7f" + "\x80\x85\x9f".encode(),
    "row_88_combining": ("e" + "\u0301" * 5_000).encode(),
    "row_88_every_byte": bytes(range(256)) * 100,
}  # fmt: skip
NAMES: Mapping[str, str] = {
    "row_35_path": "../../etc/passwd",
    "row_37_percent": "%2F%253Cscript%253E",
    "row_40_line_feed_and_ansi": "a\nb\r\x1b[31mred\x07",
    "row_41_sql": "'; DROP TABLE messages; --",
    "row_42_script": "<script>alert(1)</script>",
    "row_42_attribute": '" onmouseover="alert(1)" style="x" x="',
    "row_42_attribute_in_single_quotes": "' onfocus='alert(1)' autofocus x='",
    "row_42_attribute_without_quotes": "x onclick=alert(1) >",
    "row_42_script_url": "javascript:alert(1)",
    "row_42_other_site": "//example.test/?a=1&b=2#c",
    "row_42_template": "{{ 7 * 7 }}{queue}{0.__class__}%s",
    "row_42_entity": "&lt;script&gt;&#x3c;b&#x3e;",
    "row_44_blanks": " a ",
    "row_45_emoji": "\U0001f600\u200d\U0001f525",
    "row_46_japanese": "\u30c7\u30fc\u30bf\u3000\u6771\u4eac",
    "row_47_formula": "=cmd|' /C calc'!A0",
    "row_88_nul": "a\0b",
    "row_88_right_to_left": "\u202egnp.exe\u2066",
    "row_88_long": "n" * 1_000,
}


class Site:
    """A dashboard, and the structure of its pages of a plain message."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "queue.db"
        self.broker = SqliteBroker(self.file, holder="w")
        given = {"broker": f"sqlite:///{self.file}", "ledger": f"sqlite:///{folder}/ledger.db"}
        app = App(name="shop", settings=Settings(data_dir=str(folder), **given))  # type: ignore[arg-type]
        self.client = client_of(app)
        self.plain_id = self.send("plain", b"text")

    def send(self, queue: str, body: bytes, **options: object) -> str:
        """Put a message into the queue, as another program would that does not keep to the broker's limits."""
        small = body if len(body) < 1024 * 1024 else b"replaced below"
        (id,) = self.broker.send(queue, [Outgoing(body=small, **options)])  # type: ignore[arg-type]
        if small is not body:
            with sqlite3.connect(self.file) as connection:
                connection.execute("UPDATE messages SET body = ? WHERE id = ?", (body, int(id.rpartition("-")[2])))
            connection.close()
        return id

    def page(self, path: str, **query: str) -> Markup:
        response = self.client.get(f"{path}?{urlencode(query, errors='surrogatepass')}")
        assert response.status_code in (200, 404), response.text
        assert len(response.text) < PAGE_CHARS_MAX
        return harmless(response.text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.client:
        yield site
    site.broker.close()


def shapes_but(page: Markup, *optional: str) -> Counter[tuple[str, tuple[str, ...]]]:
    """Count the elements without those that only say how the body is shown."""
    return Counter({shape: count for shape, count in page.shapes.items() if shape[0] not in optional})


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_body(site: Site, body: bytes, language: str) -> None:
    site.client.cookies.set("penstock_language", language)
    queue = "bodies"
    id = site.send(queue, body)
    plain, page = site.page("/message", queue="plain", id=site.plain_id), site.page("/message", queue=queue, id=id)
    optional = ("strong", "pre", "p", "div", "a")  # cut, or empty and hidden bodies, which have no text or download
    assert shapes_but(page, *optional) == shapes_but(plain, *optional)
    hex_dump = ("pre", ("aria-labelledby", "class", "role", "tabindex"))
    for shape in page.shapes - plain.shapes:
        assert shape in {("strong", ()), ("p", ()), ("div", ("class",)), ("p", ("class",)), hex_dump}
    listed, plain_list = site.page("/messages", queue=queue), site.page("/messages", queue="plain")
    assert shapes_but(listed, "span") == shapes_but(plain_list, "span")
    assert listed.shapes - plain_list.shapes <= Counter({("span", ("class",)): 1})  # a hidden body
    site.broker.discard(queue, [id])


@pytest.mark.parametrize(
    "row", ["row_42_script", "row_42_end_of_page", "row_42_template", "row_41_sql", "row_37_percent"]
)
def test_a_body_is_shown_literally(site: Site, row: str) -> None:
    id = site.send("bodies", BODIES[row])
    text = site.page("/message", queue="bodies", id=id).part("pre")
    shown = json.loads(text) if text.startswith("{\n") else text
    assert shown == (json.loads(BODIES[row]) if shown is not text else BODIES[row].decode())
    site.broker.discard("bodies", [id])


@pytest.mark.parametrize(
    ("row", "visible"),
    [
        ("row_40_raw_ansi", ["\\x1b[31mred\\x1b[0m\\x0d\nnext"]),
        ("row_88_right_to_left", ["\\u202egnp.exe\\u2066"]),
        ("row_88_invisible", ["a\\u200bb\\u2060c\\ufeffd\\xade\\U000e0041\\u2028f"]),
        ("row_88_controls", ["\\x00\\x01", "\\x7f\\x80\\x85\\x9f"]),
        ("row_20_raw_nul", ["a\\x00b\\x00<script>"]),
        ("row_46_japanese", ["\u30c7\u30fc\u30bf\u3000\u6771\u4eac.csv"]),
    ],
)
def test_invisible_characters_are_made_visible(site: Site, row: str, visible: list[str]) -> None:
    body = BODIES[row] if row != "row_40_raw_ansi" else BODIES[row].removesuffix(b"\x9b31m")
    id = site.send("bodies", body)
    text = site.page("/message", queue="bodies", id=id).part("pre")
    assert all(part in text for part in visible)
    site.broker.discard("bodies", [id])


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_queue_name(site: Site, name: str) -> None:
    queue = f"q{name}"
    id = site.send(queue, b"text")
    for path, query in (("/messages", {}), ("/message", {"id": id}), ("/message", {"id": "missing"})):
        page = site.page(path, queue=queue, **query)
        plain = site.page(path, queue="plain", **({"id": site.plain_id} if query == {"id": id} else query))
        assert page.shapes == plain.shapes
    address = next(link for link in site.page("/messages", queue=queue).values("a", "href") if "/message?" in link)
    assert site.client.get(address).status_code == 200  # the link leads to this very queue
    site.broker.discard(queue, [id])


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_ids_queues_and_positions_of_addresses(site: Site, name: str) -> None:
    plain = site.page("/message", queue="plain", id="missing")
    assert site.page("/message", queue="plain", id=name, near=name, received=name).shapes == plain.shapes
    for path, query in (
        ("/messages", {"queue": f"none{name}"}),
        ("/messages", {"queue": "plain", "state": f"x{name}"}),
        ("/messages", {"queue": "plain", "after": f"x{name}"}),
        ("/message/body", {"queue": f"none{name}", "id": name}),
    ):
        response = site.client.get(f"{path}?{urlencode(query)}")
        assert response.status_code == 400
        harmless(response.text)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_group_attributes_and_a_worker(site: Site, name: str) -> None:
    queue = "names"
    attributes: dict[str, str | bytes] = {
        f"a{name}": name,
        "b": name.encode(),
        "penstock-type": name,
        "penstock-schema": name,
        "penstock-deduplication-id": name,
        "penstock-outbox-id": name,
        "penstock-origin-id": name,
        "traceparent": name,
    }
    plain = site.send(queue, b"text", group="g", attributes=dict.fromkeys(["a", *list(attributes)[1:]], "x"))
    foreign = site.send(queue, b"text", group=name, attributes=attributes)
    worker = SqliteBroker(site.file, holder=f"w{name}")
    worker.receive(queue, messages_max=2, lease_seconds=60)
    pages = [site.page("/message", queue=queue, id=id) for id in (plain, foreign)]
    assert pages[0].shapes == pages[1].shapes
    site.page("/messages", queue=queue, state="in_flight")
    site.broker.discard(queue, [plain, foreign])
    worker.close()


def died(site: Site, name: str) -> str:
    """Dead-letter a message with this name in everything that a failure records; return its id."""
    worker = SqliteBroker(site.file, holder=f"w{name}")
    site.send("graves", b"text")
    for settlement in (
        Release(reason=name),
        DeadLetter(reason=name, exception=name, traceback=f"Traceback\n{name}", handler=name, fingerprint=name),
    ):
        (delivery,) = worker.receive("graves", messages_max=1, lease_seconds=60)
        worker.settle([(delivery, settlement)])
    worker.close()
    (dead,) = site.broker.browse("graves-dlq", messages_max=2)
    return dead.id


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_error(site: Site, name: str) -> None:
    shapes = []
    for each in ("plain", name):
        id = died(site, each)
        shapes.append(site.page("/message", queue="graves-dlq", id=id).shapes)
        site.broker.discard("graves-dlq", [id])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "death",
    [
        "<script>",
        "{}",
        "[" * 100_000,
        "9" * 5_000,
        json.dumps({"reason": QUOTES, "attempts": -1}),
        json.dumps(
            {
                "reason": QUOTES,
                "attempts": 1,
                "last_failed_at": 1e308,
                "worker": QUOTES,
                "queue": QUOTES,
                "message_id": QUOTES,
                "enqueued_at": -1e308,
                "first_failed_at": 1e20,
                "traceback": QUOTES,
                "tries": [{"started_at": -1e308, "ended_at": 1e308, "worker": QUOTES, "end": QUOTES, "reason": QUOTES}],
            }
        ),
    ],
    ids=["script", "empty", "nested", "number", "negative", "times"],
)
def test_a_forged_death(site: Site, death: str) -> None:
    past = json.dumps([json.loads(death)]) if death.startswith('{"') else death
    attributes = {"penstock-death": death, "penstock-past": past, "penstock-set-aside": QUOTES}
    id = site.send("graves-dlq", b"text", attributes=attributes)
    page = site.page("/message", queue="graves-dlq", id=id)
    assert not {name for _, names in page.shapes for name in names} & {"onerror", "style", "onclick"}
    site.broker.discard("graves-dlq", [id])


def test_attributes_that_another_program_wrote(site: Site) -> None:
    id = site.send("plain", b"x")
    with sqlite3.connect(site.file) as connection:
        garbled = '{"<script>": [1, 2], "' + "\x00" * 100
        connection.execute("UPDATE messages SET attributes = ? WHERE id = ?", (garbled, int(id.rpartition("-")[2])))
    connection.close()
    assert "penstock-unreadable-attributes" in site.page("/message", queue="plain", id=id).text
    site.broker.discard("plain", [id])
