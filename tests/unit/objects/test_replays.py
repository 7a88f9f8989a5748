"""The identity of a replay: an object of its own, with the version of its source inside its own."""

import pytest

from penstock.objects.notification import announce, parse
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef
from penstock.objects.replays import is_replay, replay_of, replayed_attempt, source_of

FILE = ObjectRef(bucket=LOCAL_BUCKET, key="/in/a\udcff.csv", size_bytes=9, etag="18ec21-9")
IN_S3 = ObjectRef(bucket="landing", key="a b.csv", size_bytes=9, etag="e", version_id="v", sequencer="01")
UNVERSIONED = ObjectRef(bucket="landing", key="a.csv", size_bytes=9, etag="e", sequencer="01")


@pytest.mark.parametrize("ref", [FILE, IN_S3, UNVERSIONED], ids=["file", "versioned", "unversioned"])
def test_a_replay_leads_back_to_its_source_and_attempt(ref: ObjectRef) -> None:
    replay = replay_of(ref, "A")
    assert source_of(replay).object_id == ref.object_id
    assert replayed_attempt(replay) == "A"
    assert replay.object_id not in {ref.object_id, replay_of(ref, "B").object_id}
    assert is_replay(replay.version_id, replay.etag)
    assert replay.sequencer is None, "it supersedes no version, and none supersedes it"
    assert (source_of(ref), replayed_attempt(ref), is_replay(ref.version_id, ref.etag)) == (ref, None, False)


@pytest.mark.parametrize("ref", [FILE, IN_S3, UNVERSIONED], ids=["file", "versioned", "unversioned"])
def test_the_replay_of_a_replay_has_the_same_source(ref: ObjectRef) -> None:
    again = replay_of(replay_of(ref, "A"), "B")
    assert again.object_id == replay_of(ref, "B").object_id
    assert source_of(again).object_id == ref.object_id


@pytest.mark.parametrize("ref", [FILE, IN_S3, UNVERSIONED], ids=["file", "versioned", "unversioned"])
def test_a_notification_names_a_replay_as_it_does_any_object(ref: ObjectRef) -> None:
    replay = replay_of(ref, "01M8GDTJ419T9S8D4NWA7HMNFM")
    (parsed,) = parse(announce(replay), buckets_allowed=frozenset({ref.bucket})).objects
    assert parsed.object_id == replay.object_id
