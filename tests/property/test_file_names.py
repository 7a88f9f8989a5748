"""Objects with any possible file name are scanned, notified, parsed, opened and read."""

import os
import tempfile
import unicodedata

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner

NAMES = st.binary(min_size=1, max_size=255).filter(
    lambda name: not name.startswith(b".") and b"/" not in name and b"\0" not in name
)
NFC = unicodedata.normalize("NFC", "データが").encode()
NFD = unicodedata.normalize("NFD", "データが").encode()


def round_trip(folder: bytes) -> dict[bytes, bytes]:
    """Return the content of every file by name, read as a worker reads it."""
    store = LocalStore(folder)
    found = [ref for chunk in Scanner(folder, store=store).chunks() for ref in chunk]
    contents: dict[bytes, bytes] = {}
    for ref in found:
        (back,) = parse(announce(ref), buckets_allowed=frozenset({"file"})).objects
        assert back == ref
        contents[back.key_bytes.rpartition(b"/")[2]] = read(store, back)
    assert len({ref.object_id for ref in found}) == len(found)
    return contents


def read(store: LocalStore, ref: ObjectRef) -> bytes:
    with store.open(ref) as reader:
        content = reader.read()
        reader.verify()
    return content


@settings(max_examples=60, deadline=None)  # files are created, so the time depends on the disk
@given(st.sets(NAMES, min_size=1, max_size=8))
@example({b"Data.csv", b"data.csv", b"a", b"a ", b"a\n", b"\x1b[31mred", b"a+b", b"a b", b"a%2Bb", b"%"})
@example({"😀".encode(), "😁".encode(), NFC, NFD, b"\xff\xfe", b"\xed\xa0\x80", b"<script>", b"'; DROP TABLE x;--"})
@example({b"x (deleted)", b"x", b"\\x", b"~", b"-rf", b"*", b"s3:", b"file:"})
def test_an_object_with_any_name_is_read_back(names: set[bytes]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = os.path.realpath(os.fsencode(made))
        for name in names:
            with open(folder + b"/" + name, "wb") as file:  # noqa: PTH123 - pathlib takes no bytes
                file.write(b"content of " + name)
        assert round_trip(folder) == {name: b"content of " + name for name in names}
