"""Processed, published, and only then cleaned up: the whole sequence, in processes that are killed during it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from tests.integration.cleanup_scenario import DAY_SECONDS, KILLED, CleanupScenario
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

KILL_AT = (f"{Step.CLEANING.value}:2", Step.SET_ASIDE.value, f"{Step.CLEANED.value}:2")
AT_ONCE = ("plain delete", "versioned delete")  # S3 deletes in one request: there is no step in between
NAMES = [f"eu/{number}.jsonl" for number in range(6)]


class SourcePlace(Protocol):
    """A source with a target beside it."""

    scenario: CleanupScenario

    def put(self, name: str, text: str) -> ObjectRef: ...

    def objects(self) -> dict[str, str]:
        """Return the source's files: names and contents."""

    def moved(self) -> list[str]:
        """Return the contents at the target."""

    def tagged(self) -> list[str]:
        """Return the names of tagged objects."""


class Folder:
    def __init__(self, tmp_path: Path, action: str) -> None:
        base = tmp_path.resolve()
        self.source, self.target = base / "landing", base / "done"
        self.source.mkdir()
        variables = {"CLEANUP": action, "CLEANUP_TO": str(self.target)}
        self.scenario = CleanupScenario(folder=base, source=str(self.source), variables=variables)

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
        variables = {"CLEANUP": action, "CLEANUP_TO": "s3://landing/done"}
        self.scenario = CleanupScenario(
            folder=tmp_path.resolve(), source="s3://landing/in", variables=variables, environment=server.environment
        )

    def put(self, name: str, text: str) -> ObjectRef:
        key = f"in/{name}"
        response = self.s3.put_object(Bucket="landing", Key=key, Body=text.encode())
        return ObjectRef(
            bucket="landing",
            key=key,
            size_bytes=len(text),
            etag=response["ETag"].strip('"'),
            version_id=response.get("VersionId"),
        )

    def objects(self) -> dict[str, str]:
        """Return the existing objects. The last request of a killed process may reach the server meanwhile."""
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


SETUPS = [
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
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourcePlace]:
    kind, _, action = request.param.partition(" ")
    if kind == "folder":
        yield Folder(tmp_path, action)
    else:
        yield Bucket(tmp_path, action, request.getfixturevalue("moto"), versioned=kind == "versioned")


def assert_cleaned(place: SourcePlace, *, texts: dict[str, str], newer: str = "") -> None:
    """Check that all of these were cleaned up; the name ``newer`` has another version now."""
    match place.scenario.variables["CLEANUP"]:
        case "tag":
            assert set(place.tagged()) == set(texts)
        case "move":
            assert place.moved() == sorted(texts.values())
    if place.scenario.variables["CLEANUP"] != "tag":
        assert not (texts.keys() - {newer}) & place.objects().keys()


@pytest.mark.parametrize("place", ["folder move", "versioned delete"], indirect=True)
def test_processed_objects_stay_until_published_and_old_enough(place: SourcePlace) -> None:
    texts = {name: name for name in NAMES}
    scenario = place.scenario
    scenario.process([place.put(name, text) for name, text in texts.items()])
    assert scenario.clean()["batches"] == 0
    assert place.objects() == texts
    scenario.publish()
    assert scenario.clean("--dry-run")["objects"] == len(NAMES)
    assert place.objects() == texts
    if scenario.variables["CLEANUP"] == "delete":
        assert scenario.clean(CLEANUP_AFTER="30 days")["objects"] == 0
        scenario.age(seconds=31 * DAY_SECONDS)
        report = scenario.clean(CLEANUP_AFTER="30 days")
    else:
        report = scenario.clean()
    assert (report["objects"], report["done_to"], report["skipped"]) == (len(NAMES), 1, {})
    assert_cleaned(place, texts=texts)
    assert scenario.clean()["objects"] == 0


@pytest.mark.parametrize("place", SETUPS, indirect=True)
def test_a_cleanup_killed_at_every_step_loses_no_unpublished_object(
    place: SourcePlace, request: pytest.FixtureRequest
) -> None:
    """Two batches are published, a third is not; and an object of the first is replaced by a newer one."""
    first, second, third = ({name.replace("eu", f"eu{n}"): f"{n} {name}" for name in NAMES} for n in range(3))
    scenario = place.scenario
    for texts in (first, second):
        scenario.process([place.put(name, text) for name, text in texts.items()])
    scenario.publish()
    scenario.process([place.put(name, text) for name, text in third.items()])
    newer = "eu0/0.jsonl"
    place.put(newer, "newer and not processed")
    for step in KILL_AT:
        if step == Step.SET_ASIDE.value and any(setup in request.node.name for setup in AT_ONCE):
            continue
        assert scenario.call(kill_at=step).returncode == KILLED
        found = place.objects()
        assert third.items() <= found.items()
        assert found[newer] == "newer and not processed"
    report = scenario.clean()
    assert report["done_to"] == 2
    assert place.objects().items() >= {**third, newer: "newer and not processed"}.items()
    assert not {name for name in place.tagged() if name in third or name == newer}
    processed = {**first, **second}
    if "versioned move" not in request.node.name:
        del processed[newer]  # overwritten, or a version below the newer one
    assert_cleaned(place, texts=processed, newer=newer)


@pytest.mark.parametrize("place", ["plain delete"], indirect=True)
def test_a_cleanup_obeys_its_limit_and_prints_a_summary(place: SourcePlace) -> None:
    scenario = place.scenario
    scenario.process([place.put(name, name) for name in NAMES])
    scenario.publish()
    report = scenario.clean("--limit", "2", "--rate", "100")
    assert (report["objects"], report["limited"], report["stopped"]) == (2, True, False)
    assert len(place.objects()) == 4
    ended = scenario.call()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "clicks: 4 objects deleted, done with 1 batch, up to batch 1.",
        "Left alone: 2 objects: gone.",
    ]
    assert "batch 1: 4 objects deleted, 2 left alone" in ended.stderr


@pytest.mark.parametrize("place", ["folder delete"], indirect=True)
def test_a_cleanup_with_the_wrong_ledger_deletes_nothing(place: SourcePlace) -> None:
    scenario = place.scenario
    scenario.process([place.put(name, name) for name in NAMES])
    scenario.publish()
    ledger = scenario.folder / ".penstock" / "ledger.db"
    for file in ledger.parent.glob("ledger.db*"):
        file.unlink()
    scenario.process([place.put("other", "other")])
    ended = scenario.call()
    assert ended.returncode == 1
    assert "another batch with that number" in ended.stderr
    assert len(place.objects()) == len(NAMES) + 1


def test_notifications_caused_by_a_cleanup_are_ignored(moto: AwsServer) -> None:
    """Row 61 of the inputs: removals and tags are not read; nor are objects moved below the target."""
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
    bodies = [_of_the_copy(body) for body in scene.arrived(3)]  # moto notifies of two removals and of the copy
    events = [parse_others(body, buckets_allowed=frozenset({scene.bucket}), own=own) for body in bodies]
    assert [found.objects for found in events] == [()] * 3
    assert {ignored.uri.rpartition("/")[2] for found in events for ignored in found.ignored} == {"deleted", "moved"}


def _of_the_copy(body: bytes) -> bytes:
    """Return moto's record with the key of the copy, as S3 has it; moto uses the key of the original."""
    if b"ObjectCreated" not in body:
        return body
    return body.replace(b"in/moved", b"done/moved").replace(b"in%2Fmoved", b"done%2Fmoved")
