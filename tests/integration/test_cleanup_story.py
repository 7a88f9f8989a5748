"""Processed, published, and only then cleaned up: the whole way, in processes that are killed on it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from tests.integration.cleanup_story import DAY_SECONDS, KILLED, Story
from tests.services.aws_server import AwsServer
from tests.services.s3_scene import Announced

from penstock.app.cleanup import Move
from penstock.app.cleanup_runner import moved_to
from penstock.messaging.steps import Step
from penstock.objects.cleanup_s3 import S3Deleter, S3Mover, S3Tagger
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import parse_others
from penstock.objects.reference import ObjectRef
from penstock.storage.address import s3_address

pytestmark = pytest.mark.timeout(300)

KILL_AT = (f"{Step.CLEANING.value}:2", Step.SET_ASIDE.value, f"{Step.CLEANED.value}:2")
AT_ONCE = ("plain delete", "versioned delete")  # S3 deletes in one request: there is nothing in the middle
NAMES = [f"eu/{number}.jsonl" for number in range(6)]


class Place(Protocol):
    """A source with a target beside it."""

    story: Story

    def put(self, name: str, text: str) -> ObjectRef: ...

    def objects(self) -> dict[str, str]:
        """Return the source's files: names and contents."""

    def moved(self) -> list[str]:
        """The contents at the target."""

    def tagged(self) -> list[str]:
        """The names of what is tagged."""


class Folder:
    def __init__(self, tmp_path: Path, action: str) -> None:
        base = tmp_path.resolve()
        self.source, self.target = base / "landing", base / "done"
        self.source.mkdir()
        how = {"CLEANUP": action, "CLEANUP_TO": str(self.target)}
        self.story = Story(folder=base, source=str(self.source), how=how)

    def put(self, name: str, text: str) -> ObjectRef:
        path = self.source / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return LocalStore(self.source).describe(path)

    def objects(self) -> dict[str, str]:
        files = (path for path in self.source.rglob("*") if path.is_file())
        return {str(path.relative_to(self.source)): path.read_text() for path in files}

    def moved(self) -> list[str]:
        return sorted(path.read_text() for path in self.target.rglob("*") if path.is_file())

    def tagged(self) -> list[str]:
        return []


class Bucket:
    def __init__(self, tmp_path: Path, action: str, server: AwsServer, *, versioned: bool) -> None:
        self.s3 = server.client("s3")
        self.s3.create_bucket(Bucket="landing")
        if versioned:
            self.s3.put_bucket_versioning(Bucket="landing", VersioningConfiguration={"Status": "Enabled"})
        how = {"CLEANUP": action, "CLEANUP_TO": "s3://landing/done"}
        self.story = Story(folder=tmp_path.resolve(), source="s3://landing/in", how=how, environment=server.environment)

    def put(self, name: str, text: str) -> ObjectRef:
        key = f"in/{name}"
        answer = self.s3.put_object(Bucket="landing", Key=key, Body=text.encode())
        return ObjectRef(
            bucket="landing",
            key=key,
            size_bytes=len(text),
            etag=answer["ETag"].strip('"'),
            version_id=answer.get("VersionId"),
        )

    def objects(self) -> dict[str, str]:
        """Those there are. The last request of a process that was killed may reach the server meanwhile."""
        found = {}
        for key in self._keys("in/"):
            with suppress(self.s3.exceptions.NoSuchKey):
                found[key.removeprefix("in/")] = self._text(key)
        return found

    def moved(self) -> list[str]:
        return sorted(self._text(key) for key in self._keys("done/"))

    def tagged(self) -> list[str]:
        found = {key: self.s3.get_object_tagging(Bucket="landing", Key=key)["TagSet"] for key in self._keys("in/")}
        return [key.removeprefix("in/") for key, tags in found.items() if tags]

    def _keys(self, prefix: str) -> list[str]:
        found = self.s3.list_objects_v2(Bucket="landing", Prefix=prefix).get("Contents", ())
        return sorted(one["Key"] for one in found)

    def _text(self, key: str) -> str:
        text: str = self.s3.get_object(Bucket="landing", Key=key)["Body"].read().decode()
        return text


WAYS = [
    "folder delete",
    "folder move",
    "plain delete",
    pytest.param("plain move", marks=pytest.mark.slow),
    "plain tag",
    pytest.param("versioned delete", marks=pytest.mark.slow),
    "versioned move",
    pytest.param("versioned tag", marks=pytest.mark.slow),
]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, _, action = request.param.partition(" ")
    if kind == "folder":
        yield Folder(tmp_path, action)
    else:
        yield Bucket(tmp_path, action, request.getfixturevalue("moto"), versioned=kind == "versioned")


def whole(place: Place, *, texts: dict[str, str], newer: str = "") -> None:
    """All of these were cleaned up; of the name ``newer`` there is another version now."""
    match place.story.how["CLEANUP"]:
        case "tag":
            assert set(place.tagged()) == set(texts)
        case "move":
            assert place.moved() == sorted(texts.values())
    if place.story.how["CLEANUP"] != "tag":
        assert not (texts.keys() - {newer}) & place.objects().keys()


