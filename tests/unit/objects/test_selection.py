"""Which objects are those of a source, in listings, notifications and walks alike."""

import json
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce, parse_others
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner
from penstock.objects.selection import Selection, SkipReason, checked_patterns

KEYS = (
    "in/a.csv",
    "in/b.csv.gz",
    "in/_SUCCESS",
    "in/.a.csv.crc",
    "in/README.md",
    "in/_temporary/0/a.csv",
    "in/_day=1/a.csv",
    "in/2026/a.csv",
    "in/2026/tmp/a.csv",
    "in/2026/b.jsonl",
)
CASES = (
    (Selection(below="in/"), {0, 1, 2, 4, 5, 6, 7, 8, 9}),
    (Selection(below="in/", skips_underscored=True), {0, 1, 4, 6, 7, 8, 9}),
    (Selection(below="in/", pattern="*.csv"), {0}),
    (Selection(below="in/", pattern="*"), {0, 1, 2, 4}),
    (Selection(below="in/", pattern="**/*.csv", skips_underscored=True), {0, 6, 7, 8}),
    (Selection(below="in/", pattern="_*", skips_underscored=True), {2}),
    (Selection(below="in/", include=("_*",), skips_underscored=True), {2}),
    (Selection(below="in/", pattern="_temporary/", skips_underscored=True), {5}),
    (Selection(below="in/", include=("*.csv", "*.jsonl"), exclude=("tmp/",), skips_underscored=True), {0, 6, 7, 9}),
    (Selection(below="in/", exclude=("2026/*.csv", "_*")), {0, 1, 4, 5, 6, 8, 9}),
    (Selection(below="in/", suffixes=(".csv", ".csv.gz"), skips_underscored=True), {0, 1, 6, 7, 8}),
)


@pytest.mark.parametrize(("selection", "expected"), CASES)
def test_keys_are_judged(selection: Selection, expected: set[int]) -> None:
    assert {number for number, key in enumerate(KEYS) if selection.left_out(key, 1) is None} == expected


def test_a_part_of_a_source_has_the_rules_of_the_source_too() -> None:
    part = Selection(below="in/2026/", exclude=("tmp/",), within=Selection(below="in/", pattern="**/*.csv"))
    assert [key for key in KEYS[7:] if part.left_out(key, 1) is None] == ["in/2026/a.csv"]


def test_a_reason_is_given() -> None:
    selection = Selection(below="in/", include=("*.csv",), exclude=("tmp/",), skips_underscored=True)
    reasons = {key: selection.left_out(key, 1) for key in KEYS}
    assert reasons["in/.a.csv.crc"] is SkipReason.HIDDEN
    assert reasons["in/README.md"] is SkipReason.NOT_SELECTED
    assert reasons["in/_temporary/0/a.csv"] is SkipReason.UNDERSCORE
    assert selection.left_out("in/2026/", 0) is SkipReason.FOLDER_MARKER
    assert selection.left_out("in/", 0) is SkipReason.FOLDER_MARKER
    assert selection.left_out("elsewhere/a.md", 1) is None, "the store refuses it, with a reason"


def test_a_notification_of_another_object_is_ignored() -> None:
    selection = Selection(below="in/", pattern="**/*.csv", skips_underscored=True)
    refs = [ObjectRef(bucket="b", key=key, size_bytes=1, etag="e") for key in KEYS]
    body = json.dumps({"Records": [json.loads(announce(ref))["Records"][0] for ref in refs]}).encode()
    found = parse_others(body, buckets_allowed=None, own=(), selection=selection)
    assert [ref.key for ref in found.objects] == [key for key in KEYS if selection.left_out(key, 1) is None]
    assert len(found.ignored) == len(KEYS) - len(found.objects)


@pytest.mark.parametrize(("selection", "expected"), CASES)
def test_a_walk_finds_the_selected_files(tmp_path: Path, selection: Selection, expected: set[int]) -> None:
    for key in KEYS:
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    local = Selection(
        below=f"{tmp_path}/in/",
        pattern=selection.pattern,
        include=selection.include,
        exclude=selection.exclude,
        skips_underscored=selection.skips_underscored,
        suffixes=selection.suffixes,
        in_s3=False,
    )
    scanner = Scanner(tmp_path / "in", store=LocalStore(tmp_path / "in"), selection=local)
    found = {ref.key.removeprefix(f"{tmp_path}/") for chunk in scanner.chunks() for ref in chunk}
    assert found == {KEYS[number] for number in expected}
    named = {ref.key.removeprefix(f"{tmp_path}/") for key in KEYS for ref in scanner.at(tmp_path / key)}
    assert named == found, "a watch finds the same"


@pytest.mark.parametrize("pattern", ["", "/abs/*.csv", "s3://b/*.csv"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="relative to the source"):
        checked_patterns([pattern], "include")
    with pytest.raises(UsageError, match="a list of patterns"):
        checked_patterns("*.csv", "include")
