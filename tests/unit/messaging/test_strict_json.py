"""Strict JSON: each refused body gets a specific reason."""

import sys

import pytest

from penstock.errors import InvalidMessage
from penstock.messaging import schema


def refusal_of(body: bytes) -> str:
    with pytest.raises(InvalidMessage) as caught:
        schema.load(schema.decode(body))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "UTF-16"),
        ("{}".encode("utf-16-le"), "UTF-16"),
        ("{}".encode("utf-16-be"), "UTF-16"),
        ("{}".encode("utf-32"), "UTF-16 or UTF-32"),
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff at offset 7"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a"', "not JSON"),
        (b"{} {}", "Extra data at line 1 column 4"),
        (b'{"a": "\n"}', "not JSON: Invalid control character"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[Infinity]", "Infinity is not"),
        (b"[-Infinity]", "-Infinity is not"),
        (b"[1e400]", "1e400 is too large"),
        (b"[-1e400]", "-1e400 is too large"),
        (b"[" + b"9" * 5_000 + b"]", "integer of 5000 digits"),
        (b'[{"x": {"a": 1, "b": 2, "a": 1}}]', 'key "a" appears twice'),
        (b'{"a": 1, "\\u0061": 2}', 'key "a" appears twice'),
        (b'["\\ud800"]', "lone surrogate, \\ud800"),
        (b'["\\uDC00\\ud800"]', "lone surrogate, \\udc00"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b"[" * 100_000, "nested deeper than 100"),
        (b'{"a":' * 100_000, "nested deeper than 100"),
        (b"[" * 101 + b"]" * 101, "nested deeper than 100"),
    ],
)
def test_invalid_json_is_refused_with_its_reason(body: bytes, expected: str) -> None:
    reason = refusal_of(body)
    assert expected in reason
    assert reason.isprintable()
    assert len(reason) < 200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 100 + "]" * 100, None),
        ("[" + "[],{}," * 500 + "1]", None),  # wide is not deep
        ('["' + "[" * 500 + '"]', ["[" * 500]),  # brackets in a string do not count
        ('["\\"' + "{" * 500 + '"]', ['"' + "{" * 500]),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\\\ud800"', "\\ud800"),  # an escaped backslash, not a surrogate
        ("[1.5, 1e300, -0]", [1.5, 1e300, 0]),
        ("9" * 100, int("9" * 100)),
    ],
)
def test_valid_json_is_accepted(text: str, value: object) -> None:
    loaded = schema.load(text)
    assert value is None or loaded == value


def test_the_depth_limit_does_not_depend_on_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000_000)  # Python's reader would overflow the C stack
    try:
        assert "nested deeper" in refusal_of(b"[" * 1_000_000)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.timeout(20)
def test_an_unclosed_string_of_escapes_is_read_once() -> None:
    # Searching for the end of the string again at each of 300,000 quotes would take minutes.
    assert "Unterminated string" in refusal_of(b"[" + b"[]," * 200 + b'"' + b'\\"' * 300_000)