@pytest.mark.parametrize("place", ["folder move", "versioned delete"], indirect=True)
def test_what_is_processed_stays_until_it_is_published_and_old_enough(place: Place) -> None:
    texts = {name: name for name in NAMES}
    story = place.story
    story.process([place.put(name, text) for name, text in texts.items()])
    assert story.clean()["batches"] == 0
    assert place.objects() == texts
    story.publish()
    assert story.clean("--dry-run")["objects"] == len(NAMES)
    assert place.objects() == texts
    if story.how["CLEANUP"] == "delete":
        assert story.clean(CLEANUP_AFTER="30 days")["objects"] == 0
        story.age(seconds=31 * DAY_SECONDS)
        report = story.clean(CLEANUP_AFTER="30 days")
    else:
        report = story.clean()
    assert (report["objects"], report["done_to"], report["skipped"]) == (len(NAMES), 1, {})
    whole(place, texts=texts)
    assert story.clean()["objects"] == 0


@pytest.mark.parametrize("place", WAYS, indirect=True)
def test_killed_at_every_step_nothing_unpublished_is_lost(place: Place, request: pytest.FixtureRequest) -> None:
    """Two batches are published, a third is not; and an object of the first is exchanged for a newer one."""
    first, second, third = ({name.replace("eu", f"eu{n}"): f"{n} {name}" for name in NAMES} for n in range(3))
    story = place.story
    for texts in (first, second):
        story.process([place.put(name, text) for name, text in texts.items()])
    story.publish()
    story.process([place.put(name, text) for name, text in third.items()])
    newer = "eu0/0.jsonl"
    place.put(newer, "newer and not processed")
    for step in KILL_AT:
        if step == Step.SET_ASIDE.value and any(way in request.node.name for way in AT_ONCE):
            continue
        assert story.call(kill_at=step).returncode == KILLED
        found = place.objects()
        assert third.items() <= found.items()
        assert found[newer] == "newer and not processed"
    report = story.clean()
    assert report["done_to"] == 2
    assert place.objects().items() >= {**third, newer: "newer and not processed"}.items()
    assert not {name for name in place.tagged() if name in third or name == newer}
    processed = {**first, **second}
    if "versioned move" not in request.node.name:
        del processed[newer]  # overwritten, or a version below the newer one
    whole(place, texts=processed, newer=newer)


@pytest.mark.parametrize("place", ["plain delete"], indirect=True)
def test_a_limit_a_rate_and_people(place: Place) -> None:
    story = place.story
    story.process([place.put(name, name) for name in NAMES])
    story.publish()
    report = story.clean("--limit", "2", "--rate", "100")
    assert (report["objects"], report["limited"], report["stopped"]) == (2, True, False)
    assert len(place.objects()) == 4
    ended = story.call()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "clicks: 4 objects deleted, done with 1 batch, up to batch 1.",
        "Left alone: 2 objects: gone.",
    ]
    assert "batch 1: 4 objects deleted, 2 left alone" in ended.stderr


@pytest.mark.parametrize("place", ["folder delete"], indirect=True)
def test_a_ledger_that_is_not_the_tables_touches_nothing(place: Place) -> None:
    story = place.story
    story.process([place.put(name, name) for name in NAMES])
    story.publish()
    ledger = story.folder / ".penstock" / "ledger.db"
    for file in ledger.parent.glob("ledger.db*"):
        file.unlink()
    story.process([place.put("other", "other")])
    ended = story.call()
    assert ended.returncode == 1
    assert "another batch of that number" in ended.stderr
    assert len(place.objects()) == len(NAMES) + 1


def test_what_it_does_in_s3_announces_nothing_to_read(moto: AwsServer) -> None:
    """Row 61 of what comes in: removed and tagged are not read; nor is what was moved below the target."""
    scene = Announced(moto, "sqs")
    source, target = s3_address(f"s3://{scene.bucket}/in"), s3_address(f"s3://{scene.bucket}/done")

    def put(key: str) -> ObjectRef:
        etag = scene.put(key)["ETag"].strip('"')
        return ObjectRef(bucket=scene.bucket, key=key, size_bytes=1, etag=etag)

    own = moved_to(Move(str(target)))
    assert own == (target,)
    tagged, deleted, moved = put("in/tagged"), put("in/deleted"), put("in/moved")
    scene.arrived(3)
    S3Tagger(source, {"a": "b"}, moto.aws).clean(tagged)
    S3Deleter(source, moto.aws).clean(deleted)
    S3Mover(source, target, moto.aws).clean(moved)
    bodies = [_of_the_copy(body) for body in scene.arrived(3)]  # moto tells of two removals and of the copy
    heard = [parse_others(body, buckets_allowed=frozenset({scene.bucket}), own=own) for body in bodies]
    assert [found.objects for found in heard] == [()] * 3
    assert {ignored.uri.rpartition("/")[2] for found in heard for ignored in found.ignored} == {"deleted", "moved"}


def _of_the_copy(body: bytes) -> bytes:
    """A record of moto's, which gives a copy the key of its original; S3 gives it its own."""
    if b"ObjectCreated" not in body:
        return body
    return body.replace(b"in/moved", b"done/moved").replace(b"in%2Fmoved", b"done%2Fmoved")
