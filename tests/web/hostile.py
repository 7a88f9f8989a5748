"""Names, bodies and errors that try to break a page, a terminal or a log line."""

SCRIPT = "<script>document.title='broken'</script>"
IMAGE = '"><img src=x onerror="document.title=\'broken\'">'
TEMPLATE = "{{ 7*7 }}${7*7}{% raw %}"
FORMAT = "{count} {queue.__class__} %s %(name)s"

NAMES = (
    SCRIPT,
    IMAGE,
    TEMPLATE,
    FORMAT,
    "two\nlines",
    "\x1b[31mred\x1b[0m",
    "'; DROP TABLE objects; --",
    "\u202egnp.exe",  # right-to-left override
    "emoji😀😀😀",
    "a&amp;b<b>c",
    "../../etc/passwd",
    "名前" * 20,
    "x" * 200,
)

# The rows of bad messages, each with the reason that a worker records.
BODIES: tuple[tuple[bytes, str], ...] = (
    (b"", "the body is empty"),
    (b"not json", "the body is not JSON: Expecting value at byte 0"),
    (b'{"order": 1', "the body is not JSON: it ends within an object"),
    (b'{"name": "\xff\xfe"}', "the body is not UTF-8 at byte 10"),
    ("\ufeff{}".encode(), "the body begins with a byte order mark"),
    ('{"order": 1}'.encode("utf-16"), "the body is not UTF-8 at byte 0"),
    (b"[" * 100_000, "the body is nested deeper than 100 levels"),
    (b'{"price": NaN}', "NaN is not JSON"),
    (b'{"price": 1e400}', "the number 1e400 is out of range"),
    (b'{"number": ' + b"9" * 5_000 + b"}", "an integer has more than 4,300 digits"),
    (b'{"a": 1, "a": 2}', "the key a occurs twice"),
    (b'{"name": "\\ud800"}', "the text has a lone surrogate"),
    (b'"text"', "the body is a string, not an object"),
    (b"[1, 2]", "the body is a list, not an object"),
    (b'{"Records": null}', "Records is null"),
    (b'{"Records": [{"s3": {"object": {"key": "a\\u0000b"}}}]}', "the key has a NUL"),
    (b"\x80\x04\x95\x0b\x00\x00\x00pickle.", "the body is not UTF-8 at byte 0"),
    (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "the body is not UTF-8 at byte 1"),
    (SCRIPT.encode(), f"the body is not JSON: {SCRIPT}"),
    (IMAGE.encode(), f"the body is not JSON: {IMAGE}"),
    (b"\x1b]0;title\x07\x1b[2J\r\n", "the body is not JSON: \x1b[31mred\x1b[0m"),
    (b"'; DROP TABLE messages; --", "the body is not JSON"),
    (b"</textarea></pre></section></main></body>", "</td></tr></table></section></main></body>"),
)
