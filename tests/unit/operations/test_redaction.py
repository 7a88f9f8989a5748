"""Secrets in JSON and in texts are replaced, and nothing else; no input is slow or escapes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings
from penstock.messaging.addresses import MASK
from penstock.messaging.message import Message
from penstock.operations.redaction import NotJson, Redaction, compact, pretty
from penstock.operations.shown_bodies import BodyForm, download, printable, shown_body, shown_text

REDACTION = Redaction(tuple(Settings().web_redact))
SETTINGS = Settings()
SECRET = "S3CRET"
ENDLESS = 10**9

SECRET_KEYS = ["password", "Pass-Word", "DB_PASSWORD", "apiKey", "x-api-key", "accessToken", "Authorization"]
PLAIN_KEYS = ["a", "n", "tokens", "passwords_changed", "", "key", "\u30ad\u30fc", 'quo"te', "\\"]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab{["\\\u3042\ud800')
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(PLAIN_KEYS + SECRET_KEYS), inner, max_size=4)
        | st.dictionaries(st.sampled_from(PLAIN_KEYS + SECRET_KEYS), inner, min_size=1, max_size=2).map(json.dumps)
    ),
    max_leaves=12,
)


def message(body: bytes) -> Message:
    return Message(id="1", body=body, enqueued_at=0.0)


def redacted(value: Any) -> Any:
    """Return the value without secrets, by recursion: what the scanner must come to without one."""
    if isinstance(value, list):
        return [redacted(item) for item in value]
    if isinstance(value, dict):
        return {key: MASK if key in SECRET_KEYS else redacted(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.dumps(redacted(json.loads(value)))
        except ValueError:
            return value
    return value


def unpacked(value: Any) -> Any:
    """Return the value with JSON in strings as values: white space in it makes no difference."""
    if isinstance(value, list):
        return [unpacked(item) for item in value]
    if isinstance(value, dict):
        return {key: unpacked(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("{"):
        try:
            return unpacked(json.loads(value))
        except ValueError:
            return value
    return value


@given(values, st.sampled_from([None, 1]))
def test_secrets_are_replaced_and_everything_else_stays(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    expected = unpacked(redacted(value))
    assert unpacked(json.loads(compact(text, REDACTION).text)) == expected
    assert unpacked(json.loads(pretty(text, REDACTION, chars_max=ENDLESS).text)) == expected


@given(values)
def test_json_without_secrets_is_returned_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    assert compact(text, Redaction(())).text == text


@given(st.dictionaries(st.sampled_from(PLAIN_KEYS + SECRET_KEYS), st.just(SECRET), min_size=1), st.data())
def test_no_part_of_a_body_shows_a_secret(value: dict[str, str], data: st.DataObject) -> None:
    secrets = {key: text for key, text in value.items() if key in SECRET_KEYS}
    body = json.dumps([secrets, json.dumps(secrets), {"a": json.dumps([secrets])}]).encode()
    part = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.sampled_from([b"", b"\0", b"\xff", b"}", b" x"]))
    shown = shown_body(message(part), SETTINGS, chars_max=data.draw(st.sampled_from([20, 100, 10_000])))
    assert SECRET not in shown.text
    assert SECRET.encode().hex(" ") not in shown.text
    assert SECRET.encode() not in (download(message(part), SETTINGS) or b"")


@given(st.binary(max_size=200))
def test_any_bytes_are_shown_without_control_characters(body: bytes) -> None:
    shown = shown_body(message(body), SETTINGS)
    assert printable(shown.text) == shown.text
    assert shown.size_bytes == len(body)


@given(st.text('[]{}",:01.e-\\u tnrl\n', max_size=14))
def test_a_text_is_json_for_the_scanner_as_for_pythons_parser(text: str) -> None:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
        is_json = True
    except ValueError:
        is_json = False
    try:
        compact(text, REDACTION)
    except NotJson:
        assert not is_json
    else:
        assert is_json


@pytest.mark.parametrize(
    "text",
    ["", "[1,]", "[,1]", '{"a" 1}', '{"a":}', '{"a":1,}', "{1:2}", "[1 2]", "01", "1.", "-", "+1", "1e", ".5",
     "tru", "nulll", "[1]]", "[[1]",
     '{"a":1', '"a', '"\\x"', '"\\u12"', '"\n"', "{]", "[}", "1 1", "\ufeff1", "'a'", "//", "[1]//"],
)  # fmt: skip
def test_a_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        compact(text, REDACTION)


@pytest.mark.parametrize(
    ("key", "is_secret"),
    [
        ("password", True),
        ("PASSWORD", True),
        ("userPassword", True),
        ("db.password", True),
        ("aws_secret_access_key", True),
        ("AWSSecretKey", True),
        ("APIKey", True),
        ("pass\u200bword", True),
        ("token", True),
        ("id_token", True),
        ("max_tokens", False),
        ("tokenizer", False),
        ("password_changed_at", False),
        ("monkey", False),
        ("key", False),
        ("", False),
        ("x" * 100_000 + "_password", True),
    ],
)
def test_the_last_words_of_a_key_decide(key: str, is_secret: bool) -> None:
    assert REDACTION.names_secret(key) is is_secret


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", "plain text"),
        ("login(password='S3CRET', user='ann')\nnext", "login(password=***\nnext"),
        ("{'token': 'S3CRET'}", "{'token': ***"),
        ('"api_key"\n  :\n  "S3CRET"\nnext', '"api_key"\n  :\n  ***\nnext'),
        ("Authorization: Bearer S3CRET\nnext", "Authorization: ***\nnext"),
        ("secret={\n 'a': 'S3CRET'\n}", "secret=***"),
        ('token = """\nS3CRET\n"""', "token = ***"),
        ("?a=1&password=S3CRET", "?a=1&password=***"),
        ("?a=1&password%3DS3CRET", "?a=1&password%3D***"),
        ("<password>S3CRET</password>", "<password>***"),
        ("the token is lost", "the token is lost"),
        ('{"pass\\u0077ord": "S3CRET"}', "***"),
        ("p\0a\0s\0s\0w\0o\0r\0d\0=\0S3CRET", "***"),
    ],
)
def test_values_in_error_texts_are_replaced(text: str, expected: str) -> None:
    assert REDACTION.text(text).text == expected


def test_a_long_error_text_keeps_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_text("x" * 100 + "the error\x1b[31m", SETTINGS, chars_max=14)
    assert (shown.text, shown.cut) == ("the error\\x1b[31m", True)


@pytest.mark.parametrize("depth", [7, 9, 12])
def test_json_in_many_strings_hides_its_secret(depth: int) -> None:
    value = {"password": SECRET}
    for _ in range(depth):
        value = {"a": json.dumps(value)}
    assert SECRET not in compact(json.dumps(value), REDACTION).text


def test_a_very_long_secret_ends_the_shown_part() -> None:
    body = b'{"token": [' + b"1," * 100_000 + b'1], "a": "not reached"}'
    shown = shown_body(message(body), SETTINGS)
    assert (shown.form, shown.cut, shown.text) == (BodyForm.JSON, True, '{\n  "token": "***"')
    assert json.loads(download(message(body), SETTINGS) or b"") == {"token": MASK, "a": "not reached"}


@pytest.mark.parametrize(
    "text",
    ["\\" * 300_000, "\\" * 300_000 + "u", '"' * 300_000, "token" * 60_000, "token " * 60_000, "token" + " " * 300_000,
     "token_" * 60_000 + "=", "[" * 300_000, '{"a":' * 60_000, "\\u" * 150_000,
     '"\\u0070' * 40_000, "api" + "_" * 300_000],
    ids=range(12),
)  # fmt: skip
def test_texts_that_regular_expressions_dislike(text: str) -> None:
    """A pattern that takes quadratic time would need hours."""
    for value in (text, f'{{"a": {json.dumps(text)}}}'):
        shown_body(message(value.encode()), SETTINGS)
        download(message(value.encode()), SETTINGS)
        shown_text(value, SETTINGS)
        REDACTION.text(value)
