"""Lists of processed objects: identities of objects as in notifications, and problems of lines."""

import json
from pathlib import Path

import pytest

from penstock.objects.local_store import LocalStore
from penstock.objects.processed_lists import ListedObject, read_list
from penstock.objects.reference import ObjectRef


def read(text: str | bytes) -> list[ListedObject]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_list(data.splitlines(keepends=True)))


def refs(text: str | bytes) -> list[ObjectRef]:
    found = [one.ref for one in read(text)]
    assert None not in found
    return [ref for ref in found if ref is not None]


def test_json_and_csv_give_the_same_references() -> None:
    by_json = refs(
        '{"uri": "s3://landing/a b%20c.json", "size": 10, "etag": "\\"abc\\""}\n\n'
        '{"bucket": "landing", "key": "d", "version_id": "v-1", "other": [1]}\n'
    )
    by_csv = refs(
        '\ufeffuri,bucket,key,size,etag,version_id\ns3://landing/a b%20c.json,,,10,"""abc""",null\n,landing,d,,,v-1\n'
    )
    assert by_json[0] == by_csv[0] == ObjectRef(bucket="landing", key="a b%20c.json", size_bytes=10, etag="abc")
    assert by_json[1].object_id == by_csv[1].object_id
    assert by_json[1] == ObjectRef(bucket="landing", key="d", size_bytes=0, version_id="v-1")


def test_a_version_id_identifies_an_object_without_its_size() -> None:
    (short, long) = refs('{"uri": "s3://b/k", "version_id": "v"}\n{"uri": "s3://b/k", "version_id": "v", "size": 9}')
    assert short.object_id == long.object_id


def test_a_local_file_without_an_etag_is_its_current_version(tmp_path: Path) -> None:
    file = tmp_path / "a file.json"
    file.write_bytes(b"{}")
    existing = LocalStore(tmp_path).describe(file)
    for line in (json.dumps({"uri": str(file)}), json.dumps({"uri": f"file://{file}"})):
        assert refs(line) == [existing]
    assert refs(f"uri\n{file}\n") == [existing]
    (missing,) = read(json.dumps({"uri": f"{file}.missing"}))
    assert missing.ref is None
    assert "the file cannot be read" in missing.problem


def test_keys_that_are_not_utf8_are_kept_byte_for_byte() -> None:
    (ref,) = refs(b"bucket,key,size,etag\nb,\xff\xfe,1,e\n")
    assert ref.key_bytes == b"\xff\xfe"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"uri": "s3://b/k"}', "needs version_id, or etag and size"),
        ('{"uri": "s3://b/k", "etag": "e"}', "needs version_id"),
        ('{"uri": "s3://b/k", "etag": "e", "size": -1}', "not a number of bytes"),
        ('{"uri": "s3://b/k", "etag": "e", "size": 1.5}', "not a number of bytes"),
        ('{"uri": "s3://b/k", "etag": "e", "size": true}', "not a number of bytes"),
        ('{"uri": "s3://b", "version_id": "v"}', "identifies no object"),
        ('{"uri": "http://b/k", "version_id": "v"}', "neither s3://BUCKET/KEY"),
        ('{"bucket": "b", "version_id": "v"}', "identifies no object"),
        ('{"uri": 7, "version_id": "v"}', "is not text"),
        ('{"uri": "s3://b/' + "k" * 1_025 + '", "version_id": "v"}', "a key of more than 1,024 bytes"),
        ('{"uri": ', "is not JSON"),
        ('{"version_id": "v"}', "identifies no object"),
    ],
)
def test_the_problem_of_a_line_is_reported_with_its_number(line: str, problem: str) -> None:
    good, bad = read('{"uri": "s3://b/k", "version_id": "v"}\n' + line)
    assert good.ref is not None
    assert (bad.line, bad.ref) == (2, None)
    assert problem in bad.problem


def test_a_relative_path_names_an_existing_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a").write_text("1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    existing, absolute, missing = read(f"uri\nlanding/a\n{tmp_path.resolve()}/landing/a\nlanding/b\n")
    assert existing.ref is not None
    assert existing.ref == absolute.ref
    assert (missing.ref, "nor a file path" in missing.problem) == (None, True)


def test_a_csv_list_without_a_header_or_with_missing_fields_is_refused() -> None:
    (one,) = read("s3://b/k\ns3://b/l\n")
    assert "neither JSON nor a CSV header" in one.problem
    (short,) = read("uri,etag\ns3://b/k\n")
    assert (short.line, short.problem) == (2, "has 1 field, and the header 2")
    assert read("") == read("\n \n") == []
